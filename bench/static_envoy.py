"""The product's own Envoy resources as one static bootstrap, with a listener for each server under test.

All listeners share one Envoy and one set of connections to the fleet, so that what differs between two of them is
the ext_proc server alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.http.ext_proc.v3.ext_proc_pb2 import ExternalProcessor
from envoy.extensions.filters.http.router.v3.router_pb2 import Router
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from google.protobuf.json_format import ParseDict

from recursant import names
from recursant.config.model import Config
from recursant.fleet.worker import WorkerRecord
from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE
from xds_server.resources.build import build


@dataclass(frozen=True)
class Gate:
    """One listener.

    Attributes:
        name: of the listener.
        fleet: a key of the fleets.
        extproc: socket path of its ext_proc server; None for plain Envoy: a router and nothing else.
    """

    name: str
    fleet: int
    extproc: str | None


def bootstrap(config: Config, gates: Iterable[Gate], fleets: dict[int, Sequence[WorkerRecord]]) -> bytes:
    """The serialised bootstrap; every listener takes a free port, which Envoy's admin interface tells."""
    result = Bootstrap()
    address = result.admin.address.socket_address
    address.address, address.port_value = names.LOOPBACK, 0
    built = {
        size: {(each.type_url, each.name): each.body for each in build(config, records)}
        for size, records in fleets.items()
    }
    for size, resources in built.items():
        result.static_resources.clusters.append(_fleet(resources, size))
    for gate in gates:
        resources = built[gate.fleet]
        if gate.extproc is None:
            result.static_resources.listeners.append(_plain(gate))
            continue
        result.static_resources.clusters.append(_extproc(resources, gate))
        result.static_resources.listeners.append(_listener(resources, gate))
    data: bytes = result.SerializeToString()
    return data


Resources = dict[tuple[str, str], bytes]


def _fleet_name(size: int) -> str:
    return f"{names.FLEET_CLUSTER}-{size}"


def _fleet(resources: Resources, size: int) -> Any:
    cluster = Cluster.FromString(resources[CLUSTER, names.FLEET_CLUSTER])
    cluster.name = _fleet_name(size)
    cluster.type = Cluster.STATIC
    cluster.ClearField("eds_cluster_config")
    cluster.load_assignment.CopyFrom(ClusterLoadAssignment.FromString(resources[ENDPOINT, names.FLEET_CLUSTER]))
    cluster.load_assignment.cluster_name = cluster.name
    return cluster


def _extproc(resources: Resources, gate: Gate) -> Any:
    cluster = Cluster.FromString(resources[CLUSTER, names.EXTPROC_CLUSTER])
    cluster.name = cluster.load_assignment.cluster_name = gate.name
    cluster.load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.pipe.path = gate.extproc
    return cluster


def _listener(resources: Resources, gate: Gate) -> Any:
    listener = Listener.FromString(resources[LISTENER, names.GATEWAY_LISTENER])
    listener.name = gate.name
    listener.address.socket_address.port_value = 0
    network_filter = listener.filter_chains[0].filters[0]
    manager = HttpConnectionManager.FromString(network_filter.typed_config.value)
    # The log of requests that came past extproc goes to the control plane, which is not here.
    manager.ClearField("access_log")
    routes = RouteConfiguration.FromString(resources[ROUTE, names.GATEWAY_ROUTES])
    for route in routes.virtual_hosts[0].routes:
        if route.route.cluster == names.FLEET_CLUSTER:
            route.route.cluster = _fleet_name(gate.fleet)
    manager.route_config.CopyFrom(routes)
    for each in manager.http_filters:
        if each.HasField("config_discovery"):
            each.typed_config.CopyFrom(_discovered(resources, each.name, gate))
    network_filter.typed_config.Pack(manager)
    return listener


def _discovered(resources: Resources, name: str, gate: Gate) -> Any:
    config = TypedExtensionConfig.FromString(resources[EXTENSION_CONFIG, name]).typed_config
    if name == names.EXTPROC_FILTER:
        extproc = ExternalProcessor.FromString(config.value)
        extproc.grpc_service.envoy_grpc.cluster_name = gate.name
        # What fails open would look fast.
        extproc.failure_mode_allow = False
        extproc.message_timeout.FromSeconds(30)
        config.Pack(extproc)
    return config


def _plain(gate: Gate) -> Any:
    pool = {"filter_metadata": {names.LB_NAMESPACE: {names.LB_POOL: names.LB_POOL_OPEN}}}
    route = {"cluster": _fleet_name(gate.fleet), "timeout": "0s", "metadata_match": pool}
    manager = {
        "@type": _type_url(HttpConnectionManager),
        "stat_prefix": gate.name,
        "http_filters": [{"name": "router", "typed_config": {"@type": _type_url(Router)}}],
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
    }
    document = {
        "name": gate.name,
        "address": {"socket_address": {"address": names.LOOPBACK, "port_value": 0}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
        # What a body of any mode takes, as in the product.
        "per_connection_buffer_limit_bytes": 16 * 2**20,
    }
    return ParseDict(document, Listener())


def _type_url(kind: Any) -> str:
    return f"type.googleapis.com/{kind.DESCRIPTOR.full_name}"
