"""Model clients: they apply what they hear as Envoy does, and keep what they believe. Both directions are queues.

A client refuses resources whose revision is BAD: either the whole response (as on a decoding error) or only these (as
on an error that shows while building a cluster).
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DiscoveryRequest
from xds_kit import INTERNAL, POLICY, any_resource, assignment

from xds_server.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE, Resource
from xds_server.session import Session
from xds_server.session_delta import DeltaSession
from xds_server.session_sotw import SotwSession
from xds_server.snapshot import Snapshot

NAMES = {
    CLUSTER: ("a", "b", "c"),
    ENDPOINT: ("a", "b", "c"),
    LISTENER: ("l", "m"),
    ROUTE: ("r", "s"),
    POLICY: ("p", "q"),
}
WILDCARDS = (CLUSTER, LISTENER)
BAD = 4
REVISIONS = (1, 2, 3, BAD)
EMPTY = {name: assignment(name) for name in NAMES[ENDPOINT]}
_EVERYTHING = [any_resource(kind, name, rev) for kind, names in NAMES.items() for name in names for rev in REVISIONS]
BY_CONTENT = {(each.type_url, each.body): each for each in [*_EVERYTHING, *EMPTY.values()]}
BAD_CONTENT = {any_resource(kind, name, BAD) for kind, names in NAMES.items() for name in names}


class ModelClient(ABC):
    """What both variants share: beliefs, queues, reconnecting."""

    def __init__(self, *, atomic: bool) -> None:
        # Does one bad resource cost the whole response?
        self.atomic = atomic
        self.held: dict[str, dict[str, Resource]] = {type_url: {} for type_url in NAMES}
        self.wanted: dict[str, set[str]] = {type_url: set() for type_url in NAMES}
        self.started: set[str] = set()
        self.to_client: deque[Any] = deque()
        self.to_server: deque[Any] = deque()
        self.session: Session[Any, Any] = self.new_session()
        self.now = 0.0

    @abstractmethod
    def new_session(self) -> Session[Any, Any]: ...

    @abstractmethod
    def greet(self, type_url: str) -> None:
        """Send the first request of a type on this stream."""

    @abstractmethod
    def change(self, type_url: str, subscribe: set[str], unsubscribe: set[str]) -> None:
        """Say that the names have changed."""

    @abstractmethod
    def hear(self, response: Any) -> None:
        """Apply a response and answer it."""

    # --- what happens ---

    def offer(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.session.offer(snapshot)

    def start(self, type_url: str) -> None:
        if type_url not in self.started:
            self.started.add(type_url)
            self.greet(type_url)

    def subscribe(self, type_url: str, name: str) -> None:
        self.wanted[type_url].add(name)
        if type_url in self.started:
            self.change(type_url, {name}, set())
        else:
            self.start(type_url)

    def unsubscribe(self, type_url: str, name: str) -> None:
        if name in self.wanted[type_url]:
            self.wanted[type_url].discard(name)
            self.held[type_url].pop(name, None)
            self.change(type_url, set(), {name})

    def server_reads(self) -> bool:
        if not self.to_server:
            return False
        self.session.receive(self.to_server.popleft(), self.now)
        return True

    def server_writes(self) -> bool:
        response = self.session.next_response(self.now)
        if response is None:
            return False
        self.to_client.append(response)
        return True

    def client_reads(self) -> bool:
        if not self.to_client:
            return False
        self.hear(self.to_client.popleft())
        return True

    def reconnect(self, *, forgetful: bool) -> None:
        """The stream breaks; what was under way is lost. A forgetful client claims to have what it has lost."""
        self.to_client.clear()
        self.to_server.clear()
        self.session = self.new_session()
        self.session.offer(self.snapshot)
        started, self.started = self.started, set()
        for type_url in NAMES:
            # A client whose names are all gone would now seem to ask for everything.
            if type_url in started and (type_url in WILDCARDS or self.wanted[type_url]):
                self.start(type_url)
                if forgetful and type_url in (ENDPOINT, ROUTE):
                    self.held[type_url].clear()

    def settle(self) -> None:
        """Let everything under way arrive; fails where it never ends."""
        for _ in range(2_000):
            if not (self.server_reads() or self.server_writes() or self.client_reads()):
                return
        raise AssertionError("client and server never fall silent")

    def expected(self, type_url: str) -> dict[str, Resource]:
        """What the client must believe in the end."""
        served = self.snapshot.of_type(type_url)
        if type_url in WILDCARDS:
            return dict(served)
        return {name: served[name] for name in self.wanted[type_url] if name in served}

    # --- applying ---

    def wants(self, type_url: str, name: str) -> bool:
        return type_url in WILDCARDS or name in self.wanted[type_url]

    def take(self, type_url: str, resources: Mapping[str, Resource], removed: Iterable[str]) -> bool:
        """Apply a response; was it good?"""
        bad = {name for name, resource in resources.items() if resource in BAD_CONTENT}
        # One bad assignment always costs its whole response.
        if bad and (self.atomic or type_url == ENDPOINT):
            return False
        for name, resource in resources.items():
            if name not in bad and self.wants(type_url, name):
                self.held[type_url][name] = resource
        for name in removed:
            # Envoy keeps the endpoints of a cluster whose assignment is merely removed.
            if type_url != ENDPOINT:
                self.held[type_url].pop(name, None)
        return not bad


class DeltaModel(ModelClient):
    def new_session(self) -> DeltaSession:
        return DeltaSession(0.0, ack_timeout_s=1e9)

    def greet(self, type_url: str) -> None:
        have = {name: resource.version for name, resource in self.held[type_url].items()}
        request = DeltaDiscoveryRequest(type_url=type_url, initial_resource_versions=have)
        if type_url not in WILDCARDS:
            request.resource_names_subscribe.extend(sorted(self.wanted[type_url]))
        self.to_server.append(request)

    def change(self, type_url: str, subscribe: set[str], unsubscribe: set[str]) -> None:
        self.to_server.append(
            DeltaDiscoveryRequest(
                type_url=type_url,
                resource_names_subscribe=sorted(subscribe),
                resource_names_unsubscribe=sorted(unsubscribe),
            )
        )

    def hear(self, response: Any) -> None:
        type_url = response.type_url
        names = [entry.name for entry in response.resources] + list(response.removed_resources)
        assert len(names) == len(set(names)), "one name twice in a response"
        resources = {entry.name: BY_CONTENT[type_url, entry.resource.value] for entry in response.resources}
        assert all(entry.version == resources[entry.name].version for entry in response.resources)
        good = self.take(type_url, resources, response.removed_resources)
        request = DeltaDiscoveryRequest(type_url=type_url, response_nonce=response.nonce)
        if not good:
            request.error_detail.code, request.error_detail.message = INTERNAL, "bad"
        self.to_server.append(request)


class SotwModel(ModelClient):
    def __init__(self, *, atomic: bool) -> None:
        self.versions: dict[str, str] = {}
        self.nonces: dict[str, str] = {}
        super().__init__(atomic=atomic)

    def new_session(self) -> SotwSession:
        self.nonces = {}
        return SotwSession(0.0, ack_timeout_s=1e9)

    def greet(self, type_url: str) -> None:
        self._request(type_url)

    def change(self, type_url: str, subscribe: set[str], unsubscribe: set[str]) -> None:
        self._request(type_url)

    def _request(self, type_url: str, *, error: bool = False) -> None:
        request = DiscoveryRequest(
            type_url=type_url,
            version_info=self.versions.get(type_url, ""),
            response_nonce=self.nonces.get(type_url, ""),
            resource_names=() if type_url in WILDCARDS else sorted(self.wanted[type_url]),
        )
        if error:
            request.error_detail.code, request.error_detail.message = INTERNAL, "bad"
        self.to_server.append(request)

    def hear(self, response: Any) -> None:
        type_url = response.type_url
        found = [BY_CONTENT[type_url, entry.value] for entry in response.resources]
        resources = {resource.name: resource for resource in found}
        assert len(resources) == len(found), "one name twice in a response"
        removed = set(self.held[type_url]) - resources.keys() if type_url in WILDCARDS else set()
        good = self.take(type_url, resources, removed)
        self.nonces[type_url] = response.nonce
        if good:
            self.versions[type_url] = response.version_info
        self._request(type_url, error=not good)
