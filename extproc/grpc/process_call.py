"""One ext_proc stream: its messages go to a session, and the session's answers out."""

from extproc.grpc import response, status
from extproc.grpc.context import ServerContext
from extproc.grpc.framing import FramingError, MessageReader, framed, whole_message
from extproc.http2.connection import Connection
from extproc.http2.stream import Stream
from extproc.stream import Session
from extproc.transports.base import close_session, session_failure


class ProcessCall:
    """A `StreamHandler` (extproc.http2.stream) around a session.

    The session is closed exactly once: when the client ends the stream, when we do, or when it breaks.
    """

    __slots__ = ("_connection", "_context", "_reader", "_session", "_stream")

    def __init__(self, context: ServerContext, connection: Connection, stream: Stream) -> None:
        self._context = context
        self._connection = connection
        self._stream = stream
        # Only while a message is not whole.
        self._reader: MessageReader | None = None
        self._session: Session | None = None
        stats = context.stats
        stats.streams_total += 1
        try:
            self._session = context.factory(self.send)
        except Exception as error:  # noqa: BLE001 - whatever a session raises ends its own stream only
            self._end(*session_failure(error, stats))
        else:
            stats.streams_open += 1

    def send(self, message: bytes) -> None:
        """Send one answer; dropped once the stream is over."""
        if self._session is None:
            return
        connection = self._connection
        stream = self._stream
        if not stream.answered:
            connection.send_headers(stream, response.HEADERS)
        connection.send_data(stream, framed(message))

    def data(self, payload: bytes) -> None:
        """See `StreamHandler`."""
        if self._reader is None:
            message = whole_message(payload, self._context.max_message_bytes)
            if message is not None:
                self._deliver(message)
                return
        if self._session is None:
            return
        try:
            messages = self._reassembled(payload)
        except FramingError as error:
            self._context.stats.errors["framing"] += 1
            self._end(error.status, str(error))
            return
        for message in messages:
            self._deliver(message)

    def ended(self) -> None:
        """See `StreamHandler`."""
        if self._reader is None:
            self._end(status.OK, "")
        else:
            self._context.stats.errors["framing"] += 1
            self._end(status.INTERNAL, "the stream ended within a message")

    def closed(self) -> None:
        """See `StreamHandler`."""
        self._close_session()

    def finish(self) -> None:
        """See `StreamHandler`. Envoy lets a request go on whose stream ends in order."""
        if self._session is not None:
            self._context.stats.errors["drain_timeout"] += 1
        self._end(status.OK, "")

    def _deliver(self, message: bytes) -> None:
        session = self._session
        if session is None:
            return
        try:
            answer = session.receive(message)
        except Exception as error:  # noqa: BLE001 - whatever a session raises ends its own stream only
            self._end(*session_failure(error, self._context.stats))
            return
        if answer is not None:
            self.send(answer)

    def _reassembled(self, payload: bytes) -> list[bytes]:
        context = self._context
        if self._reader is None:
            self._reader = MessageReader(context.max_message_bytes)
        reader = self._reader
        before = reader.buffered
        try:
            messages = reader.feed(payload)
        finally:
            context.buffered += reader.buffered - before
        if context.buffered > context.max_buffered_bytes:
            raise FramingError(status.RESOURCE_EXHAUSTED, "too many incomplete messages")
        if not reader.buffered:
            self._reader = None
        return messages

    def _end(self, code: int, text: str) -> None:
        self._close_session()
        if not self._stream.answered:
            block = response.trailers_only(code, text)
        elif code == status.OK:
            block = response.TRAILERS_OK
        else:
            block = response.trailers(code, text)
        self._connection.end(self._stream, block)

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        context = self._context
        context.stats.streams_open -= 1
        if self._reader is not None:
            context.buffered -= self._reader.buffered
            self._reader = None
        close_session(session, context.stats)
