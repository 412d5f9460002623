"""Well-formed frames and what happens beside them: the client's windows, our bounds, and one end for each stream."""

from collections.abc import Callable, Iterator
from typing import Final

from http2_fuzz_kit import Step, run_steps
from http2_kit import CONTINUATION, HEADERS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, Frame, data, settings, window_update

from fuzz.reader import Reader

_MOST_STEPS: Final = 64
_WINDOWS: Final = (65_535, 0, 5, 1_000)
_STREAMS: Final = (1, 3, 5, 7, 9, 11, 0, 2, 2**31 - 1)
_FLAGS: Final = (4, 5, 0, 1, 8, 0xC, 0x2D, 0xFF)
_BLOCKS: Final = (b"\x83\x86\x04\x02/a", b"\x83\x86\x44\x02/b", b"\x83\x86\xbe", b"\x00\x01x\x01y", b"")
_SIZES: Final = (0, 1, 900, 1_999, 2_001, 16_384)
_INCREMENTS: Final = (1, 3, 50, 16_384, 65_535, 2**31 - 1)
_SETTINGS: Final = (INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE)
_VALUES: Final = (0, 1, 7, 100, 16_384, 20_000, 65_535, 2**31 - 1)
_ACTIONS: Final = ("send", "send large", "end", "pause", "resume", "drain", "finish")


def _split(reader: Reader) -> Step:
    stream_id, block, at = reader.pick(_STREAMS), reader.pick(_BLOCKS), reader.byte() % 7
    return Frame(HEADERS, 0, stream_id, block[:at]), Frame(CONTINUATION, 4, stream_id, block[at:])


_STEPS: Final[tuple[Callable[[Reader], Step], ...]] = (
    lambda reader: Frame(HEADERS, reader.pick(_FLAGS), reader.pick(_STREAMS), reader.pick(_BLOCKS)),
    lambda reader: data(reader.pick(_STREAMS), bytes(reader.pick(_SIZES)), reader.pick((0, 1))),
    lambda reader: window_update(reader.pick(_STREAMS), reader.pick(_INCREMENTS)),
    lambda reader: settings((reader.pick(_SETTINGS), reader.pick(_VALUES))),
    lambda reader: reader.pick(_ACTIONS),
    _split,
    lambda reader: Frame(HEADERS, reader.pick(_FLAGS), reader.pick(_STREAMS), reader.piece()),
    lambda reader: Frame(reader.byte() % 11, reader.pick(_FLAGS), reader.pick(_STREAMS), reader.piece()),
)


def check(data: bytes) -> None:
    """The first byte chooses the client's window, the rest what is done."""
    reader = Reader(data)
    run_steps(reader.pick(_WINDOWS), _steps(reader))


def _steps(reader: Reader) -> Iterator[Step]:
    for _ in range(_MOST_STEPS):
        if reader.over:
            return
        yield reader.pick(_STEPS)(reader)


SEEDS: Final = (
    # Open, content, an answer, the end.
    bytes((0, 0, 0, 0, 0, 1, 0, 2, 0, 4, 0, 4, 2)),
    # Without a window: answers wait, the end too; updates and settings let them out.
    bytes((1, 0, 1, 0, 0, 4, 1, 4, 2, 2, 0, 2, 2, 6, 3, 3, 0, 6)),
    # Several streams, a pause, a reset, and draining.
    bytes((3, 0, 0, 0, 0, 0, 0, 1, 1, 4, 3, 4, 0, 7, 3, 2, 0, 4, 0, 0, 0, 8, 4, 4, 4, 5, 4, 6)),
    # A block in two frames, one of its own making, PING, PRIORITY.
    bytes((0, 5, 0, 0, 3, 6, 0, 1, 8)) + b"\x83\x86\x04\x02/abc" + bytes((7, 6, 2, 6, 8)) + bytes(8),
)
