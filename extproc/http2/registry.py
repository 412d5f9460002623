"""The streams of a connection: those that live, and what is remembered of those that do not (RFC 9113 §5.1)."""

from collections import OrderedDict, deque
from typing import Final

from extproc.http2 import frames
from extproc.http2.errors import ErrorCode, Http2ConnectionError
from extproc.http2.stream import Stream

# Streams remembered after their end, to tell late frames from mistakes.
_REMEMBERED: Final = 1_024


class StreamRegistry:
    """Streams by their number.

    Attributes:
        live: the streams that are neither idle nor closed.
        highest: the highest number that the client has used.
        last_accepted: the highest that we work on, once our last GOAWAY has said so; None before.
    """

    __slots__ = ("_ended", "_reset", "highest", "last_accepted", "live")

    def __init__(self) -> None:
        self.live: dict[int, Stream] = {}
        self.highest = 0
        self.last_accepted: int | None = None
        self._ended = deque[int](maxlen=_REMEMBERED)
        # Those that we reset: the client may have sent more before it heard of that.
        self._reset = OrderedDict[int, None]()

    def add(self, stream: Stream) -> None:
        """A new stream."""
        self.live[stream.stream_id] = stream

    def alive(self, stream: Stream) -> bool:
        """Is it neither idle nor closed?"""
        return self.live.get(stream.stream_id) is stream

    def remove(self, stream: Stream) -> None:
        """The stream is closed."""
        del self.live[stream.stream_id]
        self._ended.append(stream.stream_id)

    def remember_reset(self, stream_id: int) -> None:
        """We reset that stream."""
        self._reset[stream_id] = None
        if len(self._reset) > _REMEMBERED:
            self._reset.popitem(last=False)

    def stop_accepting(self) -> int:
        """No stream after the present ones is accepted; returns the number of the last that is."""
        if self.last_accepted is None:
            self.last_accepted = self.highest
        return self.last_accepted

    @property
    def last_worked_on(self) -> int:
        """For GOAWAY: no stream above it was or will be worked on. It never rises again (§6.8)."""
        return self.highest if self.last_accepted is None else self.last_accepted

    def must_not_be_idle(self, stream_id: int, what: str) -> None:
        """Check that somebody opened that stream (§5.1, "idle").

        Raises:
            Http2ConnectionError: it is idle, or none that a client opens.
        """
        if stream_id > self.highest or not stream_id & 1:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{what} on an idle stream")

    def check_late(self, stream_id: int, kind: int) -> None:
        """DATA or HEADERS for a stream that does not live: may they just be late? Returns if so.

        Raises:
            Http2ConnectionError: they are a mistake (§5.1, "closed"; §5.1.1).
        """
        what = "DATA" if kind == frames.DATA else "HEADERS"
        self.must_not_be_idle(stream_id, what)
        if stream_id in self._reset or (self.last_accepted is not None and stream_id > self.last_accepted):
            return
        if kind == frames.DATA or stream_id in self._ended:
            raise Http2ConnectionError(ErrorCode.STREAM_CLOSED, f"{what} on a closed stream")
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "stream identifiers must rise")
