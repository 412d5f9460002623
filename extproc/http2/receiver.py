"""What comes in on one connection: bytes, cut into frames, checked, and handed to the streams they belong to.

The order of the checks on each frame is that of RFC 9113; the section is named where a branch comes from it.
"""

from collections.abc import Callable

from extproc.http2 import frames
from extproc.http2.blocks import BlockAssembler
from extproc.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from extproc.http2.headers import HeaderDecoder, MalformedError, RequestHead, check_trailers
from extproc.http2.lifecycle import Lifecycle
from extproc.http2.limits import SETTINGS_COST, Limits, TokenBucket
from extproc.http2.registry import StreamRegistry
from extproc.http2.sender import Sender
from extproc.http2.stream import Stream, StreamHandler
from extproc.http2.windows import ReceiveWindow


class Receiver:
    """Reads frames and acts on them.

    Args:
        limits: bounds on what the client may do.
        registry: the connection's streams.
        sender: what goes out, and the client's settings and windows.
        lifecycle: ends streams.
        open_stream: makes the handler of a new stream; may end the stream.
        on_pong: takes the payload of a PING that the client answered.

    Attributes:
        established: the client has proved that it speaks HTTP/2.
    """

    def __init__(
        self,
        limits: Limits,
        registry: StreamRegistry,
        sender: Sender,
        lifecycle: Lifecycle,
        *,
        open_stream: Callable[[Stream, RequestHead], StreamHandler],
        on_pong: Callable[[bytes], None],
    ) -> None:
        self.established = False
        self._limits = limits
        self._registry = registry
        self._streams = registry.live
        self._sender = sender
        self._lifecycle = lifecycle
        self._open_stream = open_stream
        self._on_pong = on_pong
        self._input = b""
        self._now = 0.0
        self._block = BlockAssembler(limits)
        self._decoder = HeaderDecoder(limits.header_list_bytes)
        self._receive_window = ReceiveWindow(limits.connection_window)
        self._settings_seen = False
        self._control = TokenBucket(limits.control)
        self._chatter = TokenBucket(limits.chatter)
        self._early_resets = TokenBucket(limits.early_resets)
        self._abandoned = TokenBucket(limits.abandoned)
        # By frame type.
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

    def feed(self, data: bytes) -> None:
        """Take bytes; `run` works on them."""
        self._input = self._input + data if self._input else data

    def discard(self) -> None:
        """Drop what was not worked on: the connection is over."""
        self._input = b""

    def run(self, now: float, budget: int) -> bool:
        """Work on at most `budget` whole frames. True when more are left.

        Raises:
            Http2ConnectionError: the connection cannot go on.
        """
        self._now = now
        return self._read_frames(budget)

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
                    if kind == frames.DATA:
                        # Half of all frames. Called by its name, which is cheaper where this is compiled.
                        self._on_data(flags, stream_id & frames.STREAM_ID_MASK, data[start:position])
                    elif kind < len(on_frame):
                        on_frame[kind](flags, stream_id & frames.STREAM_ID_MASK, data[start:position])
                    else:
                        self._spend(self._control, "unknown frames")  # §5.5: ignored
                except Http2StreamError as error:
                    self._break_off(error)
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
        stream.handler = self._open_stream(stream, head)
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
        self._lifecycle.close(stream)

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
        else:
            self._on_pong(payload)

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
            self._lifecycle.finish(stream)

    def _finish_all(self, streams: list[Stream]) -> None:
        for stream in streams:
            self._lifecycle.finish(stream)

    def _break_off(self, error: Http2StreamError) -> None:
        # A client that opens more streams than we take may not have read our limit yet, and means no harm.
        refused = error.code is ErrorCode.REFUSED_STREAM
        self._spend(self._abandoned if refused else self._early_resets, "streams that had to be reset")
        self._lifecycle.reset(error.stream_id, error.code)

    def _spend(self, bucket: TokenBucket, what: str, cost: float = 1.0) -> None:
        if not bucket.spend(self._now, cost):
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"a flood of {what}")
