"""RFC 9113 §5.2 and §6.9: flow control both ways. The sections are in the names."""

import pytest
from http2_kit import (
    ACK,
    DATA,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PADDED,
    PREFACE,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    TRAILER_BLOCK,
    WINDOW_UPDATE,
    Client,
    Frame,
    client,
    connection_error,
    data,
    ping,
    rst_stream,
    settings,
    stream_error,
    window_update,
)


def contents(frames: list[Frame], stream_id: int = 1) -> bytes:
    """The content that went out on a stream."""
    return b"".join(frame.payload for frame in frames if frame.kind == DATA and frame.stream_id == stream_id)


# --- what we send ---


def test_s5_2_we_keep_to_the_streams_window() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 10))
    handler = peer.opened(1)
    handler.send(b"0123456789abcdef")
    assert contents(peer.take()) == b"0123456789"
    assert contents(peer.send(window_update(1, 2))) == b"ab"
    assert contents(peer.send(window_update(1, 100))) == b"cdef"


def test_s5_2_we_keep_to_the_connections_window() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 200_000))
    handler = peer.opened(1)
    handler.send(b"x" * 100_000)
    # §6.9.2: the connection's window is 65,535 at first and no setting changes it.
    assert len(contents(peer.take())) == 65_535
    assert peer.send(window_update(1, 50_000)) == []
    assert len(contents(peer.send(window_update(0, 30_000)))) == 30_000
    assert len(contents(peer.send(window_update(0, 30_000)))) == 4_465


def test_s5_2_the_connections_window_is_shared() -> None:
    peer = client()
    first, second = peer.opened(1), peer.opened(3)
    first.send(b"a" * 60_000)
    second.send(b"b" * 10_000)
    frames = peer.take()
    assert (len(contents(frames, 1)), len(contents(frames, 3))) == (60_000, 5_535)
    assert contents(peer.send(window_update(0, 4_465)), 3) == b"b" * 4_465


def test_s5_2_small_answers_use_the_windows_up() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 10))
    handler = peer.opened(1)
    for piece in (b"abcd", b"efgh", b"ijkl"):
        handler.send(piece)
    assert contents(peer.take()) == b"abcdefghij"
    wide = client((INITIAL_WINDOW_SIZE, 2**31 - 1))
    handler = wide.opened(1)
    for _ in range(5):
        handler.send(b"x" * 16_000)
    assert len(contents(wide.take())) == 65_535


@pytest.mark.parametrize("first", ["stream", "connection"])
def test_s5_2_the_end_waits_for_the_last_byte(first: str) -> None:
    """Both windows let a part out, in turns: the stream ends after all of it, and not before."""
    peer = client((INITIAL_WINDOW_SIZE, 65_540))
    handler = peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    handler.send(b"x" * 65_560)
    handler.end()
    assert len(contents(peer.take())) == 65_535
    # 25 bytes are left; the stream has room for 5, the connection for none.
    if first == "connection":
        assert peer.send(window_update(0, 100)) == [data(1, b"x" * 5)]
        assert peer.send(window_update(1, 10)) == [data(1, b"x" * 10)]
        assert [frame.kind for frame in peer.send(window_update(1, 10))] == [DATA, HEADERS]
    else:
        assert peer.send(window_update(1, 100)) == []
        assert peer.send(window_update(0, 10)) == [data(1, b"x" * 10)]
        assert [frame.kind for frame in peer.send(window_update(0, 15))] == [DATA, HEADERS]
    assert handler.closed_times == 1


def test_s5_2_only_data_is_held_back() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 0))
    handler = peer.opened(1)
    handler.send(b"held")
    assert [frame.kind for frame in peer.take()] == [HEADERS]
    assert peer.send(ping(), settings()) == [ping(flags=ACK), Frame(SETTINGS, ACK)]


def test_s5_2_the_trailers_wait_for_the_data() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 2))
    handler = peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    handler.send(b"abcd")
    handler.end()
    assert contents(peer.take()) == b"ab"
    assert handler.closed_times == 0
    frames = peer.send(window_update(1, 2))
    assert [(frame.kind, frame.flags & END_STREAM) for frame in frames] == [(DATA, 0), (HEADERS, END_STREAM)]
    assert handler.closed_times == 1


def test_s5_2_nothing_follows_trailers_that_wait() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 2))
    handler = peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    handler.send(b"abcd")
    handler.end()
    handler.send(b"late")
    handler.end()
    peer.take()
    frames = peer.send(window_update(1, 100))
    assert [(frame.kind, frame.payload) for frame in frames] == [(DATA, b"cd"), (HEADERS, TRAILER_BLOCK)]


def test_s5_2_later_answers_wait_behind_held_ones() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 3))
    handler = peer.opened(1)
    for piece in (b"abcd", b"e", b"f"):
        handler.send(piece)
    assert contents(peer.take()) == b"abc"
    assert contents(peer.send(window_update(1, 10))) == b"def"


def test_s5_2_a_blocked_stream_does_not_block_the_others() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 3))
    blocked, free = peer.opened(1), peer.opened(3)
    blocked.send(b"abcdef")
    free.send(b"xyz")
    frames = peer.take()
    assert (contents(frames, 1), contents(frames, 3)) == (b"abc", b"xyz")


@pytest.mark.parametrize("end", ["reset", "lost"])
def test_s5_2_held_data_of_a_stream_that_ends_is_dropped(end: str) -> None:
    peer = client((INITIAL_WINDOW_SIZE, 100_000), pending_bytes=50_000)
    handler = peer.opened(1)
    handler.send(b"x" * 100_000)
    assert len(contents(peer.take())) == 65_535
    if end == "reset":
        peer.send(rst_stream(1))
        # Its room is free again for another stream's data.
        other = peer.opened(3)
        other.send(b"y" * 40_000)
        assert not peer.connection.closed
        assert contents(peer.send(window_update(0, 40_000)), 3) == b"y" * 40_000
        assert not peer.connection.closed
    else:
        peer.connection.lost()
        assert contents(peer.take()) == b""


def test_held_data_is_bounded() -> None:
    """Whoever asks much and takes nothing is cut off, but never in the middle of a session's work."""
    peer = client((INITIAL_WINDOW_SIZE, 0), pending_bytes=1_000)
    handler = peer.opened(1)
    handler.send(b"x" * 600)
    handler.send(b"x" * 400)
    peer.take()
    assert not peer.connection.closed
    handler.send(b"x")
    assert not peer.connection.closed
    assert connection_error(peer, peer.take()) == ENHANCE_YOUR_CALM


def test_a_paused_transport_holds_data_back() -> None:
    peer = client()
    handler = peer.opened(1)
    peer.connection.pause()
    handler.send(b"abc")
    assert contents(peer.take()) == b""
    # Windows and settings change nothing meanwhile.
    frames = peer.send(window_update(0, 10), window_update(1, 10), settings((INITIAL_WINDOW_SIZE, 70_000)), ping())
    assert contents(frames) == b""
    assert ping(flags=ACK) in frames
    peer.connection.resume()
    assert contents(peer.take()) == b"abc"


def test_a_stream_that_ended_while_paused_ends_at_the_resumption() -> None:
    peer = client()
    handler = peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    peer.connection.pause()
    handler.send(b"abc")
    handler.end()
    peer.take()
    assert handler.closed_times == 0
    peer.connection.resume()
    assert [frame.kind for frame in peer.take()] == [DATA, HEADERS]
    assert handler.closed_times == 1


# --- §6.9 WINDOW_UPDATE, §6.9.1, §6.9.2 ---


def test_s6_9_an_update_by_zero_is_an_error() -> None:
    peer = client()
    peer.opened(1)
    assert stream_error(peer, peer.send(window_update(1, 0)), 1) == PROTOCOL_ERROR
    assert connection_error(peer, peer.send(window_update(0, 0))) == PROTOCOL_ERROR


@pytest.mark.parametrize("size", [0, 3, 5])
@pytest.mark.parametrize("stream_id", [0, 1])
def test_s6_9_an_update_has_four_bytes(stream_id: int, size: int) -> None:
    peer = client()
    peer.opened(1)
    frames = peer.send(Frame(WINDOW_UPDATE, 0, stream_id, bytes(size)))
    assert connection_error(peer, frames) == FRAME_SIZE_ERROR


def test_s6_9_1_a_window_above_the_largest_is_an_error() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 1))
    peer.opened(1)
    assert peer.send(window_update(1, 2**31 - 2)) == []
    assert stream_error(peer, peer.send(window_update(1, 1)), 1) == FLOW_CONTROL_ERROR
    assert peer.send(window_update(0, 2**31 - 1 - 65_535)) == []
    assert connection_error(peer, peer.send(window_update(0, 1))) == FLOW_CONTROL_ERROR


def test_s6_9_2_a_larger_initial_window_lets_data_out() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 2))
    first, second = peer.opened(1), peer.opened(3)
    first.send(b"abcdef")
    second.send(b"uvwxyz")
    peer.take()
    frames = peer.send(settings((INITIAL_WINDOW_SIZE, 4)))
    assert (contents(frames, 1), contents(frames, 3)) == (b"cd", b"wx")


def test_s6_9_2_a_smaller_initial_window_may_make_windows_negative() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 10))
    handler = peer.opened(1)
    handler.send(b"0123456789abc")
    assert contents(peer.take()) == b"0123456789"
    # 10 - 10 sent, now 3 - 10: seven below zero.
    peer.send(settings((INITIAL_WINDOW_SIZE, 3)))
    assert contents(peer.send(window_update(1, 7))) == b""
    assert contents(peer.send(window_update(1, 2))) == b"ab"


def test_s6_9_2_a_larger_initial_window_past_the_largest_is_an_error() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 1))
    peer.opened(1)
    peer.send(window_update(1, 2**31 - 2))
    assert connection_error(peer, peer.send(settings((INITIAL_WINDOW_SIZE, 2)))) == FLOW_CONTROL_ERROR


def test_s6_9_2_trailers_may_follow_what_new_settings_let_out() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 0))
    handler = peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    handler.send(b"abc")
    handler.end()
    peer.take()
    frames = peer.send(settings((INITIAL_WINDOW_SIZE, 3)))
    assert [frame.kind for frame in frames if frame.stream_id == 1] == [DATA, HEADERS]


# --- what we receive ---


def test_s6_9_our_windows_are_announced() -> None:
    announced, update = Client().take()
    pairs = {announced.payload[at : at + 2]: announced.payload[at + 2 : at + 6] for at in range(0, 24, 6)}
    assert int.from_bytes(pairs[b"\x00\x04"], "big") == 1_048_576
    assert update == window_update(0, 16_777_216 - 65_535)


def test_s6_9_more_than_the_streams_window_is_a_stream_error() -> None:
    peer = client(stream_window=20_000)
    peer.opened(1)
    # Half of a window is topped up at once, so only a burst within one update overruns it.
    assert peer.send(data(1, b"x" * 9_999)) == []
    assert stream_error(peer, peer.send(data(1, b"x" * 10_002)), 1) == FLOW_CONTROL_ERROR


def test_s6_9_a_whole_window_may_come_at_once() -> None:
    peer = client(stream_window=10_000, connection_window=10_000)
    peer.opened(1)
    assert peer.send(data(1, b"x" * 10_000)) == [window_update(0, 10_000), window_update(1, 10_000)]


def test_s6_9_more_than_the_connections_window_is_a_connection_error() -> None:
    peer = client(connection_window=10_000)
    peer.opened(1)
    assert connection_error(peer, peer.send(data(1, b"x" * 10_001))) == FLOW_CONTROL_ERROR


def test_s6_9_both_windows_are_topped_up_when_half_is_used() -> None:
    peer = client(stream_window=20_000, connection_window=40_000)
    peer.opened(1)
    assert peer.send(data(1, b"x" * 9_999)) == []
    assert peer.send(data(1, b"x")) == [window_update(1, 10_000)]
    assert peer.send(data(1, b"x" * 10_000)) == [window_update(0, 20_000), window_update(1, 10_000)]


def test_s6_9_padding_counts() -> None:
    peer = client(stream_window=512)
    peer.opened(1)
    assert peer.send(data(1, b"\xff" + bytes(255), PADDED)) == [window_update(1, 256)]


def test_s6_9_data_on_closed_streams_counts_for_the_connection() -> None:
    peer = client(connection_window=20_000)
    handler = peer.opened(1)
    handler.end()
    assert [frame.kind for frame in peer.take()] == [HEADERS, RST_STREAM]
    assert peer.send(data(1, b"x" * 10_000)) == [window_update(0, 10_000)]


def test_a_body_of_megabytes_flows_with_few_updates() -> None:
    peer = client()
    handler = peer.opened(1)
    updates = []
    for _ in range(640):
        updates += peer.send(data(1, b"x" * 16_384))
    assert len(handler.received) == 10 * 1024 * 1024
    assert {frame.kind for frame in updates} == {WINDOW_UPDATE}
    assert len(updates) <= 25


@pytest.mark.parametrize("size", [1_000, 65_535])
def test_the_preface_of_windows_counts_from_the_default(size: int) -> None:
    """A connection window below the default cannot be announced, so none is; and no update is by 0."""
    peer = Client(client(connection_window=size).limits)
    assert [frame.kind for frame in peer.take()] == [SETTINGS]
    peer.raw(PREFACE)
