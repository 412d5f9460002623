"""What goes out on one connection: frames at once where the windows allow, queued where they do not (§5.2, §6.9)."""

from collections import OrderedDict, deque
from struct import Struct
from typing import Final

from extproc.http2 import frames
from extproc.http2.errors import ErrorCode, Http2ConnectionError, Http2StreamError
from extproc.http2.settings import DEFAULT_WINDOW, MAX_WINDOW, PeerSettings
from extproc.http2.stream import Stream

# A frame header with the length in its upper 24 bits: length and type, flags, stream id.
_HEADER: Final = Struct(">IBI")


class Sender:
    """Builds outgoing frames within the client's limits.

    Streams whose DATA is held back wait in one of two places: in `_ready` if they only need room on the connection,
    and nowhere if they need room of their own, until the client gives it. So the work of an update is in proportion
    to what it lets through.

    Args:
        pending_bytes: the most that may be held back; beyond it `overflowed` is set.
    """

    def __init__(self, pending_bytes: int) -> None:
        self.settings = PeerSettings()
        self.overflowed = False
        self._window = DEFAULT_WINDOW
        # The longest payload that may go out now; negative while the transport takes nothing.
        self._frame_limit = self.settings.max_frame_size
        self._paused = False
        # Ordered: taking the first out of a plain dict again and again is quadratic.
        self._ready: OrderedDict[int, Stream] = OrderedDict()
        self._pending_bytes = 0
        self._max_pending_bytes = pending_bytes
        self._out: list[bytes] = []
        # The client may allow our dynamic table less than the default, and must be told that we follow (RFC 7541
        # §4.2). We use none: the first block says so once and for all.
        self._table_update = b"\x20"

    def take(self) -> bytes:
        """Everything that is to be written now."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    @property
    def has_output(self) -> bool:
        """Is there anything to write?"""
        return bool(self._out)

    def control(self, frame: bytes) -> None:
        """Send a frame that no window bounds."""
        self._out.append(frame)

    def headers(self, stream: Stream, block: bytes, *, end_stream: bool = False) -> None:
        """Send a header block, which must fit one frame. Not for a stream with DATA held back."""
        if self._table_update:
            block = self._table_update + block
            self._table_update = b""
        flags = frames.END_HEADERS | frames.END_STREAM if end_stream else frames.END_HEADERS
        self._out.append(_HEADER.pack(len(block) << 8 | frames.HEADERS, flags, stream.stream_id))
        self._out.append(block)
        stream.answered = True

    def data(self, stream: Stream, payload: bytes) -> None:
        """Send DATA, or hold back what the windows do not take now. `payload` is not empty."""
        size = len(payload)
        if size <= self._frame_limit and size <= self._window and size <= stream.send_window and stream.pending is None:
            self._window -= size
            stream.send_window -= size
            self._out.append(_HEADER.pack(size << 8, 0, stream.stream_id))
            self._out.append(payload)
            return
        self._pending_bytes += size
        if stream.pending is None:
            stream.pending = deque()
        stream.pending.append(memoryview(payload))
        self._pump(stream)
        if self._pending_bytes > self._max_pending_bytes:
            self.overflowed = True

    def drop(self, stream: Stream) -> None:
        """Forget what is held back on a stream that is over."""
        if stream.pending is not None:
            self._pending_bytes -= sum(map(len, stream.pending))
            stream.pending = None
            self._ready.pop(stream.stream_id, None)

    def pause(self) -> None:
        """The transport takes nothing more: hold DATA back."""
        self._paused = True
        self._frame_limit = -1

    def resume(self) -> list[Stream]:
        """The transport takes bytes again. Returns the streams whose DATA is all out now."""
        self._paused = False
        self._frame_limit = self.settings.max_frame_size
        return self._pump_ready()

    def update_connection(self, increment: int) -> list[Stream]:
        """The client takes `increment` bytes more. Returns the streams whose DATA is all out now.

        Raises:
            Http2ConnectionError: the window passes its largest size (§6.9.1).
        """
        self._window += increment
        if self._window > MAX_WINDOW:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window passes 2^31-1")
        return self._pump_ready()

    def update_stream(self, stream: Stream, increment: int) -> bool:
        """The client takes `increment` bytes more on `stream`. True when that let the last of its DATA out.

        Raises:
            Http2StreamError: the window passes its largest size (§6.9.1).
        """
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise Http2StreamError(stream.stream_id, ErrorCode.FLOW_CONTROL_ERROR, "the stream's window passes 2^31-1")
        return stream.pending is not None and self._pump(stream)

    def apply_settings(self, entries: list[tuple[int, int]], streams: dict[int, Stream]) -> list[Stream]:
        """Take over the client's settings (§6.5.3, §6.9.2). Returns the streams whose DATA is all out now.

        Raises:
            Http2ConnectionError: a value is out of its range, or a window passes its largest size.
        """
        before = self.settings.initial_window
        self.settings.apply(entries)
        if not self._paused:
            self._frame_limit = self.settings.max_frame_size
        change = self.settings.initial_window - before
        if change == 0:
            return []
        done = []
        for stream in list(streams.values()):
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window passes 2^31-1")
            if stream.pending is not None and self._pump(stream):
                done.append(stream)
        return done

    def _pump_ready(self) -> list[Stream]:
        done = []
        while self._ready and self._window > 0 and not self._paused:
            stream = next(iter(self._ready.values()))
            if self._pump(stream):
                done.append(stream)
        return done

    def _pump(self, stream: Stream) -> bool:
        """Send what the windows take of the DATA held back on `stream`; True when that was all."""
        pending = stream.pending
        if pending is None:
            return True
        while pending:
            room = min(self._frame_limit, self._window, stream.send_window)
            if room <= 0:
                if stream.send_window > 0:
                    self._ready[stream.stream_id] = stream
                else:
                    self._ready.pop(stream.stream_id, None)
                return False
            chunk = pending[0]
            if len(chunk) <= room:
                pending.popleft()
            else:
                pending[0] = chunk[room:]
                chunk = chunk[:room]
            size = len(chunk)
            self._window -= size
            stream.send_window -= size
            self._pending_bytes -= size
            self._out.append(_HEADER.pack(size << 8, 0, stream.stream_id))
            self._out.append(bytes(chunk))
        stream.pending = None
        self._ready.pop(stream.stream_id, None)
        return True
