"""The calls of grpc.health.v1 (extproc.grpc.health)."""

from abc import ABC, abstractmethod

from extproc.grpc import health, response, status
from extproc.grpc.context import ServerContext
from extproc.grpc.framing import FramingError, MessageReader, framed
from extproc.http2.connection import Connection
from extproc.http2.stream import Stream

# A HealthCheckRequest holds a service's name, no more.
_MAX_REQUEST_BYTES = 1_024


class _HealthCall(ABC):
    """A call with one request message; `_answer` is the method."""

    __slots__ = ("_asked", "_connection", "_context", "_reader", "_stream")

    def __init__(self, context: ServerContext, connection: Connection, stream: Stream) -> None:
        self._context = context
        self._connection = connection
        self._stream = stream
        self._reader = MessageReader(_MAX_REQUEST_BYTES)
        self._asked = False

    def data(self, payload: bytes) -> None:
        """See `StreamHandler`."""
        if self._asked:
            return
        try:
            messages = self._reader.feed(payload)
        except FramingError as error:
            self._end(error.status, str(error))
            return
        if not messages:
            return
        self._asked = True
        try:
            health_now = self._context.health_of(messages[0])
        except ValueError as error:
            self._end(status.INVALID_ARGUMENT, f"not a HealthCheckRequest: {error}")
        else:
            self._answer(health_now)

    def ended(self) -> None:
        """See `StreamHandler`."""
        if not self._asked:
            self._end(status.INTERNAL, "the stream ended without a request")

    def closed(self) -> None:  # noqa: B027 - a check holds nothing that must be given back; a watch does
        """See `StreamHandler`."""

    def finish(self) -> None:
        """See `StreamHandler`."""
        self._end(status.UNAVAILABLE, "the server ends")

    @abstractmethod
    def _answer(self, health_now: bytes) -> None:
        """The request has come: say how it is now."""

    def _send(self, message: bytes) -> None:
        if not self._stream.answered:
            self._connection.send_headers(self._stream, response.HEADERS)
        self._connection.send_data(self._stream, framed(message))

    def _end(self, code: int, text: str = "") -> None:
        self._asked = True
        make = response.trailers if self._stream.answered else response.trailers_only
        self._connection.end(self._stream, make(code, text))


class CheckCall(_HealthCall):
    """`Check`: one answer."""

    __slots__ = ()

    def _answer(self, health_now: bytes) -> None:
        if health_now == health.SERVICE_UNKNOWN:
            self._end(status.NOT_FOUND, "unknown service")
        else:
            self._send(health_now)
            self._end(status.OK)


class WatchCall(_HealthCall):
    """`Watch`: the state now, and once more when we begin to drain."""

    __slots__ = ()

    def _answer(self, health_now: bytes) -> None:
        self._send(health_now)
        if health_now == health.SERVING:
            self._context.watches.add(self)

    def tell_draining(self) -> None:
        """See `Watch` (extproc.grpc.context)."""
        self._send(health.NOT_SERVING)
        self._end(status.OK)

    def closed(self) -> None:
        """See `StreamHandler`."""
        self._context.watches.discard(self)
