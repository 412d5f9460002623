"""Small real resources, and drivers that speak to a session as a client would."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.config_source_pb2 import ApiVersion, ConfigSource
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.http.router.v3.router_pb2 import Router
from envoy.extensions.filters.http.set_metadata.v3.set_metadata_pb2 import Config as SetMetadata
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.service.discovery.v3.discovery_pb2 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)

from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE, Resource
from xds_server.session import DEFAULT_LIMITS, Limits, Session
from xds_server.session_delta import DeltaSession
from xds_server.session_sotw import SotwSession
from xds_server.snapshot import Snapshot

POLICY = "type.googleapis.com/recursant.v1.AgentPolicy"
INTERNAL = 13  # the code that Envoy sends with every NACK


def _resource(type_url: str, name: str, message: Any) -> Resource:
    return Resource.of(type_url, name, message.SerializeToString(deterministic=True))


def _from_ads(source: ConfigSource) -> None:
    source.ads.SetInParent()
    source.resource_api_version = ApiVersion.V3


def cluster(name: str, timeout_s: int = 1, *, service_name: str = "") -> Resource:
    """An EDS cluster; another timeout is another content."""
    message = Cluster(name=name, type=Cluster.EDS)
    message.connect_timeout.seconds = timeout_s
    _from_ads(message.eds_cluster_config.eds_config)
    message.eds_cluster_config.service_name = service_name
    return _resource(CLUSTER, name, message)


def half_bad_cluster(name: str) -> Resource:
    """A cluster that decodes, and that Envoy refuses only while building it: its ring is larger than it may be."""
    message = Cluster(name=name, type=Cluster.STATIC, lb_policy=Cluster.RING_HASH)
    message.connect_timeout.seconds = 1
    message.ring_hash_lb_config.minimum_ring_size.value = 2_000
    message.ring_hash_lb_config.maximum_ring_size.value = 1_000
    return _resource(CLUSTER, name, message)


def static_cluster(name: str, timeout_s: int = 1) -> Resource:
    """A cluster without EDS."""
    message = Cluster(name=name, type=Cluster.STATIC)
    message.connect_timeout.seconds = timeout_s
    return _resource(CLUSTER, name, message)


def assignment(name: str, *ports: int) -> Resource:
    """Endpoints on loopback; without ports an empty assignment."""
    message = ClusterLoadAssignment(cluster_name=name)
    if ports:
        locality = message.endpoints.add()
        for port in ports:
            address = locality.lb_endpoints.add().endpoint.address.socket_address
            address.address, address.port_value = "127.0.0.1", port
    return _resource(ENDPOINT, name, message)


def routes(name: str, *clusters: str) -> Resource:
    """A route table with one route to each cluster."""
    message = RouteConfiguration(name=name)
    host = message.virtual_hosts.add(name="all", domains=["*"])
    for target in clusters:
        route = host.routes.add()
        route.match.prefix = f"/{target}"
        route.route.cluster = target
    return _resource(ROUTE, name, message)


def listener(name: str, table: str, port: int = 1, *, extension: str = "") -> Resource:
    """A listener that takes its routes from RDS, and an HTTP filter from ECDS where one is named."""
    manager = HttpConnectionManager(stat_prefix=name)
    manager.rds.route_config_name = table
    _from_ads(manager.rds.config_source)
    if extension:
        discovery = manager.http_filters.add(name=extension).config_discovery
        _from_ads(discovery.config_source)
        discovery.type_urls.append("type.googleapis.com/" + SetMetadata.DESCRIPTOR.full_name)
    manager.http_filters.add(name="envoy.filters.http.router").typed_config.Pack(Router())
    message = Listener(name=name)
    message.address.socket_address.address, message.address.socket_address.port_value = "127.0.0.1", port
    message.filter_chains.add().filters.add(name="hcm").typed_config.Pack(manager)
    return _resource(LISTENER, name, message)


def other(type_url: str, name: str, content: str = "1") -> Resource:
    """A resource of a type whose content nobody here reads."""
    return Resource.of(type_url, name, f"{name}={content}".encode())


def any_resource(type_url: str, name: str, revision: int = 1) -> Resource:
    """A resource of any type; another revision is another content."""
    match type_url:
        case _ if type_url == CLUSTER:
            return static_cluster(name, revision)
        case _ if type_url == ENDPOINT:
            return assignment(name, revision)
        case _ if type_url == LISTENER:
            return listener(name, "table", revision)
        case _ if type_url == ROUTE:
            return routes(name, f"cluster-{revision}")
        case _:
            return other(type_url, name, str(revision))


TYPES = (CLUSTER, ENDPOINT, LISTENER, EXTENSION_CONFIG, ROUTE, POLICY)


def snapshot(*resources: Resource) -> Snapshot:
    """A snapshot of these."""
    return Snapshot(resources)


@dataclass
class DeltaClient:
    """Drives a delta session."""

    limits: Limits = DEFAULT_LIMITS
    now: float = 100.0
    session: DeltaSession = field(init=False)

    def __post_init__(self) -> None:
        self.session = DeltaSession(self.now, ack_timeout_s=10.0, limits=self.limits)

    def ask(
        self,
        type_url: str,
        *subscribe: str,
        leave: Sequence[str] = (),
        have: Mapping[str, str] | None = None,
        nonce: str = "",
        error: str | None = None,
        node: str = "",
    ) -> list[DeltaDiscoveryResponse]:
        """Send a request; return everything that the server then says."""
        request = DeltaDiscoveryRequest(
            type_url=type_url,
            resource_names_subscribe=subscribe,
            resource_names_unsubscribe=leave,
            initial_resource_versions=have or {},
            response_nonce=nonce,
        )
        request.node.id = node
        if error is not None:
            request.error_detail.code, request.error_detail.message = INTERNAL, error
        self.session.receive(request, self.now)
        return self.hear()

    def hear(self) -> list[DeltaDiscoveryResponse]:
        """What the server has to say."""
        return list(drain(self.session, self.now))

    def serve(self, *resources: Resource) -> list[DeltaDiscoveryResponse]:
        """The server gets a new snapshot."""
        self.session.offer(snapshot(*resources))
        return self.hear()

    def ack(self, response: DeltaDiscoveryResponse) -> list[DeltaDiscoveryResponse]:
        return self.ask(response.type_url, nonce=response.nonce)

    def nack(self, response: DeltaDiscoveryResponse, error: str = "no") -> list[DeltaDiscoveryResponse]:
        return self.ask(response.type_url, nonce=response.nonce, error=error)


@dataclass
class SotwClient:
    """Drives a state-of-the-world session; keeps what a client must repeat in each request."""

    limits: Limits = DEFAULT_LIMITS
    now: float = 100.0
    session: SotwSession = field(init=False)
    names: dict[str, Sequence[str]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    nonces: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session = SotwSession(self.now, ack_timeout_s=10.0, limits=self.limits)

    def ask(
        self,
        type_url: str,
        *names: str,
        version: str | None = None,
        nonce: str | None = None,
        error: str | None = None,
        node: str = "",
    ) -> list[DiscoveryResponse]:
        """Send a request; return everything that the server then says."""
        self.names[type_url] = names
        request = DiscoveryRequest(
            type_url=type_url,
            resource_names=names,
            version_info=self.versions.get(type_url, "") if version is None else version,
            response_nonce=self.nonces.get(type_url, "") if nonce is None else nonce,
        )
        request.node.id = node
        if error is not None:
            request.error_detail.code, request.error_detail.message = INTERNAL, error
        self.session.receive(request, self.now)
        return self.hear()

    def hear(self) -> list[DiscoveryResponse]:
        """What the server has to say."""
        found = list(drain(self.session, self.now))
        for response in found:
            self.nonces[response.type_url] = response.nonce
        return found

    def serve(self, *resources: Resource) -> list[DiscoveryResponse]:
        """The server gets a new snapshot."""
        self.session.offer(snapshot(*resources))
        return self.hear()

    def ack(self, response: DiscoveryResponse) -> list[DiscoveryResponse]:
        self.versions[response.type_url] = response.version_info
        return self.ask(response.type_url, *self.names[response.type_url], nonce=response.nonce)

    def nack(self, response: DiscoveryResponse, error: str = "no") -> list[DiscoveryResponse]:
        return self.ask(response.type_url, *self.names[response.type_url], nonce=response.nonce, error=error)


def drain(session: Session[Any, Any], now: float) -> Iterable[Any]:
    """Everything that a session has to say now; fails if it never ends."""
    for _ in range(1_000):
        response = session.next_response(now)
        if response is None:
            return
        yield response
    raise AssertionError("the session never falls silent")


def names_of(response: DeltaDiscoveryResponse) -> list[str]:
    """The names of the resources in a delta response."""
    return [entry.name for entry in response.resources]


def bodies_of(response: DiscoveryResponse) -> list[bytes]:
    """The contents in a state-of-the-world response."""
    return [entry.value for entry in response.resources]


def types_of(responses: Iterable[DeltaDiscoveryResponse | DiscoveryResponse]) -> list[str]:
    """The type of each response."""
    return [response.type_url for response in responses]
