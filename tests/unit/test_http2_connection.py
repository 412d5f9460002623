"""RFC 9113 §3 to §5 of a server's connection: preface, frames, streams, errors. The sections are in the names."""

import pytest
from http2_kit import (
    ACK,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    NO_ERROR,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    REQUEST,
    RESPONSE_BLOCK,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    TRAILER_BLOCK,
    WINDOW_UPDATE,
    Client,
    Frame,
    client,
    connection_error,
    data,
    ping,
    read_frames,
    rst_stream,
    settings,
    stream_error,
    window_update,
)

# --- §3.4 Connection preface ---


def test_s3_4_our_first_frame_is_settings() -> None:
    frames = Client().take()
    assert (frames[0].kind, frames[0].flags, frames[0].stream_id) == (SETTINGS, 0, 0)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"X", PREFACE[:-1] + b"X", b"\x00" * 30])
def test_s3_4_a_wrong_preface_is_a_connection_error(garbage: bytes) -> None:
    peer = Client()
    assert connection_error(peer, peer.raw(garbage)) == PROTOCOL_ERROR


@pytest.mark.parametrize("first", [Frame(SETTINGS, ACK), ping(), window_update(0, 1), Frame(99)])
def test_s3_4_the_first_frame_must_be_settings(first: Frame) -> None:
    peer = Client()
    peer.raw(PREFACE)
    assert connection_error(peer, peer.send(first)) == PROTOCOL_ERROR


def test_s3_4_the_client_need_not_wait_for_our_settings() -> None:
    peer = Client()
    peer.raw(PREFACE + bytes(settings()) + bytes(peer.headers(1, end_stream=True)))
    assert peer.handlers[1].has_ended


def test_s3_4_bytes_may_arrive_one_by_one() -> None:
    peer = Client()
    stream = PREFACE + bytes(settings()) + bytes(peer.headers(1)) + bytes(data(1, b"abc", END_STREAM))
    peer.take()
    written = b""
    for position in range(len(stream)):
        peer.connection.receive(stream[position : position + 1])
        assert not peer.connection.run(0.0, 64)
        written += peer.connection.take()
    assert (peer.handlers[1].received, peer.handlers[1].has_ended) == (b"abc", True)
    assert read_frames(written) == [Frame(SETTINGS, ACK)]


# --- §4.1 Frame format, §4.2 Frame size ---


@pytest.mark.parametrize("kind", [0x0A, 0xFA, 0xFF])
def test_s4_1_unknown_frame_types_are_ignored(kind: int) -> None:
    peer = client()
    assert peer.send(Frame(kind, 0xFF, 77, b"whatever"), ping()) == [ping(flags=ACK)]


def test_s4_1_undefined_flags_are_ignored() -> None:
    peer = client()
    peer.send(Frame(HEADERS, END_HEADERS | 0xD2 & ~0x28, 1, peer.block()))
    assert peer.send(data(1, b"x", 0xF2 & ~0x08), Frame(SETTINGS, 0xFE), ping(flags=0xFE)) == [
        Frame(SETTINGS, ACK),
        ping(flags=ACK),
    ]
    assert peer.handlers[1].received == b"x"


def test_s4_1_the_reserved_bit_is_ignored() -> None:
    peer = client()
    peer.send(peer.headers(1))
    peer.send(data(1 | 0x80000000, b"x"), window_update(0x80000000, 1 | 0x80000000))
    assert peer.handlers[1].received == b"x"
    assert not peer.connection.closed


@pytest.mark.parametrize("kind", [DATA, HEADERS, SETTINGS, 0xFA])
def test_s4_2_a_frame_above_our_max_frame_size_is_an_error(kind: int) -> None:
    peer = client(frame_bytes=16_384)
    peer.opened()
    assert connection_error(peer, peer.send(Frame(kind, 0, 1, bytes(16_385)))) == FRAME_SIZE_ERROR


def test_s4_2_a_frame_above_our_max_frame_size_is_refused_before_it_is_stored() -> None:
    peer = client()
    assert connection_error(peer, peer.raw(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01")) == FRAME_SIZE_ERROR


def test_s4_2_the_largest_frame_is_taken() -> None:
    peer = client()
    peer.opened()
    peer.send(data(1, b"x" * 16_384))
    assert len(peer.handlers[1].received) == 16_384


def test_s4_2_we_keep_to_the_peers_max_frame_size() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 1_000_000))
    handler = peer.opened()
    handler.send(b"x" * 40_000)
    assert [len(frame.payload) for frame in peer.take() if frame.kind == DATA] == [16_384, 16_384, 7_232]
    peer.send(settings((MAX_FRAME_SIZE, 20_000)))
    handler.send(b"x" * 20_001)
    assert [len(frame.payload) for frame in peer.take()] == [20_000, 1]


# --- §4.3 Field section compression ---


def test_s4_3_an_undecodable_block_is_a_connection_error() -> None:
    peer = client()
    frames = peer.send(Frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"))
    assert connection_error(peer, frames) == COMPRESSION_ERROR


@pytest.mark.parametrize(
    "block",
    [
        # RFC 7541 §6.1: index 0 is none, and 62 is the first dynamic entry of an empty table.
        b"\x80",
        b"\xbe",
        # §5.2: the string is longer than the block.
        b"\x00\x05abc",
        # §5.2: Huffman padding of eight bits, padding that is not all ones, and the EOS symbol itself.
        b"\x00\x01x\x82\x07\xff",
        b"\x00\x01x\x81\x00",
        b"\x00\x01x\x84\xff\xff\xff\xff",
        # §4.2: a size update comes first in its block.
        b"\x83\x20",
    ],
)
def test_s4_3_what_hpack_forbids_is_a_connection_error(block: bytes) -> None:
    peer = client()
    assert connection_error(peer, peer.send(Frame(HEADERS, END_HEADERS, 1, block))) == COMPRESSION_ERROR


def test_s4_3_a_table_above_our_size_is_a_connection_error() -> None:
    """RFC 7541 §4.2: the size must not pass SETTINGS_HEADER_TABLE_SIZE, 4,096 unless we say otherwise."""
    peer = client()
    # A size update to 4,097.
    frames = peer.send(Frame(HEADERS, END_HEADERS, 1, b"\x3f\xe2\x1f" + peer.block()))
    assert connection_error(peer, frames) == COMPRESSION_ERROR


def test_s4_3_a_table_size_update_is_followed() -> None:
    peer = client()
    peer.send(peer.headers(1))
    peer.encoder.header_table_size = 0
    peer.send(peer.headers(3))
    peer.encoder.header_table_size = 4_096
    peer.send(peer.headers(5), peer.headers(7))
    assert {handler.head.path for handler in peer.handlers.values()} == {b"/service/method"}
    assert sorted(peer.handlers) == [1, 3, 5, 7]


def test_s4_3_the_table_follows_blocks_that_are_refused() -> None:
    """Blocks of refused, malformed and closed streams fill the table as well, and the next block refers to it."""
    peer = client(concurrent_streams=1)
    peer.opened(1)
    fields = (*REQUEST, (b"x-mark", b"refused"))
    assert stream_error(peer, peer.send(peer.headers(3, fields)), 3) == REFUSED_STREAM
    malformed = (*REQUEST, (b"x-mark", b"malformed"), (b"connection", b"close"))
    assert stream_error(peer, peer.send(peer.headers(5, malformed)), 5) == PROTOCOL_ERROR
    late = (*REQUEST, (b"x-late", b"late"))
    assert peer.send(peer.headers(5, late)) == []
    peer.send(rst_stream(1))
    path = (*REQUEST[:2], (b":path", b"/other"), (b"x-mark", b"malformed"), (b"x-late", b"late"))
    peer.send(peer.headers(7, path), peer.headers(7, ((b"x-late", b"late"),), end_stream=True))
    assert peer.handlers[7].head.path == b"/other"
    assert peer.handlers[7].has_ended


def test_s4_3_a_block_may_be_cut_anywhere() -> None:
    peer = client()
    block = peer.block()
    pieces = [block[:1], b"", block[1:7], block[7:]]
    frames = [
        Frame(CONTINUATION if number else HEADERS, END_HEADERS if number == len(pieces) - 1 else 0, 1, piece)
        for number, piece in enumerate(pieces)
    ]
    assert peer.send(*frames) == []
    assert peer.handlers[1].head.path == b"/service/method"


# --- §5.1 Stream states ---


@pytest.mark.parametrize("frame", [data(3, b"x"), rst_stream(3), window_update(3, 1)])
def test_s5_1_idle_streams_take_nothing_but_headers_and_priority(frame: Frame) -> None:
    peer = client()
    peer.opened(1)
    assert connection_error(peer, peer.send(frame)) == PROTOCOL_ERROR


def test_s5_1_priority_may_come_in_any_state() -> None:
    peer = client()
    priority = bytes(5)
    assert peer.send(Frame(PRIORITY, 0, 9, priority)) == []
    handler = peer.opened(1)
    assert peer.send(Frame(PRIORITY, 0, 1, priority)) == []
    peer.send(data(1, b"x", END_STREAM), Frame(PRIORITY, 0, 1, priority))
    handler.end()
    peer.take()
    assert peer.send(Frame(PRIORITY, 0, 1, priority)) == []
    assert not peer.connection.closed


@pytest.mark.parametrize("kind", [DATA, HEADERS])
def test_s5_1_half_closed_remote_takes_no_content(kind: int) -> None:
    peer = client()
    peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    frame = data(1, b"y") if kind == DATA else peer.headers(1, ((b"x-more", b"y"),), end_stream=True)
    assert stream_error(peer, peer.send(frame), 1) == STREAM_CLOSED
    assert peer.handlers[1].received == b"x"


def test_s5_1_half_closed_remote_takes_window_updates_and_resets() -> None:
    peer = client((INITIAL_WINDOW_SIZE, 0))
    handler = peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    handler.send(b"answer")
    assert [frame.kind for frame in peer.take()] == [HEADERS]
    assert peer.send(window_update(1, 3)) == [data(1, b"ans")]
    assert peer.send(rst_stream(1)) == []
    assert handler.closed_times == 1


def ended_stream() -> Client:
    """A client whose stream 1 was ended by both sides."""
    peer = client()
    handler = peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    handler.end()
    peer.take()
    assert handler.closed_times == 1
    return peer


def test_s5_1_closed_streams_take_no_content() -> None:
    peer = ended_stream()
    assert connection_error(peer, peer.send(data(1, b"x"))) == STREAM_CLOSED


def test_s5_1_closed_streams_take_no_headers() -> None:
    peer = ended_stream()
    assert connection_error(peer, peer.send(peer.headers(1))) == STREAM_CLOSED


def test_s5_1_streams_that_the_client_reset_take_nothing() -> None:
    peer = client()
    peer.opened(1)
    peer.send(rst_stream(1))
    assert connection_error(peer, peer.send(data(1, b"x"))) == STREAM_CLOSED


@pytest.mark.parametrize("frame", [window_update(1, 1), window_update(1, 0), rst_stream(1)])
def test_s5_1_late_updates_and_resets_of_closed_streams_are_ignored(frame: Frame) -> None:
    """They may have crossed our END_STREAM."""
    peer = ended_stream()
    assert peer.send(frame, ping()) == [ping(flags=ACK)]


def test_s5_1_what_crosses_our_reset_is_ignored_but_counted() -> None:
    peer = client(connection_window=100_000, concurrent_streams=1)
    peer.opened(1)
    assert stream_error(peer, peer.send(peer.headers(3)), 3) == REFUSED_STREAM
    crossing = [data(3, b"x" * 10_000), peer.headers(3, ((b"x-late", b"y"),), end_stream=True)]
    assert peer.send(*crossing, window_update(3, 1), rst_stream(3)) == []
    # The connection's window counts it: half of it used is given back.
    frames = peer.send(data(3, b"x" * 16_000), data(3, b"x" * 16_000), data(3, b"x" * 16_000))
    assert frames == [window_update(0, 58_000)]


# --- §5.1.1 Stream identifiers, §5.1.2 Stream concurrency ---


@pytest.mark.parametrize("stream_id", [0, 2, 4])
def test_s5_1_1_clients_open_odd_streams(stream_id: int) -> None:
    peer = client()
    assert connection_error(peer, peer.send(peer.headers(stream_id))) == PROTOCOL_ERROR


def test_s5_1_1_identifiers_must_rise() -> None:
    peer = client()
    peer.opened(5)
    assert connection_error(peer, peer.send(peer.headers(3))) == PROTOCOL_ERROR


def test_s5_1_1_opening_a_stream_closes_the_idle_ones_below() -> None:
    peer = client()
    peer.opened(5)
    assert peer.send(window_update(3, 1), rst_stream(3)) == []
    assert connection_error(peer, peer.send(data(3, b"x"))) == STREAM_CLOSED


def test_s5_1_2_streams_above_our_limit_are_refused() -> None:
    peer = client(concurrent_streams=2)
    peer.opened(1)
    peer.opened(3)
    assert stream_error(peer, peer.send(peer.headers(5)), 5) == REFUSED_STREAM
    assert 5 not in peer.handlers


def test_s5_1_2_half_closed_streams_count_and_closed_ones_do_not() -> None:
    peer = client(concurrent_streams=1)
    handler = peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    assert stream_error(peer, peer.send(peer.headers(3)), 3) == REFUSED_STREAM
    handler.end()
    peer.take()
    peer.opened(5)


def test_s5_1_2_the_limit_is_announced() -> None:
    [announced, *_] = Client().take()
    pairs = {announced.payload[at : at + 2]: announced.payload[at + 2 : at + 6] for at in range(0, 24, 6)}
    assert int.from_bytes(pairs[b"\x00\x03"], "big") == 16_384


# --- §5.4 Error handling ---


def test_s5_4_1_goaway_names_the_last_stream() -> None:
    peer = client()
    peer.opened(7)
    frames = peer.send(ping(b"short"))
    assert int.from_bytes(frames[-1].payload[:4], "big") == 7
    assert connection_error(peer, frames) == FRAME_SIZE_ERROR


def test_s5_4_1_nothing_is_read_after_a_connection_error() -> None:
    peer = client()
    peer.send(ping(b"short"), peer.headers(1))
    assert peer.send(peer.headers(3), ping()) == []
    assert not peer.handlers


def test_s5_4_2_a_reset_is_not_answered_with_a_reset() -> None:
    peer = client()
    peer.opened(1)
    assert peer.send(rst_stream(1), rst_stream(1)) == []


def test_s5_4_2_a_stream_error_leaves_the_other_streams_alone() -> None:
    peer = client(answer=b"ok")
    peer.opened(1)
    peer.opened(3)
    assert stream_error(peer, peer.send(window_update(1, 0)), 1) == PROTOCOL_ERROR
    assert peer.send(data(3, b"x"))[-1] == data(3, b"ok")


# --- §5.5 Extending HTTP/2 ---


def test_s5_5_unknown_frames_within_a_header_block_are_an_error() -> None:
    peer = client()
    frames = peer.send(Frame(HEADERS, 0, 1, peer.block()), Frame(0xFA))
    assert connection_error(peer, frames) == PROTOCOL_ERROR


# --- §8.1 Requests and responses, as far as the connection goes ---


def test_s8_1_a_response_before_the_requests_end_asks_for_no_more() -> None:
    peer = client()
    handler = peer.opened(1)
    peer.send(data(1, b"x"))
    handler.end()
    trailers, reset = peer.take()
    assert (trailers.kind, trailers.flags) == (HEADERS, END_HEADERS | END_STREAM)
    assert (reset.kind, reset.stream_id, reset.number) == (RST_STREAM, 1, NO_ERROR)
    # What was on its way is dropped.
    assert peer.send(data(1, b"more", END_STREAM), ping()) == [ping(flags=ACK)]
    assert handler.received == b"x"


def test_s8_1_a_response_after_the_requests_end_is_not_reset() -> None:
    peer = client()
    handler = peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    handler.send(b"answer")
    handler.end()
    # The first block tells the client that we use no dynamic table (RFC 7541 §4.2).
    assert peer.take() == [
        Frame(HEADERS, END_HEADERS, 1, b"\x20" + RESPONSE_BLOCK),
        data(1, b"answer"),
        Frame(HEADERS, END_HEADERS | END_STREAM, 1, TRAILER_BLOCK),
    ]


def test_s8_1_nothing_is_sent_after_the_end() -> None:
    peer = client()
    handler = peer.opened(1)
    peer.send(data(1, b"x", END_STREAM))
    handler.end()
    peer.take()
    handler.connection.send_data(handler.stream, b"late")
    handler.end()
    assert peer.take() == []


# --- §6.8 GOAWAY and graceful shutdown ---


def test_s6_8_draining_warns_first_and_then_names_the_last_stream() -> None:
    peer = client(answer=b"ok")
    peer.opened(1)
    peer.connection.drain()
    warning, question = peer.take()
    assert (warning.kind, warning.payload) == (GOAWAY, b"\x7f\xff\xff\xff" + bytes(4))
    # Opened before the client read the warning: still served.
    peer.opened(3)
    assert not peer.connection.drained
    [last] = peer.send(Frame(question.kind, ACK, 0, question.payload))
    assert (last.kind, last.payload) == (GOAWAY, b"\x00\x00\x00\x03" + bytes(4))
    # Opened after it: nobody works on it, and nobody is told; the client knows.
    assert peer.send(peer.headers(5), data(5, b"x"), window_update(5, 1), rst_stream(5)) == []
    assert 5 not in peer.handlers
    assert peer.send(data(3, b"x"))[-1] == data(3, b"ok")
    peer.handlers[1].end()
    peer.handlers[3].end()
    assert peer.connection.drained


def test_s6_8_the_last_stream_never_rises_again() -> None:
    peer = client()
    peer.opened(1)
    peer.connection.finish()
    peer.take()
    frames = peer.send(peer.headers(9), ping(b"short"))
    assert int.from_bytes(frames[-1].payload[:4], "big") == 1


def test_s6_8_finish_ends_every_stream_in_order() -> None:
    peer = client()
    handlers = [peer.opened(1), peer.opened(3)]
    peer.connection.finish()
    kinds = [(frame.kind, frame.stream_id) for frame in peer.take()]
    assert kinds == [(GOAWAY, 0), (HEADERS, 1), (RST_STREAM, 1), (HEADERS, 3), (RST_STREAM, 3)]
    assert [handler.closed_times for handler in handlers] == [1, 1]
    assert peer.connection.drained


def test_s6_8_streams_go_on_after_the_clients_goaway() -> None:
    peer = client(answer=b"ok")
    peer.opened(1)
    assert peer.send(Frame(GOAWAY, 0, 0, bytes(8) + b"bye")) == []
    assert peer.send(data(1, b"x"))[-1] == data(1, b"ok")


# --- the machine's own promises ---


def test_a_lost_connection_closes_every_stream_once() -> None:
    peer = client()
    handlers = [peer.opened(1), peer.opened(3)]
    peer.connection.lost()
    peer.connection.lost()
    assert [handler.closed_times for handler in handlers] == [1, 1]
    handlers[0].send(b"late")
    assert peer.take() == []


def test_a_lost_connection_hears_nothing_more() -> None:
    peer = client()
    peer.connection.receive(bytes(peer.headers(1)))
    peer.connection.lost()
    assert peer.send(peer.headers(3), ping()) == []
    assert not peer.handlers


def test_a_failed_connection_has_no_more_to_do() -> None:
    peer = client()
    peer.connection.receive(bytes(ping(b"short")) + bytes(ping()) * 100)
    assert not peer.connection.run(0.0, 1)
    assert peer.connection.failure is not None


def test_draining_begins_once_and_ends_only_if_it_began() -> None:
    peer = client()
    assert not peer.connection.drained
    peer.connection.drain()
    assert len(peer.take()) == 2
    peer.connection.drain()
    assert peer.take() == []
    # An answer to another ping is none to ours.
    assert peer.send(ping(b"whatever", ACK)) == []
    assert not peer.connection.drained


def test_nothing_is_drained_after_the_end() -> None:
    finished = client()
    finished.connection.finish()
    assert [frame.kind for frame in finished.take()] == [GOAWAY]
    finished.connection.drain()
    finished.connection.finish()
    assert finished.take() == []
    failed = client()
    failed.send(ping(b"short"))
    failed.connection.drain()
    failed.connection.finish()
    assert failed.take() == []


@pytest.mark.parametrize("what", ["headers", "data", "end", "resume"])
def test_each_kind_of_output_is_announced(what: str) -> None:
    peer = client()
    handler = peer.opened(1)
    if what == "resume":
        peer.connection.pause()
        handler.send(b"a")
        peer.take()
    before = peer.wakes
    match what:
        case "headers":
            peer.connection.send_headers(handler.stream, RESPONSE_BLOCK)
        case "data":
            peer.connection.send_data(handler.stream, b"a")
        case "end":
            handler.end()
        case "resume":
            peer.connection.resume()
    assert peer.wakes == before + 1
    assert peer.take()


def test_output_outside_of_run_is_announced_once() -> None:
    peer = client()
    handler = peer.opened(1)
    before = peer.wakes
    handler.send(b"a")
    handler.send(b"b")
    assert peer.wakes == before + 1
    peer.take()
    handler.send(b"c")
    assert peer.wakes == before + 2


def test_output_within_run_is_not_announced() -> None:
    peer = client(answer=b"ok")
    peer.send(peer.headers(1), data(1, b"x"))
    assert peer.wakes == 0


def test_run_stops_at_its_budget() -> None:
    peer = client()
    peer.connection.receive(b"".join(bytes(ping(b"%08d" % number)) for number in range(5)))
    assert peer.connection.run(0.0, 2)
    assert len(peer.take()) == 2
    assert peer.connection.run(0.0, 2)
    assert not peer.connection.run(0.0, 2)
    assert [frame.payload for frame in peer.take()] == [b"00000002", b"00000003", b"00000004"]


def test_window_updates_do_not_follow_the_end_of_a_stream() -> None:
    peer = client(stream_window=20_000)
    peer.opened(1)
    frames = peer.send(data(1, b"x" * 15_000, END_STREAM))
    assert [frame for frame in frames if frame.kind == WINDOW_UPDATE] == []
