"""One HTTP/2 connection as a server sees it: a machine that eats bytes, calls stream handlers, and makes bytes.

The order of the checks on each frame is that of RFC 9113; the section is named where a branch comes from it.
"""

from collections.abc import Callable
from typing import Final

from extproc.http2 import frames, settings
from extproc.http2.blocks import BlockAssembler
from extproc.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from extproc.http2.headers import HeaderDecoder, MalformedError, RequestHead, check_trailers
from extproc.http2.limits import SETTINGS_COST, Limits, TokenBucket
from extproc.http2.registry import StreamRegistry
from extproc.http2.sender import Sender
from extproc.http2.stream import NOBODY, Stream, StreamHandler
from extproc.http2.windows import ReceiveWindow

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
        established: the client has proved that it speaks HTTP/2.
        failure: why we closed it; None where the client is not to blame.
    """

    def __init__(self, application: Application, limits: Limits, on_output: Callable[[], None]) -> None:
        self.closed = False
        self.established = False
        self.failure: Http2ConnectionError | None = None
        self._application = application
        self._limits = limits
        self._on_output = on_output
        self._announced = False
        self._running = False
        self._now = 0.0

        self._input = b""
        self._registry = StreamRegistry()
        # The same dict, for the frame loop.
        self._streams = self._registry.live
        self._block = BlockAssembler(limits)
        self._sender = Sender(limits.pending_bytes)
        self._receive_window = ReceiveWindow(limits.connection_window)
        self._decoder = HeaderDecoder(limits.header_list_bytes)
        self._settings_seen = False
        self._draining = False

        self._control = TokenBucket(limits.control)
        self._chatter = TokenBucket(limits.chatter)
        self._early_resets = TokenBucket(limits.early_resets)
        self._abandoned = TokenBucket(limits.abandoned)

        self._on_frame = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
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
        self._input = self._input + data if self._input else data

    def run(self, now: float, budget: int) -> bool:
        """Work on at most `budget` received frames. True when whole frames are left for another call.

        Args:
            now: seconds of a clock that does not go back.
            budget: bounds how long the output waits for the end of a large input.
        """
        self._now = now
        self._running = True
        try:
            more = not self.closed and self._read_frames(budget)
        except Http2ConnectionError as error:
            self._fail(error)
            more = False
        finally:
            self._running = False
        self._check_pending()
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
        self._finish_all(self._sender.resume())
        self._announce()

    def lost(self) -> None:
        """The transport is gone: every stream ends here."""
        self.closed = True
        self._close_streams()

    @property
    def open_streams(self) -> int:
        """Streams now."""
        return len(self._streams)

    # --- draining ---

    def drain(self) -> None:
        """Ask the client to open no more streams here (§6.8): a warning first, for those already on their way."""
        if self._draining or self.closed:
            return
        self._draining = True
        self._sender.control(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR))
        self._sender.control(frames.ping(_DRAIN_PING, ack=False))
        self._announce()

    @property
    def drained(self) -> bool:
        """No stream is left, and none will come."""
        return self._registry.last_accepted is not None and not self._streams

    def finish(self) -> None:
        """End what still runs, in order, and accept nothing more."""
        if self.closed:
            return
        self._stop_accepting()
        for stream in list(self._streams.values()):
            stream.handler.finish()
        self._announce()

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
        if stream.local_closed:
            return
        stream.local_closed = True
        if stream.pending is not None:
            stream.trailers = block
        else:
            self._finish(stream, block)
        self._announce()

    # --- reading ---

    def _read_frames(self, budget: int) -> bool:
        data = self._input
        position = 0
        if not self.established:
            if not self._read_preface(data):
                return False
            position = len(frames.PREFACE)
        end = len(data)
        largest = self._limits.frame_bytes
        unpack = frames.HEADER.unpack_from
        on_frame = self._on_frame
        try:
            while end - position >= frames.HEADER_BYTES:
                high, low, kind, flags, stream_id = unpack(data, position)
                size = high << 8 | low
                if size > largest:
                    raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a frame above MAX_FRAME_SIZE")  # §4.2
                start = position + frames.HEADER_BYTES
                if start + size > end:
                    break
                if budget <= 0:
                    return True
                budget -= 1
                position = start + size
                if self._block.open and kind != frames.CONTINUATION:  # §6.10
                    raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
                if not self._settings_seen and kind != frames.SETTINGS:  # §3.4
                    raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS")
                try:
                    if kind < len(on_frame):
                        on_frame[kind](flags, stream_id & frames.STREAM_ID_MASK, data[start:position])
                    else:
                        self._spend(self._control, "unknown frames")  # §5.5: ignored
                except Http2StreamError as error:
                    self._on_stream_error(error)
        finally:
            self._input = data[position:]
        return False

    def _read_preface(self, data: bytes) -> bool:
        """True once the whole preface is there (§3.4)."""
        expected = frames.PREFACE
        if not data.startswith(expected[: len(data)]):
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "not an HTTP/2 client")
        self.established = len(data) >= len(expected)
        return self.established

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        try:
            increment = self._receive_window.consume(size)
        except OverflowError:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window") from None
        if increment:
            self._sender.control(frames.window_update(0, increment))
        stream = self._streams.get(stream_id)
        if stream is None:
            self._registry.check_late(stream_id, frames.DATA)
            self._spend(self._control, "frames on closed streams")
            return
        if stream.remote_closed:  # §5.1, half-closed (remote)
            raise Http2StreamError(stream_id, ErrorCode.STREAM_CLOSED, "DATA after END_STREAM")
        try:
            increment = stream.receive_window.consume(size)
        except OverflowError:
            raise Http2StreamError(
                stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the stream's window"
            ) from None
        if flags & frames.PADDED:
            payload = frames.without_padding(payload)
        end = flags & frames.END_STREAM
        if stream.content_left is not None:
            self._count_content(stream, len(payload), ended=bool(end))
        if end:
            stream.remote_closed = True
        elif increment:
            self._sender.control(frames.window_update(stream_id, increment))
        if payload:
            stream.received = True
            stream.handler.data(payload)
        elif not end:
            self._spend(self._control, "empty DATA")
        if end and self._registry.alive(stream):
            stream.handler.ended()

    def _count_content(self, stream: Stream, size: int, *, ended: bool) -> None:
        """Hold the content against its content-length (§8.1.1)."""
        left = (stream.content_left or 0) - size
        if left < 0 or (ended and left):
            raise Http2StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR, "content-length is wrong")
        stream.content_left = left

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:  # §5.1.1: the client's streams are odd; 0 is the connection
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that no client opens")
        if flags & frames.PADDED:
            payload = frames.without_padding(payload)
        if flags & frames.HAS_PRIORITY:
            payload = frames.without_priority(payload)
        end = bool(flags & frames.END_STREAM)
        if flags & frames.END_HEADERS:
            self._on_header_block(stream_id, end, payload)
        else:
            self._block.begin(stream_id, payload, end_stream=end)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._block.add(stream_id, payload)
        if flags & frames.END_HEADERS:
            block, end = self._block.end()
            self._on_header_block(stream_id, end, block)

    def _on_header_block(self, stream_id: int, end: bool, block: bytes) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._on_trailers(stream, end, block)
        elif stream_id > self._registry.highest:
            self._registry.highest = stream_id
            self._open(stream_id, end, block)
        else:
            # The block is decoded whatever becomes of it: the table must follow (§4.3).
            self._decoder.decode(block)
            self._registry.check_late(stream_id, frames.HEADERS)
            self._spend(self._control, "frames on closed streams")

    def _open(self, stream_id: int, end: bool, block: bytes) -> None:
        try:
            head = self._decoder.request(block)
            if end and head.content_length:
                raise MalformedError("content-length without content")
        except MalformedError as error:
            raise Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from None
        if self._registry.last_accepted is not None:
            return  # §6.8: after our last GOAWAY the client knows that nobody works on it
        if len(self._streams) >= self._limits.concurrent_streams:  # §5.1.2
            raise Http2StreamError(stream_id, ErrorCode.REFUSED_STREAM, "too many streams")
        stream = Stream(
            stream_id, self._sender.settings.initial_window, self._limits.stream_window, head.content_length
        )
        stream.remote_closed = end
        self._registry.add(stream)
        stream.handler = self._application(self, stream, head)
        if end and self._registry.alive(stream):
            stream.handler.ended()

    def _on_trailers(self, stream: Stream, end: bool, block: bytes) -> None:
        fields = self._decoder.decode(block)
        stream_id = stream.stream_id
        if stream.remote_closed:
            raise Http2StreamError(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS after END_STREAM")
        if not end:  # §8.1
            raise Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "trailers without END_STREAM")
        try:
            check_trailers(fields)
        except MalformedError as error:
            raise Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from None
        if stream.content_left:
            self._count_content(stream, 0, ended=True)
        stream.remote_closed = True
        stream.handler.ended()

    def _on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        self._spend(self._control, "PRIORITY")
        if stream_id == 0:  # §6.3
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY on the connection")
        if len(payload) != 5:
            error = ErrorCode.FRAME_SIZE_ERROR
            if stream_id in self._streams:
                raise Http2StreamError(stream_id, error, "PRIORITY of another length than 5")
            # An idle stream cannot be reset (§6.4).
            raise Http2ConnectionError(error, "PRIORITY of another length than 5")

    def _on_rst_stream(self, _: int, stream_id: int, payload: bytes) -> None:
        frames.read_u32(payload, "RST_STREAM")
        stream = self._streams.get(stream_id)
        if stream is None:
            self._registry.must_not_be_idle(stream_id, "RST_STREAM")
            self._spend(self._chatter, "RST_STREAM on closed streams")
            return
        if not stream.received:
            self._spend(self._early_resets, "streams reset before their content")
        elif not stream.answered:
            self._spend(self._abandoned, "streams reset before their answer")
        self._close(stream)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._spend(self._control, "SETTINGS", SETTINGS_COST)
        frames.on_connection(stream_id, "SETTINGS")
        if flags & frames.ACK:
            if payload:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS acknowledgement with content")
            if not self._settings_seen:  # §3.4: the preface ends with the client's settings, not with an answer
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS")
            return
        self._settings_seen = True
        finished = self._sender.apply_settings(frames.read_settings(payload), self._streams)
        self._sender.control(frames.SETTINGS_ACK)
        self._finish_all(finished)

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")  # §8.4

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._spend(self._control, "PING")
        frames.on_connection(stream_id, "PING")
        if len(payload) != 8:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "PING of another length than 8")
        if not flags & frames.ACK:
            self._sender.control(frames.ping(payload, ack=True))
        elif self._draining and payload == _DRAIN_PING:
            # The client has read our warning, and what it opened before has arrived.
            self._stop_accepting()

    def _on_goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        # The client opens no more streams; those that it has go on, and then it closes.
        self._spend(self._control, "GOAWAY")
        frames.on_connection(stream_id, "GOAWAY")
        if len(payload) < 8:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY shorter than 8")

    def _on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        self._spend(self._chatter, "WINDOW_UPDATE")
        increment = frames.read_u32(payload, "WINDOW_UPDATE") & frames.INCREMENT_MASK
        if stream_id == 0:
            if increment == 0:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._finish_all(self._sender.update_connection(increment))
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            self._registry.must_not_be_idle(stream_id, "WINDOW_UPDATE")
            return
        if increment == 0:
            raise Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        if self._sender.update_stream(stream, increment):
            self._finish_all([stream])

    # --- endings ---

    def _finish_all(self, streams: list[Stream]) -> None:
        """Send the trailers of streams whose DATA is all out now."""
        for stream in streams:
            if stream.trailers is not None:
                self._finish(stream, stream.trailers)

    def _finish(self, stream: Stream, block: bytes) -> None:
        self._sender.headers(stream, block, end_stream=True)
        if not stream.remote_closed:
            # We need no more of the request (§8.1).
            self._send_reset(stream.stream_id, ErrorCode.NO_ERROR)
        self._close(stream)

    def _close(self, stream: Stream) -> None:
        """The stream is over."""
        stream.local_closed = True
        stream.remote_closed = True
        self._registry.remove(stream)
        self._sender.drop(stream)
        handler, stream.handler = stream.handler, NOBODY
        handler.closed()

    def _on_stream_error(self, error: Http2StreamError) -> None:
        # A client that opens more streams than we take may not have read our limit yet, and means no harm.
        refused = error.code is ErrorCode.REFUSED_STREAM
        self._spend(self._abandoned if refused else self._early_resets, "streams that had to be reset")
        self._send_reset(error.stream_id, error.code)
        stream = self._streams.get(error.stream_id)
        if stream is not None:
            self._close(stream)

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self._registry.remember_reset(stream_id)
        self._sender.control(frames.rst_stream(stream_id, code))

    def _spend(self, bucket: TokenBucket, what: str, cost: float = 1.0) -> None:
        if not bucket.spend(self._now, cost):
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"a flood of {what}")

    def _check_pending(self) -> None:
        # Not where it happens: that is in the middle of a session's work.
        if self._sender.overflowed and not self.closed:
            self._fail(Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "answers are not taken"))

    def _fail(self, error: Http2ConnectionError) -> None:
        self.failure = error
        self.closed = True
        self._input = b""
        self._sender.control(frames.goaway(self._registry.last_worked_on, error.code, error.text))
        self._close_streams()

    def _close_streams(self) -> None:
        while self._streams:
            self._close(next(reversed(self._streams.values())))

    def _announce(self) -> None:
        if not self._running and not self._announced:
            self._announced = True
            self._on_output()
