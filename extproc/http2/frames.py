"""The frames of HTTP/2 as bytes (RFC 9113 §4 and §6): their header, and builders of those that a server sends.

Types and flags are plain integers: the loop that reads frames compares them for every frame.
"""

from struct import Struct
from typing import Final

from extproc.http2.errors import ErrorCode, Http2ConnectionError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

HEADER_BYTES: Final = 9
# Length (as 16 and 8 bits), type, flags, reserved bit and stream id.
HEADER: Final = Struct(">HBBBI")
STREAM_ID_MASK: Final = 0x7FFFFFFF
# The reserved bit of a window increment is ignored as well (§6.9).
INCREMENT_MASK: Final = 0x7FFFFFFF
MAX_STREAM_ID: Final = 2**31 - 1

U32: Final = Struct(">I")
_U32_PAIR: Final = Struct(">II")
_SETTING: Final = Struct(">HI")
_PRIORITY_BYTES: Final = 5


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One whole frame."""
    size = len(payload)
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame (§6.5)."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items()))


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)


def ping(opaque: bytes, *, ack: bool) -> bytes:
    """A PING frame (§6.7) of eight opaque bytes."""
    return frame(PING, ACK if ack else 0, 0, opaque)


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """A RST_STREAM frame (§6.4)."""
    return frame(RST_STREAM, 0, stream_id, U32.pack(code))


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    """A GOAWAY frame (§6.8): streams above `last_stream_id` were not and will not be worked on."""
    return frame(GOAWAY, 0, 0, _U32_PAIR.pack(last_stream_id, code) + text.encode())


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame (§6.9); stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, U32.pack(increment))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The entries of a SETTINGS frame, in order.

    Raises:
        Http2ConnectionError: the length is no multiple of six (§6.5).
    """
    if len(payload) % _SETTING.size:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a length that is no multiple of 6")
    return list(_SETTING.iter_unpack(payload))


def without_padding(payload: bytes) -> bytes:
    """The content of a frame with the PADDED flag.

    Raises:
        Http2ConnectionError: there is more padding than payload (§6.1, §6.2).
    """
    if not payload:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without its pad length")
    padding = payload[0]
    if padding >= len(payload):
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - padding]


def without_priority(payload: bytes) -> bytes:
    """The field block of a HEADERS frame with the PRIORITY flag; the priority itself is obsolete (§5.3.2).

    Raises:
        Http2ConnectionError: the priority is cut short.
    """
    if len(payload) < _PRIORITY_BYTES:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for their priority")
    return payload[_PRIORITY_BYTES:]


def read_u32(payload: bytes, what: str) -> int:
    """The only field of RST_STREAM (§6.4) and WINDOW_UPDATE (§6.9).

    Raises:
        Http2ConnectionError: the payload has another length.
    """
    if len(payload) != U32.size:
        raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"{what} of another length than 4")
    value: int = U32.unpack(payload)[0]
    return value


def on_connection(stream_id: int, what: str) -> None:
    """Check that a frame which concerns the connection came on stream 0.

    Raises:
        Http2ConnectionError: it did not (§6.5, §6.7, §6.8).
    """
    if stream_id:
        raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{what} on a stream")
