"""One ADS stream, sans I/O: requests, snapshots and the time go in, responses come out one by one.

A session queues nothing. `next_response` looks at what the client lacks of the newest snapshot at that moment, so a
slow client skips what was replaced meanwhile, and a fast one gets every type in the order of make before break:
clusters, endpoints, listeners, extensions, routes, and then what nothing refers to any more.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from xds_server.problems import LimitExceededError, ProtocolError
from xds_server.resource import CLUSTER, ENDPOINT, Resource
from xds_server.snapshot import Snapshot
from xds_server.status import ClientStatus, Event, Overdue, Pushed, Refused
from xds_server.substream import Substream
from xds_server.told import ABSENT, Phase, Verdict
from xds_server.traits import Order

Request = TypeVar("Request")
Response = TypeVar("Response")

# How long listeners and routes wait for a client to ask for the endpoints of a cluster that they may name. Envoy asks
# within a round trip; a client that never asks must not be kept from its routes.
ENDPOINTS_WAIT_S: Final = 1.0
_AFTER_ENDPOINTS: Final = (Order.LISTENER, Order.EXTENSION_CONFIG, Order.ROUTE)
_MAX_NODE_ID: Final = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """What one stream may ask for.

    Attributes:
        types: resource types.
        names: names in the subscription to one type, or versions that it claims to have.
    """

    types: int = 32
    names: int = 10_000


DEFAULT_LIMITS: Final = Limits()


class Session(ABC, Generic[Request, Response]):
    """What both protocol variants share.

    Args:
        now: a monotonic clock, in seconds; every `now` here is of the same clock.
        ack_timeout_s: a client that has not answered a push for so long is reported.
        limits: what the client may ask for.
    """

    protocol: str

    def __init__(self, now: float, *, ack_timeout_s: float, limits: Limits = DEFAULT_LIMITS) -> None:
        self._since = now
        self._ack_timeout_s = ack_timeout_s
        self._limits = limits
        self._node_id = ""
        self._snapshot: Snapshot | None = None
        # In push order.
        self._substreams: list[Substream] = []
        self._nonces = 0
        # EDS names of clusters just added, and until when they hold up what may refer to them.
        self._awaited: dict[str, float] = {}
        self._events: list[Event] = []

    # --- in ---

    @abstractmethod
    def receive(self, request: Request, now: float) -> None:
        """Take a request.

        Raises:
            ProtocolError: it is malformed.
            LimitExceededError: it asks for more than the limits allow.
        """

    def offer(self, snapshot: Snapshot) -> None:
        """Replace what is served. Before the first snapshot, requests wait."""
        self._snapshot = snapshot

    # --- out ---

    def next_response(self, now: float) -> Response | None:
        """The next response that the client needs, or None. Call it until it gives None, after every call above."""
        self._say_overdue(now)
        snapshot = self._snapshot
        if snapshot is None:
            return None
        for substream in self._substreams:
            if substream.traits.order in _AFTER_ENDPOINTS and self._endpoints_awaited(now):
                continue
            if (response := self._respond(substream, snapshot, Phase.MAKE, now)) is not None:
                return response
        # A client that refused its new routes still runs the old ones, and needs what they name.
        if self._endpoints_awaited(now) or not all(
            substream.settled for substream in self._substreams if substream.traits.refers
        ):
            return None
        for substream in self._substreams:
            if substream.traits.removed_last:
                response = self._respond(substream, snapshot, Phase.BREAK, now)
                if response is not None:
                    return response
        return None

    def wake_at(self) -> float | None:
        """When `next_response` should be called even if nothing happens; None: never."""
        deadlines = [substream.unanswered.overdue_at(self._ack_timeout_s) for substream in self._substreams]
        return min(
            (deadline for deadline in (*deadlines, *self._awaited.values()) if deadline is not None), default=None
        )

    def take_events(self) -> list[Event]:
        """What happened since the last call, for logs and counters."""
        events, self._events = self._events, []
        return events

    def status(self, now: float) -> ClientStatus:
        """How far the client follows."""
        types = tuple(substream.status(now, self._ack_timeout_s) for substream in self._substreams)
        return ClientStatus(self._node_id, self.protocol, self._since, types)

    # --- for the variants ---

    @abstractmethod
    def _respond(self, substream: Substream, snapshot: Snapshot, phase: Phase, now: float) -> Response | None:
        """Make and record the response that this type needs in this phase, if any."""

    @abstractmethod
    def _whole(self, type_url: str) -> bool:
        """Does each response of this type carry everything?"""

    def _meet(self, node_id: str, type_url: str, now: float) -> Substream:
        """The substream of a request. Only the first request of a stream must say who sends it."""
        if node_id:
            self._node_id = node_id[:_MAX_NODE_ID]
        if not type_url:
            raise ProtocolError("type_url is required on an aggregated stream")
        substream = next((found for found in self._substreams if found.type_url == type_url), None)
        if substream is None:
            if len(self._substreams) >= self._limits.types:
                raise LimitExceededError(f"more than {self._limits.types} resource types on one stream")
            substream = Substream(type_url, max_names=self._limits.names, whole=self._whole(type_url))
            self._substreams.append(substream)
            self._substreams.sort(key=lambda found: found.traits.order)
        substream.last_seen = now
        return substream

    def _record(
        self,
        substream: Substream,
        resources: Iterable[Resource],
        absent: Iterable[str],
        now: float,
        version: str | None = None,
    ) -> tuple[str, str]:
        """Take down a response; returns its nonce and version."""
        resources, absent = list(resources), list(absent)
        fresh = list(_fresh(substream, resources)) if substream.type_url == CLUSTER else []
        if substream.type_url == ENDPOINT:
            for name in (*(resource.name for resource in resources), *absent):
                self._awaited.pop(name, None)
        self._nonces += 1
        nonce = str(self._nonces)
        version = substream.record(nonce, resources, absent, now, version)
        self._events.append(Pushed(substream.type_url, version, len(resources), len(absent)))
        for cluster, added in fresh:
            self._follow_with_endpoints(cluster, added=added, now=now)
        return nonce, version

    def _reject(self, substream: Substream, nonce: str, reason: str) -> None:
        refused = substream.reject(nonce, reason)
        if substream.type_url == CLUSTER:
            # Clusters that were refused are not going to ask for endpoints.
            self._awaited.clear()
        self._events.append(Refused(substream.type_url, refused.version, tuple(refused.told), reason))

    # --- endpoints follow their clusters ---

    def _follow_with_endpoints(self, cluster: str, *, added: bool, now: float) -> None:
        """A cluster that was added or changed warms only when its endpoints come again, even unchanged ones.

        Nothing here waits for the ACK of the clusters: Envoy gives that only once they are warm.
        """
        endpoints = self._find(ENDPOINT)
        name = self._snapshot.endpoints_of(cluster) if self._snapshot is not None else None
        if endpoints is None or name is None:
            return
        if endpoints.subscription.wants(name) and not endpoints.push_again(name):
            return
        if added:
            # Even where the client asks for them: its word that it no longer does may be under way, from when the
            # cluster was taken away a moment ago, and another that it does again.
            self._awaited[name] = now + ENDPOINTS_WAIT_S

    def _endpoints_awaited(self, now: float) -> bool:
        self._awaited = {name: deadline for name, deadline in self._awaited.items() if deadline > now}
        return bool(self._awaited)

    def _find(self, type_url: str) -> Substream | None:
        return next((found for found in self._substreams if found.type_url == type_url), None)

    def _say_overdue(self, now: float) -> None:
        for substream in self._substreams:
            deadline = substream.unanswered.overdue_at(self._ack_timeout_s)
            oldest = substream.unanswered.oldest
            if deadline is not None and oldest is not None and now >= deadline:
                substream.unanswered.alarm()
                self._events.append(Overdue(substream.type_url, oldest.version, now - oldest.sent_at))


def _fresh(substream: Substream, clusters: Iterable[Resource]) -> Iterator[tuple[str, bool]]:
    """Those that the client may not run at this version yet, and whether they are new to it."""
    for cluster in clusters:
        told = substream.told.get(cluster.name)
        if told is None or told.version == ABSENT:
            yield cluster.name, True
        elif told.version != cluster.version or told.verdict is not Verdict.ACCEPTED:
            yield cluster.name, False
