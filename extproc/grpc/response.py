"""The header blocks of gRPC responses, built once: static table and literals only, so no state to keep (RFC 7541)."""

from typing import Final

from extproc.grpc import status

_STATUS_200: Final = b"\x88"
# Index 8 is `:status 200`; the name alone serves for others, as a literal that is not indexed.
_STATUS_NAME: Final = b"\x08"
# Index 31 is `content-type`: 15 in the prefix, 16 more.
_CONTENT_TYPE: Final = b"\x0f\x10"
_MAX_MESSAGE_BYTES: Final = 1_024


def _string(value: bytes) -> bytes:
    """A string literal without Huffman coding (RFC 7541 §5.2)."""
    size = len(value)
    if size < 127:
        return bytes((size,)) + value
    size -= 127
    length = bytearray(b"\x7f")
    while size >= 128:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes(length) + value


def _literal(name: bytes, value: bytes) -> bytes:
    """A field with a new name, not indexed (RFC 7541 §6.2.2)."""
    return b"\x00" + _string(name) + _string(value)


def _percent_encoded(text: str) -> bytes:
    """`grpc-message` as the protocol wants it: printable ASCII, "%" and all else escaped byte by byte."""
    encoded = bytearray()
    for byte in text.encode(errors="replace"):
        escaped = b"%%%02X" % byte if byte < 0x20 or byte > 0x7E or byte == 0x25 else bytes((byte,))
        if len(encoded) + len(escaped) > _MAX_MESSAGE_BYTES:
            break
        encoded += escaped
    return bytes(encoded)


HEADERS: Final = _STATUS_200 + _CONTENT_TYPE + _string(b"application/grpc")
TRAILERS_OK: Final = _literal(b"grpc-status", b"0")


def trailers(code: int, message: str) -> bytes:
    """The trailers that end a call whose headers are out."""
    block = _literal(b"grpc-status", b"%d" % code)
    return block + _literal(b"grpc-message", _percent_encoded(message)) if message else block


def trailers_only(code: int, message: str) -> bytes:
    """The single block of a call that ends without any message ("Trailers-Only")."""
    return HEADERS + trailers(code, message)


def http_refusal(http_status: int) -> bytes:
    """The answer to a request that is no gRPC at all."""
    return _STATUS_NAME + _string(b"%d" % http_status)


UNIMPLEMENTED: Final = trailers_only(status.UNIMPLEMENTED, "unknown method")
