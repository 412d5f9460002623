"""What the transports share: their interface, their counters, and how a failing session ends its stream."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from extproc.grpc import status
from extproc.stream import Session, StreamError, Unready

PROCESS_METHOD: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"

# Room for what surrounds a body of the largest allowed size in its message: the headers' attributes and metadata,
# which Envoy may repeat beside the body.
MESSAGE_MARGIN_BYTES: Final = 256 * 1024

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TransportStats:
    """What a transport counts: plain integers on the hot path, read by the metrics at scrape time.

    Attributes:
        connections_open: transport connections now; always 0 for grpcio, which does not tell.
        streams_open: ext_proc streams now.
        streams_total: ext_proc streams ever begun.
        errors: by kind, e.g. `protocol_error`, `session`, `drain_timeout`. The kinds are ours, so bounded.
    """

    connections_open: int = 0
    streams_open: int = 0
    streams_total: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class Transport(Protocol):
    """A server of ext_proc streams."""

    stats: TransportStats

    async def listen(self, addresses: Sequence[str]) -> list[str]:
        """Serve on each of `addresses`, `unix:/path` or `host:port`. Called once.

        Returns the addresses as bound: port 0 is replaced by the one that the system gave.

        Raises:
            AddressError: an address cannot be parsed or bound; the text says why.
        """

    async def drain(self, timeout_s: float) -> None:
        """Take no new streams, let the running ones end for at most `timeout_s` seconds, then end the rest.

        Every session is closed when this returns, and every socket file of ours removed.
        """


def session_failure(error: Exception, stats: TransportStats) -> tuple[int, str]:
    """The gRPC status and message that end a stream whose session raised `error`; counts it.

    A `StreamError` is the peer's fault, `Unready` nobody's. Anything else is ours: it goes to the log with its
    traceback, and the peer learns nothing of it.
    """
    if isinstance(error, Unready):
        stats.errors["unready"] += 1
        return status.UNAVAILABLE, str(error)
    if isinstance(error, StreamError):
        stats.errors["stream_error"] += 1
        return status.INVALID_ARGUMENT, str(error)
    stats.errors["session"] += 1
    _log.error("a session failed", exc_info=error)
    return status.INTERNAL, "internal error"


def close_session(session: Session, stats: TransportStats) -> None:
    """Close `session`; a failure in there is logged and counted, for the stream is over either way."""
    try:
        session.close()
    except Exception as error:  # noqa: BLE001 - one session's bug must not cost the connection its other streams
        session_failure(error, stats)
