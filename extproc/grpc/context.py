"""What the calls of one server share."""

from dataclasses import dataclass, field
from typing import Protocol

from extproc.grpc import health
from extproc.stream import SessionFactory
from extproc.transports.base import TransportStats


class Watch(Protocol):
    """Somebody who watches our health."""

    def tell_draining(self) -> None:
        """We take no new streams from now on."""


@dataclass(slots=True)
class ServerContext:
    """What the calls of one server share.

    Attributes:
        factory: makes the session of each ext_proc stream.
        max_message_bytes: the largest message taken.
        max_buffered_bytes: bytes of messages that are not whole yet, of all streams together: clients that begin
            many and complete none are refused beyond it.
        stats: counted here.
        draining: health checks say NOT_SERVING.
        buffered: bytes now of what `max_buffered_bytes` bounds.
        watches: open Watch calls.
    """

    factory: SessionFactory
    max_message_bytes: int
    max_buffered_bytes: int
    stats: TransportStats = field(default_factory=TransportStats)
    draining: bool = False
    buffered: int = 0
    watches: set[Watch] = field(default_factory=set)

    def drain(self) -> None:
        """No new streams from now on: tell those who watch our health."""
        self.draining = True
        for watch in list(self.watches):
            watch.tell_draining()

    def health_of(self, request: bytes) -> bytes:
        """The serialised HealthCheckResponse to a serialised HealthCheckRequest.

        Raises:
            ValueError: it is none.
        """
        if health.parse_request(request) not in health.SERVICES:
            return health.SERVICE_UNKNOWN
        return health.NOT_SERVING if self.draining else health.SERVING
