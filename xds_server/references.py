"""Which resources a resource names: read from its message, so that a snapshot can be checked as a whole."""

from collections.abc import Iterator
from dataclasses import dataclass

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_components_pb2 import RouteAction
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from google.protobuf.message import DecodeError

from xds_server.problems import InconsistentSnapshotError
from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE, Resource

# (type, name) of a resource.
Reference = tuple[str, str]


@dataclass(frozen=True, slots=True)
class References:
    """What one resource names."""

    resources: frozenset[Reference] = frozenset()
    # A cluster's EDS name; None where it uses no EDS.
    endpoints: str | None = None


def references_of(resource: Resource) -> References:
    """Read them. Types that we do not know name nothing.

    Raises:
        InconsistentSnapshotError: the message cannot be parsed as its type.
    """
    try:
        if resource.type_url == CLUSTER:
            endpoints = _endpoints_of(Cluster.FromString(resource.body))
            return References(frozenset() if endpoints is None else frozenset({(ENDPOINT, endpoints)}), endpoints)
        if resource.type_url == LISTENER:
            return References(frozenset(_of_listener(Listener.FromString(resource.body))))
        if resource.type_url == ROUTE:
            return References(frozenset(_of_routes(RouteConfiguration.FromString(resource.body))))
    except DecodeError as error:
        problem = f"{resource.type_url} {resource.name!r} cannot be parsed: {error}"
        raise InconsistentSnapshotError([problem]) from error
    return References()


def _endpoints_of(cluster: Cluster) -> str | None:
    if cluster.type != Cluster.EDS:
        return None
    named: str = cluster.eds_cluster_config.service_name or cluster.name
    return named


def _of_listener(listener: Listener) -> Iterator[Reference]:
    chains = list(listener.filter_chains)
    if listener.HasField("default_filter_chain"):
        chains.append(listener.default_filter_chain)
    for chain in chains:
        for network_filter in chain.filters:
            if not network_filter.typed_config.Is(HttpConnectionManager.DESCRIPTOR):
                continue
            manager = HttpConnectionManager.FromString(network_filter.typed_config.value)
            if manager.HasField("rds"):
                yield ROUTE, manager.rds.route_config_name
            yield from _of_routes(manager.route_config)
            for http_filter in manager.http_filters:
                if http_filter.HasField("config_discovery"):
                    yield EXTENSION_CONFIG, http_filter.name


def _of_routes(routes: RouteConfiguration) -> Iterator[Reference]:
    for host in routes.virtual_hosts:
        for route in host.routes:
            if route.HasField("route"):
                for cluster in _clusters_of(route.route):
                    yield CLUSTER, cluster


def _clusters_of(action: RouteAction) -> Iterator[str]:
    # A cluster named by a header or by a plugin is known only at request time.
    if action.cluster:
        yield action.cluster
    for weighted in action.weighted_clusters.clusters:
        if weighted.name:
            yield weighted.name
    for mirror in action.request_mirror_policies:
        if mirror.cluster:
            yield mirror.cluster
