"""No input makes the HTTP/2 core raise, leak a stream, break the peer's limits, or grow without bound."""

from http2_fuzz_kit import GRPC_BLOCK, LIMITS, Calls, Step, check_bounds, run_steps
from http2_kit import (
    CONTINUATION,
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PREFACE,
    RST_STREAM,
    WINDOW_UPDATE,
    Client,
    Frame,
    read_frames,
)
from http2_kit import settings as settings_frame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def fuzz(examples: int) -> settings:
    """So many examples; how long they take on a busy machine is no finding."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


STREAM_IDS = st.sampled_from([0, 1, 1, 1, 2, 3, 3, 5, 7, 9, 11, 2**31 - 1])
FLAGS = st.sampled_from([0, 0, 1, 4, 4, 5, 5, 8, 0xC, 0x2D, 0xFF])
BLOCKS = st.sampled_from(
    [
        # A whole request: POST, http, and a path as a literal.
        b"\x83\x86\x04\x02/a",
        b"\x83\x86\x44\x02/b",
        b"\x83\x86\xbe",
        # Trailers; an upper-case name; a size update; nonsense.
        b"\x00\x01x\x01y",
        b"\x83\x86\x04\x02/a\x00\x01X\x01y",
        b"\x20\x83\x86\x04\x02/a",
        b"\xff\xff\xff\xff\xff",
        b"\x44\x02/b" + b"\xbe" * 40,
        b"",
    ]
)
NUMBERS = st.sampled_from([0, 1, 2, 100, 16_384, 65_535, 2**24 - 1, 2**31 - 1, 2**32 - 1])
U32 = NUMBERS.map(lambda number: number.to_bytes(4, "big"))
SETTING = st.tuples(st.integers(0, 8), NUMBERS).map(lambda pair: bytes(settings_frame(pair))[9:])
PAYLOADS = st.one_of(
    BLOCKS,
    U32,
    SETTING,
    st.lists(SETTING, max_size=3).map(b"".join),
    st.binary(max_size=40),
    st.sampled_from([b"12345678", bytes(5), bytes(500), bytes(1_500)]),
)
FRAMES = st.builds(Frame, st.sampled_from([*range(10), 0xFA]), FLAGS, STREAM_IDS, PAYLOADS)
# What a client that means well sends, so that the random ones meet living streams.
OPENINGS = st.builds(
    lambda stream_id, end: Frame(HEADERS, 5 if end else 4, stream_id, b"\x83\x86\x04\x02/a"),
    st.sampled_from([1, 3, 5, 7, 9, 11]),
    st.booleans(),
)
CONTENTS = st.builds(
    lambda stream_id, content: Frame(DATA, 0, stream_id, content),
    STREAM_IDS,
    st.sampled_from([b"", b"a", bytes(900), bytes(1_999), bytes(2_001), bytes(16_384)]),
)
INCREMENTS = st.sampled_from([1, 3, 50, 16_384, 65_535]).map(lambda number: number.to_bytes(4, "big"))
UPDATES = st.builds(lambda stream_id, number: Frame(WINDOW_UPDATE, 0, stream_id, number), STREAM_IDS, INCREMENTS)
SPLIT = st.builds(
    lambda stream_id, block, at: (
        Frame(HEADERS, 0, stream_id, block[:at]),
        Frame(CONTINUATION, 4, stream_id, block[at:]),
    ),
    st.sampled_from([1, 3, 5, 7, 9, 11]),
    BLOCKS,
    st.integers(0, 6),
)
RESIZES = st.builds(
    lambda name, value: settings_frame((name, value)),
    st.sampled_from([INITIAL_WINDOW_SIZE, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE]),
    st.sampled_from([0, 1, 7, 100, 16_384, 20_000, 65_535]),
)
ACTIONS = st.sampled_from(["send", "send large", "end", "pause", "resume", "drain", "finish"])
STEPS = st.lists(st.one_of(OPENINGS, CONTENTS, UPDATES, UPDATES, RESIZES, SPLIT, FRAMES, ACTIONS), max_size=40)


@fuzz(600)
@given(st.sampled_from([0, 5, 1_000, 65_535]), STEPS)
def test_any_sequence_of_frames_and_actions(window: int, steps: list[Step]) -> None:
    run_steps(window, steps)


@fuzz(300)
@given(st.lists(st.binary(max_size=60), max_size=12), st.booleans())
def test_any_bytes(chunks: list[bytes], greeted: bool) -> None:
    peer = Client(LIMITS)
    if greeted:
        peer.shake_hands()
    for chunk in chunks:
        peer.raw(chunk)
        check_bounds(peer)
    peer.connection.lost()
    assert all(handler.closed_times == 1 for handler in peer.handlers.values())


@fuzz(200)
@given(st.lists(st.one_of(OPENINGS, CONTENTS, FRAMES), max_size=20), st.lists(st.integers(1, 40), min_size=1))
def test_how_bytes_are_cut_changes_nothing(frames: list[Frame], sizes: list[int]) -> None:
    stream = PREFACE + bytes(settings_frame()) + b"".join(map(bytes, frames))
    whole = Client(LIMITS)
    expected = whole.take() + whole.raw(stream)
    cut = Client(LIMITS)
    written = cut.connection.take()
    position = 0
    while position < len(stream):
        size = sizes[position % len(sizes)]
        cut.connection.receive(stream[position : position + size])
        while cut.connection.run(0.0, 1):
            pass
        written += cut.connection.take()
        position += size
    assert read_frames(written) == expected
    assert {key: handler.received for key, handler in cut.handlers.items()} == {
        key: handler.received for key, handler in whole.handlers.items()
    }


# --- the same with sessions on top ---

MESSAGES = st.sampled_from([b"echo abc", b"echo ", b"two x", b"silent", b"bad", b"size 900"])
FRAMED = st.one_of(
    MESSAGES.map(lambda message: b"\x00" + len(message).to_bytes(4, "big") + message),
    # The two halves of one message, and the begin and the middle of a long one.
    st.sampled_from([b"\x00\x00\x00\x00\x08ec", b"ho abc", b"\x00\x00\x00\x07\x00" + bytes(900), bytes(900)]),
    # Cut in the prefix, two in one, too large, an unknown flag, compressed.
    st.sampled_from([b"\x00\x00", bytes(5) + b"\xff", b"\x00\x7f\xff\xff\xff", b"\x02" + bytes(4), b"\x01" + bytes(4)]),
    st.binary(max_size=8),
)
CALLS = st.builds(
    lambda stream_id, end: Frame(HEADERS, 5 if end else 4, stream_id, GRPC_BLOCK),
    st.sampled_from([5, 7]),
    st.booleans(),
)
CALL_CONTENTS = st.builds(
    lambda stream_id, flags, content: Frame(DATA, flags, stream_id, content),
    st.sampled_from([1, 3]),
    st.sampled_from([0, 0, 0, 1]),
    FRAMED,
)
CALL_RESETS = st.builds(lambda stream_id: Frame(RST_STREAM, 0, stream_id, bytes(4)), st.sampled_from([1, 3]))


@fuzz(400)
@given(st.lists(st.one_of(CALLS, CALL_CONTENTS, CALL_CONTENTS, CALL_CONTENTS, CALL_RESETS), max_size=40))
def test_any_messages_over_sessions(frames: list[Frame]) -> None:
    calls = Calls()
    calls.send(PREFACE + bytes(settings_frame()))
    # Two calls at least: content on streams that nobody opened ends the connection, and little would be seen.
    for frame in (Frame(HEADERS, 4, 1, GRPC_BLOCK), Frame(HEADERS, 4, 3, GRPC_BLOCK), *frames):
        calls.send(bytes(frame))
    calls.lost()
