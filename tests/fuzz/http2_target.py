"""Bytes of a client: served, in whatever pieces they come, with nothing raised, lost or kept."""

from typing import Final

from hpack import Decoder
from http2_fuzz_kit import GRPC_BLOCK, Calls
from http2_kit import (
    ACK,
    DATA,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    Frame,
    data,
    ping,
    read_frames,
    rst_stream,
    window_update,
)
from http2_kit import settings as settings_frame

from extproc.grpc.framing import framed
from extproc.grpc.health import CHECK_METHOD, WATCH_METHOD
from extproc.http2.errors import ErrorCode
from fuzz.reader import Reader

_GREETING: Final = PREFACE + bytes(settings_frame()) + bytes(Frame(SETTINGS, ACK))
_PIECES: Final = (1, 2, 5, 9, 17, 64, 500, 3)


def check(data: bytes) -> None:
    """The first byte says whether the client greets us first, and how its bytes are cut."""
    reader = Reader(data)
    how = reader.byte()
    stream = (_GREETING if how & 1 else b"") + reader.rest()
    size = _PIECES[how >> 1 & 7]
    whole, cut = Calls(), Calls()
    expected = whole.send(stream, 64)
    written = cut.send(b"") + b"".join(cut.send(stream[at : at + size], 1) for at in range(0, len(stream), size))
    # What waits for the client's windows is looked at between pieces: there an end for it may come at another place.
    if not any(_not_taken(calls) for calls in (whole, cut)):
        assert written == expected
        assert whole.heard == cut.heard
        assert whole.context.stats.errors == cut.context.stats.errors
    decoder = Decoder()
    for frame in read_frames(expected):
        if frame.kind == HEADERS:
            decoder.decode(frame.payload, raw=True)
    for calls in (whole, cut):
        calls.lost()


def _not_taken(calls: Calls) -> bool:
    failure = calls.connection.failure
    return failure is not None and failure.code is ErrorCode.ENHANCE_YOUR_CALM


def _block(path: str) -> bytes:
    return b"\x83\x86\x04" + bytes((len(path),)) + path.encode() + b"\x0f\x10\x10application/grpc"


def _seed(how: int, *frames: Frame) -> bytes:
    return bytes((how,)) + b"".join(map(bytes, frames))


_CALL: Final = Frame(HEADERS, 4, 1, GRPC_BLOCK)
SEEDS: Final = (
    bytes((0,)) + _GREETING + bytes(_CALL),
    _seed(1, _CALL, data(1, framed(b"echo abc")), Frame(DATA, END_STREAM, 1)),
    _seed(3, _CALL, data(1, framed(b"two x")), rst_stream(1)),
    _seed(5, _CALL, data(1, framed(b"bad")), Frame(HEADERS, 5, 3, b"\x83\x86\x04\x02/a")),
    _seed(7, _CALL, data(1, framed(b"size 900")[:20]), data(1, framed(b"silent")[2:])),
    _seed(9, settings_frame((4, 0)), _CALL, data(1, framed(b"size 9000")), window_update(1, 100), window_update(0, 9)),
    _seed(11, Frame(HEADERS, 0, 1, GRPC_BLOCK[:9]), Frame(9, 4, 1, GRPC_BLOCK[9:]), ping()),
    _seed(1, Frame(HEADERS, 0x2C, 1, b"\x02" + bytes(5) + GRPC_BLOCK + bytes(2)), Frame(DATA, 8, 1, b"\x01abcd\x00")),
    _seed(1, Frame(HEADERS, 4, 1, _block(CHECK_METHOD)), Frame(DATA, END_STREAM, 1, framed(b""))),
    _seed(3, Frame(HEADERS, 4, 1, _block(WATCH_METHOD)), data(1, framed(b"\x0a\x01x")), rst_stream(1)),
    _seed(1, Frame(HEADERS, 4, 1, b"\x83\x86\x44\x02/a\x40\x01a\x01b"), Frame(HEADERS, 5, 3, b"\x83\x86\xbf\xbe")),
    _seed(1, Frame(HEADERS, 4, 1, b"\x3f\x01\x20\x83\x86\x84"), Frame(7, 0, 0, bytes(8)), Frame(2, 0, 3, bytes(5))),
)
