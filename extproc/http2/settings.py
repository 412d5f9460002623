"""What the two sides tell each other in SETTINGS (RFC 9113 §6.5.2)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from extproc.http2.errors import ErrorCode, Http2ConnectionError

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1
MIN_MAX_FRAME_SIZE: Final = 16_384
MAX_MAX_FRAME_SIZE: Final = 2**24 - 1


@dataclass(slots=True)
class PeerSettings:
    """The client's settings that bind what we send.

    The others do not: we never push, and our header blocks refer to nothing in a dynamic table.

    Attributes:
        initial_window: bytes of DATA that a new stream may carry to the client.
        max_frame_size: the longest payload that it takes.
    """

    initial_window: int = DEFAULT_WINDOW
    max_frame_size: int = MIN_MAX_FRAME_SIZE

    def apply(self, entries: Iterable[tuple[int, int]]) -> None:
        """Take over the entries of one SETTINGS frame, in order; unknown ones are ignored (§6.5.2).

        Raises:
            Http2ConnectionError: a value is out of its range.
        """
        for name, value in entries:
            if name == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2^31-1")
                self.initial_window = value
            elif name == MAX_FRAME_SIZE:
                if not MIN_MAX_FRAME_SIZE <= value <= MAX_MAX_FRAME_SIZE:
                    raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of its range")
                self.max_frame_size = value
            elif name == ENABLE_PUSH and value > 1:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
