"""Error codes, and the two ways in which a peer's mistake ends: its stream, or its connection."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """RFC 9113 §7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Http2ConnectionError(Exception):
    """The connection cannot go on (RFC 9113 §5.4.1): GOAWAY with `code`, and the end.

    Attributes:
        code: what the peer is told.
        text: the debug data of the GOAWAY frame; never anything that a client sent.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code = code
        self.text = text


class Http2StreamError(Exception):
    """One stream cannot go on (RFC 9113 §5.4.2): RST_STREAM with `code`, the others are unharmed.

    Attributes:
        stream_id: the stream that ends.
        code: what the peer is told.
    """

    def __init__(self, stream_id: int, code: ErrorCode, text: str) -> None:
        super().__init__(f"stream {stream_id}: {code.name}: {text}")
        self.stream_id = stream_id
        self.code = code
