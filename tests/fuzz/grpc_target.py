"""Messages in the content of one stream: the same however it is cut, and never more stored than one of them."""

import contextlib
from typing import Final

from extproc.grpc import status
from extproc.grpc.framing import PREFIX_BYTES, FramingError, MessageReader, framed, whole_message
from extproc.grpc.health import parse_request
from fuzz.reader import Reader

_LIMITS: Final = (0, 1, 20, 300)


def check(data: bytes) -> None:
    """The first byte is the limit, the second how many pieces follow by their lengths; the rest comes at once."""
    reader = Reader(data)
    limit = reader.pick(_LIMITS)
    sizes = tuple(reader.take(reader.byte() % 32))
    content = reader.rest()
    expected, code = _by_the_book(content, limit)
    assert _read((content,), limit) == (expected, code)
    pieces = []
    position = 0
    for size in sizes:
        pieces.append(content[position : position + size])
        position += size
    assert _read((*pieces, content[position:]), limit) == (expected, code)
    whole = whole_message(content, limit)
    if whole is not None:
        assert ([whole], None) == (expected, code)
    with contextlib.suppress(ValueError):
        assert len(parse_request(content).encode()) <= len(content)


def _read(pieces: tuple[bytes, ...], limit: int) -> tuple[list[bytes], int | None]:
    messages = MessageReader(limit)
    found: list[bytes] = []
    for piece in pieces:
        try:
            found += messages.feed(piece)
        except FramingError as error:
            # What the piece held before the error is dropped, as the stream ends; how much that is depends on the cut.
            return [], error.status
        assert messages.buffered < PREFIX_BYTES + limit or messages.buffered < PREFIX_BYTES
    return found, None


def _by_the_book(content: bytes, limit: int) -> tuple[list[bytes], int | None]:
    """The protocol, read in the plainest way."""
    found = []
    while len(content) >= 5:
        flag, size = content[0], int.from_bytes(content[1:5], "big")
        if flag:
            return [], status.UNIMPLEMENTED if flag == 1 else status.INTERNAL
        if size > limit:
            return [], status.RESOURCE_EXHAUSTED
        if len(content) < 5 + size:
            break
        found.append(content[5 : 5 + size])
        content = content[5 + size :]
    return found, None


SEEDS: Final = (
    bytes((2, 0)) + framed(b"echo abc"),
    bytes((3, 3, 1, 4, 5)) + framed(b"") + framed(b"ab") + framed(b"c" * 40)[:30],
    bytes((2, 1, 2, 1)) + bytes((1, 0, 0, 0, 1, 65)),
    bytes((2, 0)) + bytes((0, 0, 127, 255, 255)),
    bytes((3, 0)) + b"\x0a\x2benvoy.service.ext_proc.v3.ExternalProcessor\x10\x01\x1d1234\x2112345678",
)
