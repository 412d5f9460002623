"""One HTTP/2 connection as a server sees it: a machine that eats bytes, calls stream handlers, and makes bytes."""

from collections.abc import Callable
from typing import Final

from extproc.http2 import frames, settings
from extproc.http2.errors import ErrorCode, Http2ConnectionError
from extproc.http2.headers import RequestHead
from extproc.http2.lifecycle import Lifecycle
from extproc.http2.limits import Limits
from extproc.http2.receiver import Receiver
from extproc.http2.registry import StreamRegistry
from extproc.http2.sender import Sender
from extproc.http2.stream import Stream, StreamHandler

_DRAIN_PING: Final = b"draining"

# Makes the handler of a new stream. It may send at once, end the stream, or reset it.
Application = Callable[["Connection", Stream, RequestHead], StreamHandler]


class Connection:
    """The server's side of one connection.

    Feed it with `receive`, call `run` until it says that nothing is left, and write what `take` gives. It never
    raises for what a peer sends: it ends the stream, or `closed` turns true with a GOAWAY among the output.

    Args:
        application: makes the handler of each new stream.
        limits: bounds on what the client may do.
        on_output: called once when there is output that no `run` is about to return, to be taken soon.

    Attributes:
        closed: the connection is over; write what is left and close the transport.
        failure: why we closed it; None where the client is not to blame.
    """

    def __init__(self, application: Application, limits: Limits, on_output: Callable[[], None]) -> None:
        self.closed = False
        self.failure: Http2ConnectionError | None = None
        self._application = application
        self._limits = limits
        self._on_output = on_output
        self._announced = False
        self._running = False
        self._draining = False
        self._registry = StreamRegistry()
        self._sender = Sender(limits.pending_bytes)
        self._lifecycle = Lifecycle(self._registry, self._sender)
        self._receiver = Receiver(
            limits,
            self._registry,
            self._sender,
            self._lifecycle,
            open_stream=self._open_stream,
            on_pong=self._on_pong,
        )

    # --- the transport's side ---

    def start(self) -> None:
        """Say our settings; before anything else (§3.4)."""
        limits = self._limits
        ours = {
            settings.MAX_CONCURRENT_STREAMS: limits.concurrent_streams,
            settings.INITIAL_WINDOW_SIZE: limits.stream_window,
            settings.MAX_FRAME_SIZE: limits.frame_bytes,
            settings.MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
        }
        self._sender.control(frames.settings(ours))
        more = limits.connection_window - settings.DEFAULT_WINDOW
        if more > 0:
            self._sender.control(frames.window_update(0, more))

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer; `run` works on them."""
        self._receiver.feed(data)

    def run(self, now: float, budget: int) -> bool:
        """Work on at most `budget` received frames. True when whole frames are left for another call.

        Args:
            now: seconds of a clock that does not go back.
            budget: bounds how long the output waits for the end of a large input.
        """
        self._running = True
        try:
            more = not self.closed and self._receiver.run(now, budget)
        except Http2ConnectionError as error:
            self._fail(error)
            more = False
        finally:
            self._running = False
        return more

    def take(self) -> bytes:
        """What is to be written now."""
        self._check_pending()
        self._announced = False
        return self._sender.take()

    def pause(self) -> None:
        """The transport's buffer is full: hold DATA back."""
        self._sender.pause()

    def resume(self) -> None:
        """The transport's buffer has room again."""
        for stream in self._sender.resume():
            self._lifecycle.finish(stream)
        self._announce()

    def lost(self) -> None:
        """The transport is gone: every stream ends here."""
        self.closed = True
        self._receiver.discard()
        self._lifecycle.close_all()

    @property
    def established(self) -> bool:
        """The client has proved that it speaks HTTP/2."""
        return self._receiver.established

    @property
    def open_streams(self) -> int:
        """Streams now."""
        return len(self._registry.live)

    # --- draining ---

    def drain(self) -> None:
        """Ask the client to open no more streams here (§6.8): a warning first, for those already on their way.

        The caller takes the output.
        """
        if self._draining or self.closed:
            return
        self._draining = True
        self._sender.control(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR))
        self._sender.control(frames.ping(_DRAIN_PING, ack=False))

    @property
    def drained(self) -> bool:
        """No stream is left, and none will come."""
        return self._registry.last_accepted is not None and not self._registry.live

    def finish(self) -> None:
        """End what still runs, in order, and accept nothing more. The caller takes the output."""
        if self.closed:
            return
        self._stop_accepting()
        for stream in list(self._registry.live.values()):
            stream.handler.finish()

    def _stop_accepting(self) -> None:
        if self._registry.last_accepted is None:
            self._draining = True
            self._sender.control(frames.goaway(self._registry.stop_accepting(), ErrorCode.NO_ERROR))

    # --- the handlers' side ---

    def send_headers(self, stream: Stream, block: bytes) -> None:
        """Send the response's header block. Nothing may have been sent on the stream."""
        if not stream.local_closed:
            self._sender.headers(stream, block)
            self._announce()

    def send_data(self, stream: Stream, payload: bytes) -> None:
        """Send content; held back where the client's windows say so."""
        if not stream.local_closed:
            self._sender.data(stream, payload)
            self._announce()

    def end(self, stream: Stream, block: bytes) -> None:
        """End our side with a header block, after everything sent before. Once per stream; later calls do nothing."""
        self._lifecycle.end(stream, block)
        self._announce()

    # --- inside ---

    def _open_stream(self, stream: Stream, head: RequestHead) -> StreamHandler:
        return self._application(self, stream, head)

    def _on_pong(self, payload: bytes) -> None:
        if self._draining and payload == _DRAIN_PING:
            # The client has read our warning, and what it opened before has arrived.
            self._stop_accepting()

    def _check_pending(self) -> None:
        # Not where it happens: that is in the middle of a session's work.
        if self._sender.overflowed and not self.closed:
            self._fail(Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "answers are not taken"))

    def _fail(self, error: Http2ConnectionError) -> None:
        self.failure = error
        self.closed = True
        self._receiver.discard()
        self._sender.control(frames.goaway(self._registry.last_worked_on, error.code, error.text))
        self._lifecycle.close_all()

    def _announce(self) -> None:
        if not self._running and not self._announced:
            self._announced = True
            self._on_output()
