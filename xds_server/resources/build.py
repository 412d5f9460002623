"""From configuration and fleet to the resources that Envoy gets. Pure: the same input, the same bytes."""

from collections.abc import Sequence

from betterproto2 import Message

from recursant import names
from recursant.config.model import Config
from recursant.fleet.worker import WorkerRecord
from xds_server.resource import CLUSTER, EXTENSION_CONFIG, LISTENER, ROUTE, Resource
from xds_server.resources.breakers import breakers_for
from xds_server.resources.cluster import extproc_cluster, fleet_cluster
from xds_server.resources.endpoint import build_endpoints
from xds_server.resources.filters import discovered_filters
from xds_server.resources.listener import gateway_listener
from xds_server.resources.route import gateway_routes

__all__ = ["build", "build_endpoints"]


def build(config: Config, workers: Sequence[WorkerRecord]) -> list[Resource]:
    """Every resource of the gateway, in the order of type and name.

    For changes of the configuration, of who is ready or of what is served: some ms, and another about the routes of
    agents and models that are new. Between those, `build_endpoints` alone is enough.
    """
    resources = [
        _resource(CLUSTER, names.FLEET_CLUSTER, fleet_cluster(breakers_for(workers))),
        _resource(CLUSTER, names.EXTPROC_CLUSTER, extproc_cluster(config)),
        build_endpoints(workers),
        _resource(LISTENER, names.GATEWAY_LISTENER, gateway_listener(config)),
        Resource.of(ROUTE, names.GATEWAY_ROUTES, gateway_routes(config, workers)),
        *(_resource(EXTENSION_CONFIG, name, message) for name, message in discovered_filters(config).items()),
    ]
    return sorted(resources, key=lambda resource: (resource.type_url, resource.name))


def _resource(type_url: str, name: str, message: Message) -> Resource:
    return Resource.of(type_url, name, bytes(message))
