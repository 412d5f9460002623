"""grpc.health.v1: what a probe asks, and what we say. The messages are two fields in all, so they are read by hand.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from typing import Final

CHECK_METHOD: Final = "/grpc.health.v1.Health/Check"
WATCH_METHOD: Final = "/grpc.health.v1.Health/Watch"

# Serialised `HealthCheckResponse`s: field 1, an enum.
SERVING: Final = b"\x08\x01"
NOT_SERVING: Final = b"\x08\x02"
SERVICE_UNKNOWN: Final = b"\x08\x03"

# The empty name asks for the server as a whole.
SERVICES: Final = frozenset({"", "envoy.service.ext_proc.v3.ExternalProcessor"})

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SERVICE_FIELD = 1
_MAX_VARINT_BYTES = 10


def parse_request(message: bytes) -> str:
    """The service that a `HealthCheckRequest` names.

    Raises:
        ValueError: it is not a protobuf message, or the name is not UTF-8.
    """
    service = b""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == _VARINT:
            _, position = _varint(message, position)
            continue
        if kind == _BYTES:
            size, position = _varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if position + size > len(message):
            raise ValueError("the message is cut short")
        if tag == _SERVICE_FIELD << 3 | _BYTES:
            service = message[position : position + size]
        position += size
    return service.decode()


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(_MAX_VARINT_BYTES):
        if position >= len(message):
            raise ValueError("the message is cut short")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number has more than ten bytes")
