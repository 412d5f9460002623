"""Header blocks that come in several frames (RFC 9113 §4.3, §6.10)."""

from extproc.http2.errors import ErrorCode, Http2ConnectionError
from extproc.http2.limits import Limits


class BlockAssembler:
    """Joins HEADERS and its CONTINUATION frames.

    Attributes:
        open: a block has begun and not ended: nothing else may come in between.
    """

    __slots__ = ("_end_stream", "_fragments", "_limits", "_size", "_stream_id", "open")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._fragments: list[bytes] = []
        self._size = 0
        self._stream_id = 0
        self._end_stream = False
        self.open = False

    def begin(self, stream_id: int, fragment: bytes, *, end_stream: bool) -> None:
        """A HEADERS frame without END_HEADERS."""
        self.open = True
        self._stream_id = stream_id
        self._end_stream = end_stream
        self._fragments = [fragment]
        self._size = len(fragment)

    def add(self, stream_id: int, fragment: bytes) -> None:
        """A CONTINUATION frame.

        Raises:
            Http2ConnectionError: it continues nothing, or the block outgrows its bounds.
        """
        if not self.open or self._stream_id != stream_id:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of no header block")
        self._fragments.append(fragment)
        self._size += len(fragment)
        limits = self._limits
        # Empty ones count as well: each costs us a turn.
        if len(self._fragments) > limits.continuations + 1 or self._size > limits.header_block_bytes:
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "header block too large")

    def end(self) -> tuple[bytes, bool]:
        """The whole block, and whether the stream ends with it."""
        self.open = False
        block = b"".join(self._fragments)
        self._fragments = []
        return block, self._end_stream
