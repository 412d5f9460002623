"""RFC 9113 §6, frame by frame, but flow control, which has its own file. The sections are in the names."""

import pytest
from http2_kit import (
    ACK,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HAS_PRIORITY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    Frame,
    client,
    connection_error,
    data,
    ping,
    settings,
    stream_error,
)

# --- §6.1 DATA, §6.2 HEADERS ---


@pytest.mark.parametrize("kind", [DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION])
def test_s6_frames_of_streams_do_not_come_on_the_connection(kind: int) -> None:
    peer = client()
    peer.opened(1)
    payload = {DATA: b"x", HEADERS: peer.block(), PRIORITY: bytes(5), RST_STREAM: bytes(4), CONTINUATION: b""}[kind]
    assert connection_error(peer, peer.send(Frame(kind, END_HEADERS, 0, payload))) == PROTOCOL_ERROR


@pytest.mark.parametrize("kind", [SETTINGS, PING, GOAWAY])
def test_s6_frames_of_the_connection_do_not_come_on_streams(kind: int) -> None:
    peer = client()
    peer.opened(1)
    payload = {SETTINGS: b"", PING: bytes(8), GOAWAY: bytes(8)}[kind]
    assert connection_error(peer, peer.send(Frame(kind, 0, 1, payload))) == PROTOCOL_ERROR


@pytest.mark.parametrize("padding", [0, 1, 255])
def test_s6_1_padding_is_taken_off(padding: int) -> None:
    peer = client()
    peer.opened(1)
    peer.send(data(1, bytes((padding,)) + b"content" + bytes(padding), PADDED | END_STREAM))
    assert peer.handlers[1].received == b"content"
    assert peer.handlers[1].has_ended


def test_s6_1_a_frame_of_padding_alone_is_empty() -> None:
    peer = client()
    peer.opened(1)
    peer.send(data(1, b"\x03\x00\x00\x00", PADDED))
    assert peer.handlers[1].received == b""


@pytest.mark.parametrize(("kind", "payload"), [(DATA, b"\x05abcd"), (DATA, b"\x01"), (HEADERS, b"\x02\x88")])
def test_s6_1_more_padding_than_payload_is_an_error(kind: int, payload: bytes) -> None:
    peer = client()
    peer.opened(1)
    stream_id = 1 if kind == DATA else 3
    frames = peer.send(Frame(kind, PADDED | END_HEADERS, stream_id, payload))
    assert connection_error(peer, frames) == PROTOCOL_ERROR


@pytest.mark.parametrize("kind", [DATA, HEADERS])
def test_s6_1_a_padded_frame_has_a_pad_length(kind: int) -> None:
    peer = client()
    peer.opened(1)
    frames = peer.send(Frame(kind, PADDED | END_HEADERS, 1 if kind == DATA else 3, b""))
    assert connection_error(peer, frames) == FRAME_SIZE_ERROR


def test_s6_2_padding_and_priority_of_headers_are_taken_off() -> None:
    peer = client()
    block = peer.block()
    peer.send(Frame(HEADERS, END_HEADERS | PADDED | HAS_PRIORITY, 1, b"\x02" + b"\x80\0\0\x05\x10" + block + b"\0\0"))
    peer.send(Frame(HEADERS, END_HEADERS | HAS_PRIORITY, 3, b"\0\0\0\x01\x10" + peer.block()))
    # Nothing but the priority, the block comes after.
    peer.send(Frame(HEADERS, HAS_PRIORITY, 5, bytes(5)), Frame(CONTINUATION, END_HEADERS, 5, peer.block()))
    assert [handler.head.path for handler in peer.handlers.values()] == [b"/service/method"] * 3


def test_s6_2_headers_too_short_for_their_priority_are_an_error() -> None:
    peer = client()
    frames = peer.send(Frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, bytes(4)))
    assert connection_error(peer, frames) == FRAME_SIZE_ERROR


# --- §6.3 PRIORITY, §6.4 RST_STREAM ---


@pytest.mark.parametrize("size", [0, 4, 6])
def test_s6_3_priority_has_five_bytes(size: int) -> None:
    peer = client()
    peer.opened(1)
    assert stream_error(peer, peer.send(Frame(PRIORITY, 0, 1, bytes(size))), 1) == FRAME_SIZE_ERROR
    # A stream that was never opened cannot be reset, so it costs the connection.
    assert connection_error(peer, peer.send(Frame(PRIORITY, 0, 9, bytes(size)))) == FRAME_SIZE_ERROR


@pytest.mark.parametrize("size", [0, 3, 5])
def test_s6_4_rst_stream_has_four_bytes(size: int) -> None:
    peer = client()
    peer.opened(1)
    assert connection_error(peer, peer.send(Frame(RST_STREAM, 0, 1, bytes(size)))) == FRAME_SIZE_ERROR


def test_s6_4_a_reset_ends_the_stream_with_any_code() -> None:
    peer = client()
    handler = peer.opened(1)
    assert peer.send(Frame(RST_STREAM, 0, 1, b"\xde\xad\xbe\xef")) == []
    assert handler.closed_times == 1
    assert peer.connection.open_streams == 0


# --- §6.5 SETTINGS ---


def test_s6_5_settings_are_acknowledged_one_by_one() -> None:
    peer = client()
    assert peer.send(settings(), settings((MAX_FRAME_SIZE, 20_000))) == [Frame(SETTINGS, ACK)] * 2


def test_s6_5_an_acknowledgement_is_not_acknowledged() -> None:
    peer = client()
    assert peer.send(Frame(SETTINGS, ACK)) == []


def test_s6_5_an_acknowledgement_has_no_content() -> None:
    peer = client()
    assert connection_error(peer, peer.send(Frame(SETTINGS, ACK, 0, bytes(6)))) == FRAME_SIZE_ERROR


@pytest.mark.parametrize("size", [1, 5, 7])
def test_s6_5_settings_have_six_bytes_each(size: int) -> None:
    peer = client()
    assert connection_error(peer, peer.send(Frame(SETTINGS, 0, 0, bytes(size)))) == FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        (ENABLE_PUSH, 2, PROTOCOL_ERROR),
        (INITIAL_WINDOW_SIZE, 2**31, FLOW_CONTROL_ERROR),
        (MAX_FRAME_SIZE, 16_383, PROTOCOL_ERROR),
        (MAX_FRAME_SIZE, 2**24, PROTOCOL_ERROR),
    ],
)
def test_s6_5_2_values_out_of_range_are_errors(name: int, value: int, code: int) -> None:
    peer = client()
    assert connection_error(peer, peer.send(settings((name, value)))) == code


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (HEADER_TABLE_SIZE, 0),
        (HEADER_TABLE_SIZE, 2**32 - 1),
        (ENABLE_PUSH, 0),
        (ENABLE_PUSH, 1),
        (INITIAL_WINDOW_SIZE, 2**31 - 1),
        (MAX_FRAME_SIZE, 16_384),
        (MAX_FRAME_SIZE, 2**24 - 1),
    ],
)
def test_s6_5_2_values_in_range_are_taken(name: int, value: int) -> None:
    peer = client()
    assert peer.send(settings((name, value))) == [Frame(SETTINGS, ACK)]


def test_s6_5_2_unknown_settings_are_ignored() -> None:
    peer = client()
    assert peer.send(settings((0xF000, 0xFFFFFFFF))) == [Frame(SETTINGS, ACK)]


def test_s6_5_3_values_are_taken_in_their_order() -> None:
    peer = client()
    peer.send(settings((MAX_FRAME_SIZE, 30_000), (MAX_FRAME_SIZE, 20_000)))
    handler = peer.opened(1)
    handler.send(b"x" * 25_000)
    assert [len(frame.payload) for frame in peer.take() if frame.kind == DATA] == [20_000, 5_000]


def test_s6_5_3_values_hold_before_the_acknowledgement() -> None:
    """What the new settings let out comes with or after the acknowledgement, never the old way after it."""
    peer = client((INITIAL_WINDOW_SIZE, 0))
    handler = peer.opened(1)
    handler.send(b"abc")
    peer.take()
    frames = peer.send(settings((INITIAL_WINDOW_SIZE, 2)))
    assert sorted(frames, key=lambda frame: frame.kind) == [data(1, b"ab"), Frame(SETTINGS, ACK)]


# --- §6.6 PUSH_PROMISE, §8.4 Server push ---


def test_s6_6_a_client_does_not_push() -> None:
    peer = client()
    peer.opened(1)
    frames = peer.send(Frame(PUSH_PROMISE, END_HEADERS, 1, b"\x00\x00\x00\x02\x88"))
    assert connection_error(peer, frames) == PROTOCOL_ERROR


# --- §6.7 PING, §6.8 GOAWAY ---


def test_s6_7_a_ping_is_answered_with_its_payload() -> None:
    peer = client()
    assert peer.send(ping(b"\x00\x01\x02\x03\xff\xfe\xfd\xfc")) == [ping(b"\x00\x01\x02\x03\xff\xfe\xfd\xfc", ACK)]


def test_s6_7_an_answer_is_not_answered() -> None:
    peer = client()
    assert peer.send(ping(flags=ACK)) == []


@pytest.mark.parametrize("size", [0, 7, 9])
def test_s6_7_a_ping_has_eight_bytes(size: int) -> None:
    peer = client()
    assert connection_error(peer, peer.send(ping(bytes(size)))) == FRAME_SIZE_ERROR


@pytest.mark.parametrize("size", [0, 7])
def test_s6_8_goaway_has_eight_bytes_at_least(size: int) -> None:
    peer = client()
    assert connection_error(peer, peer.send(Frame(GOAWAY, 0, 0, bytes(size)))) == FRAME_SIZE_ERROR


# --- §6.10 CONTINUATION ---


def test_s6_10_continuation_needs_a_header_block() -> None:
    peer = client()
    peer.opened(1)
    assert connection_error(peer, peer.send(Frame(CONTINUATION, END_HEADERS, 1, b"\x88"))) == PROTOCOL_ERROR


def test_s6_10_continuation_does_not_follow_a_whole_block() -> None:
    peer = client()
    frames = peer.send(peer.headers(1), Frame(CONTINUATION, END_HEADERS, 1, b"\x88"))
    assert connection_error(peer, frames) == PROTOCOL_ERROR


def test_s6_10_continuation_stays_on_its_stream() -> None:
    peer = client()
    frames = peer.send(Frame(HEADERS, 0, 1, peer.block()), Frame(CONTINUATION, END_HEADERS, 3))
    assert connection_error(peer, frames) == PROTOCOL_ERROR


@pytest.mark.parametrize("between", [data(1, b"x"), ping(), settings(), Frame(PRIORITY, 0, 1, bytes(5))])
def test_s6_10_nothing_comes_within_a_header_block(between: Frame) -> None:
    peer = client()
    frames = peer.send(Frame(HEADERS, 0, 1, peer.block()), between, Frame(CONTINUATION, END_HEADERS, 1))
    assert connection_error(peer, frames) == PROTOCOL_ERROR


def test_s6_10_end_stream_of_headers_holds_for_the_whole_block() -> None:
    peer = client()
    peer.send(Frame(HEADERS, END_STREAM, 1, peer.block()))
    assert 1 not in peer.handlers
    peer.send(Frame(CONTINUATION, END_HEADERS, 1))
    assert peer.handlers[1].has_ended
    # The block is over: others may come, and it cannot be continued.
    assert peer.send(ping()) == [ping(flags=ACK)]
    assert connection_error(peer, peer.send(Frame(CONTINUATION, END_HEADERS, 1))) == PROTOCOL_ERROR


@pytest.mark.parametrize("count", [16, 17])
def test_s6_10_the_frames_of_a_block_are_bounded(count: int) -> None:
    """Empty ones count as well: the "CONTINUATION flood" of 2024."""
    peer = client(continuations=16)
    frames = peer.send(Frame(HEADERS, 0, 1, peer.block()), *(Frame(CONTINUATION, 0, 1) for _ in range(count)))
    if count > 16:
        assert connection_error(peer, frames) == ENHANCE_YOUR_CALM
    else:
        assert frames == []


@pytest.mark.parametrize("size", [1_000, 1_001])
def test_s6_10_blocks_are_bounded(size: int) -> None:
    peer = client(header_block_bytes=1_000)
    # One that was cut before does not count for the next.
    peer.send(Frame(HEADERS, 0, 1, peer.block()), Frame(CONTINUATION, END_HEADERS, 1))
    frames = peer.send(
        Frame(HEADERS, 0, 3, bytes(600)),
        Frame(CONTINUATION, 0, 3, bytes(200)),
        Frame(CONTINUATION, 0, 3, bytes(size - 800)),
    )
    if size > 1_000:
        assert connection_error(peer, frames) == ENHANCE_YOUR_CALM
    else:
        assert frames == []
