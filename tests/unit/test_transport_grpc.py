"""The gRPC layer over our HTTP/2, sans-IO: framing, statuses, what is refused and how."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hpack import Decoder
from http2_kit import (
    ACK,
    DATA,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    NO_ERROR,
    REQUEST,
    RST_STREAM,
    Client,
    Frame,
    data,
    ping,
)
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transport_kit import PROCESS, Script, Scripts

from extproc.grpc import health, response
from extproc.grpc.context import ServerContext
from extproc.grpc.framing import FramingError, MessageReader, framed, whole_message
from extproc.grpc.server import application
from extproc.http2.connection import Connection
from extproc.stream import Session

MAX_MESSAGE = 1_000
CALL = (*REQUEST[:2], (b":path", PROCESS.encode()), *REQUEST[3:])


def prefixed(message: bytes, flag: int = 0) -> bytes:
    """A message as gRPC frames it."""
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


@dataclass
class Caller(Client):
    """A client of the gRPC server."""

    scripts: Scripts = field(default_factory=Scripts)
    max_buffered: int = 4_000
    factory: Callable[[Callable[[bytes], None]], Session] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        factory = self.factory or self.scripts
        self.context = ServerContext(
            factory=factory, max_message_bytes=MAX_MESSAGE, max_buffered_bytes=self.max_buffered
        )
        self.connection = Connection(application(self.context), self.limits, self._wake)
        self.connection.start()
        self.answers = Decoder()

    def call(self, *frames: Frame, stream_id: int = 1) -> list[Frame]:
        """Open an ext_proc stream and send on it."""
        return self.send(self.headers(stream_id, CALL), *frames)

    def fields(self, frame: Frame) -> dict[bytes, bytes]:
        """The fields of a header block; each must be read once, in order."""
        assert frame.kind == HEADERS
        return dict(self.answers.decode(frame.payload, raw=True))


def caller(**options: object) -> Caller:
    peer = Caller(**options)  # type: ignore[arg-type]
    peer.shake_hands()
    return peer


def test_an_answer_has_headers_a_message_and_trailers() -> None:
    peer = caller()
    headers, message = peer.call(data(1, prefixed(b"echo abc")))
    assert peer.fields(headers) == {b":status": b"200", b"content-type": b"application/grpc"}
    assert message == data(1, prefixed(b"abc"))
    [trailers] = peer.send(data(1, b"", END_STREAM))
    assert trailers.flags & END_STREAM
    assert peer.fields(trailers) == {b"grpc-status": b"0"}
    assert [script.closed for script in peer.scripts.sessions] == [1]
    assert (peer.context.stats.streams_total, peer.context.stats.streams_open) == (1, 0)


def test_an_end_without_an_answer_is_trailers_only() -> None:
    peer = caller()
    [trailers] = peer.call(data(1, prefixed(b"silent"), END_STREAM))
    assert peer.fields(trailers) == {b":status": b"200", b"content-type": b"application/grpc", b"grpc-status": b"0"}


@pytest.mark.parametrize(
    ("message", "code", "text", "kind"),
    [
        (prefixed(b"bad"), b"3", b"no such phase", "stream_error"),
        (prefixed(b"unready"), b"14", b"not yet", "unready"),
        (prefixed(b"bug"), b"13", b"internal error", "session"),
        (prefixed(b"x", flag=1), b"12", b"compressed messages are not taken", "framing"),
        (prefixed(b"x", flag=2), b"13", b"a message prefix that gRPC does not know", "framing"),
        (b"\x00\x00\x00\x03\xe9", b"8", b"a message of 1001 bytes, allowed are 1000", "framing"),
    ],
)
@pytest.mark.parametrize("answered", [False, True])
def test_a_call_that_fails_ends_with_its_status(
    message: bytes, code: bytes, text: bytes, kind: str, *, answered: bool
) -> None:
    peer = caller()
    frames = peer.call()
    if answered:
        frames = peer.send(data(1, prefixed(b"echo 1")))
        peer.fields(frames[0])
    trailers, reset = peer.send(data(1, message))
    fields = peer.fields(trailers)
    assert (fields[b"grpc-status"], fields[b"grpc-message"]) == (code, text)
    assert (b":status" in fields) is not answered
    # The client has not ended its side: it is asked to send no more.
    assert (reset.kind, reset.number) == (RST_STREAM, NO_ERROR)
    assert [script.closed for script in peer.scripts.sessions] == [1]
    assert peer.context.stats.streams_open == 0
    assert peer.context.stats.errors == {kind: 1}
    # The connection lives on.
    assert peer.send(data(1, prefixed(b"echo 2"))) == []
    assert peer.call(data(3, prefixed(b"echo 3")), stream_id=3)[-1] == data(3, prefixed(b"3"))


def test_messages_and_frames_need_not_align() -> None:
    peer = caller()
    stream = prefixed(b"echo one") + prefixed(b"echo ") + prefixed(b"echo three")
    for step in range(1, len(stream) + 1):
        peer = caller()
        frames = peer.call(*(data(1, stream[at : at + step]) for at in range(0, len(stream), step)))
        assert [frame.payload[5:] for frame in frames if frame.kind == DATA] == [b"one", b"", b"three"]
        assert peer.context.buffered == 0


def test_a_stream_that_ends_within_a_message() -> None:
    peer = caller()
    [trailers] = peer.call(data(1, prefixed(b"echo abc")[:-1], END_STREAM))
    assert peer.fields(trailers)[b"grpc-status"] == b"13"
    assert peer.scripts.sessions[0].received == []
    assert peer.context.stats.errors == {"framing": 1}
    assert peer.context.buffered == 0


def test_incomplete_messages_are_bounded_together() -> None:
    """Each is within its own bound, but no client may begin any number of them."""
    peer = caller(max_buffered=2_000)
    half = b"\x00\x00\x00\x03\xe8" + b"x" * 895
    assert peer.call(data(1, half)) == []
    assert peer.call(data(3, half), stream_id=3) == []
    trailers, _ = peer.call(data(5, half), stream_id=5)
    assert peer.fields(trailers)[b"grpc-status"] == b"8"
    assert peer.context.buffered == 1_800
    # The others may finish, and what they held is free again.
    assert [frame.kind for frame in peer.send(data(1, b"x" * 105))] == [HEADERS, RST_STREAM]
    assert peer.context.buffered == 900
    peer.connection.lost()
    assert peer.context.buffered == 0


def test_a_session_that_cannot_be_made_costs_its_stream_only() -> None:
    def broken(_: Callable[[bytes], None]) -> Script:
        raise RuntimeError("no session today")

    peer = caller(factory=broken)
    trailers, reset = peer.call()
    assert peer.fields(trailers)[b"grpc-status"] == b"13"
    assert reset.kind == RST_STREAM
    assert peer.context.stats.streams_open == 0
    assert peer.send(ping()) == [ping(flags=ACK)]


def test_a_session_that_cannot_be_closed_costs_nothing() -> None:
    class Stubborn(Script):
        def close(self) -> None:
            raise RuntimeError("I stay")

    peer = caller(factory=Stubborn)
    [trailers] = peer.call(data(1, prefixed(b"silent"), END_STREAM))
    assert peer.fields(trailers)[b"grpc-status"] == b"0"
    assert peer.context.stats.errors["session"] == 1
    assert peer.context.stats.streams_open == 0


def test_answers_after_the_end_are_dropped() -> None:
    peer = caller()
    peer.call(data(1, prefixed(b"silent"), END_STREAM))
    peer.scripts.sessions[0].send(b"late")
    assert peer.take() == []


def test_an_answer_that_the_window_holds_back_comes_before_the_trailers() -> None:
    peer = Caller().shake_hands((INITIAL_WINDOW_SIZE, 6))
    assert isinstance(peer, Caller)
    frames = peer.call(data(1, prefixed(b"echo abc"), END_STREAM))
    assert [frame.payload for frame in frames if frame.kind == DATA] == [prefixed(b"abc")[:6]]
    # The session is closed when the client's end comes, whatever still waits.
    assert [script.closed for script in peer.scripts.sessions] == [1]
    frames = peer.send(Frame(0x8, 0, 1, b"\0\0\0\x09"))
    assert [(frame.kind, frame.flags & END_STREAM) for frame in frames] == [(DATA, 0), (HEADERS, END_STREAM)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (((b":method", b"GET"), *CALL[1:]), {b":status": b"405"}),
        ((*CALL[:5], (b"content-type", b"application/json")), {b":status": b"415"}),
        (CALL[:5], {b":status": b"415"}),
    ],
)
def test_what_is_no_grpc_is_answered_in_http(
    fields: tuple[tuple[bytes, bytes], ...], expected: dict[bytes, bytes]
) -> None:
    peer = caller()
    [answer] = peer.send(peer.headers(1, fields, end_stream=True))
    assert peer.fields(answer) == expected
    assert answer.flags & END_STREAM
    assert peer.scripts.sessions == []
    answer, reset = peer.send(peer.headers(3, fields))
    assert (answer.kind, reset.kind) == (HEADERS, RST_STREAM)
    assert peer.send(data(3, b"body", END_STREAM), ping()) == [ping(flags=ACK)]


def test_content_type_may_name_its_codec() -> None:
    peer = caller()
    fields = (*CALL[:5], (b"content-type", b"application/grpc+proto"))
    assert peer.send(peer.headers(1, fields), data(1, prefixed(b"echo 1")))[-1] == data(1, prefixed(b"1"))


@pytest.mark.parametrize("path", [b"/envoy.service.ext_proc.v3.ExternalProcessor/Other", b"/", b"*"])
def test_unknown_methods_are_unimplemented(path: bytes) -> None:
    peer = caller()
    answer, _ = peer.send(peer.headers(1, (*CALL[:2], (b":path", path), *CALL[3:])))
    assert peer.fields(answer)[b"grpc-status"] == b"12"


# --- health checks ---

CHECK = (*REQUEST[:2], (b":path", b"/grpc.health.v1.Health/Check"), *REQUEST[3:])
WATCH = (*REQUEST[:2], (b":path", b"/grpc.health.v1.Health/Watch"), *REQUEST[3:])


def test_a_check_may_come_in_pieces() -> None:
    peer = caller()
    assert peer.send(peer.headers(1, CHECK), data(1, b"\0\0\0\0"), data(1, b"\x05\x0a\x03")) == []
    [trailers] = peer.send(data(1, b"abc", END_STREAM))
    assert peer.fields(trailers)[b"grpc-status"] == b"5"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (prefixed(b"\x0b"), b"3"),
        (prefixed(b"", flag=1), b"12"),
        (b"\x00\x00\x00\x04\x01", b"8"),
        (b"", b"13"),
        (b"\x00\x00", b"13"),
    ],
)
@pytest.mark.parametrize("method", [CHECK, WATCH])
def test_what_is_no_health_call_is_refused(
    content: bytes, code: bytes, method: tuple[tuple[bytes, bytes], ...]
) -> None:
    peer = caller()
    [trailers] = peer.send(peer.headers(1, method), data(1, content, END_STREAM))
    assert peer.fields(trailers)[b"grpc-status"] == code
    assert peer.connection.open_streams == 0


def test_a_check_answers_once() -> None:
    peer = caller()
    frames = peer.send(peer.headers(1, CHECK), data(1, prefixed(b"") * 2))
    assert [frame.payload for frame in frames if frame.kind == DATA] == [prefixed(b"\x08\x01")]
    assert peer.send(data(1, prefixed(b"")), ping()) == [ping(flags=ACK)]


def test_a_check_while_draining() -> None:
    peer = caller()
    peer.context.drain()
    frames = peer.send(peer.headers(1, CHECK), data(1, prefixed(b""), END_STREAM))
    assert [frame.payload for frame in frames if frame.kind == DATA] == [prefixed(b"\x08\x02")]


def test_a_watch_lives_until_we_drain() -> None:
    peer = caller()
    frames = peer.send(peer.headers(1, WATCH), data(1, prefixed(b""), END_STREAM))
    assert [(frame.kind, frame.flags & END_STREAM) for frame in frames] == [(HEADERS, 0), (DATA, 0)]
    assert len(peer.context.watches) == 1
    peer.context.drain()
    message, trailers = peer.take()
    assert message == data(1, prefixed(b"\x08\x02"))
    assert peer.fields(trailers)[b"grpc-status"] == b"0"
    assert peer.context.watches == set()


@pytest.mark.parametrize("end", ["reset", "lost", "finish"])
def test_a_watch_that_ends_is_forgotten(end: str) -> None:
    peer = caller()
    peer.send(peer.headers(1, WATCH), data(1, prefixed(b""), END_STREAM))
    match end:
        case "reset":
            peer.send(Frame(RST_STREAM, 0, 1, bytes(4)))
        case "lost":
            peer.connection.lost()
        case "finish":
            peer.connection.finish()
            assert peer.take()[-1].flags & END_STREAM
    assert peer.context.watches == set()
    peer.context.drain()
    assert peer.take() == []


# --- the pieces ---


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("plain text", b"plain text"),
        ("100 %", b"100 %25"),
        ("a\nb", b"a%0Ab"),
        ("é", b"%C3%A9"),
        ("\x7f~", b"%7F~"),
        ("\ud800", b"?"),
    ],
)
def test_status_messages_are_percent_encoded(text: str, encoded: bytes) -> None:
    """PROTOCOL-HTTP2.md: "%", control characters and everything outside ASCII are escaped, byte by byte."""
    fields = dict(Decoder().decode(response.trailers(3, text), raw=True))
    assert fields == {b"grpc-status": b"3", b"grpc-message": encoded}


def test_status_messages_are_cut_before_an_escape() -> None:
    fields = dict(Decoder().decode(response.trailers(3, "é" * 1_000), raw=True))
    assert fields[b"grpc-message"] == b"%C3%A9" * 170 + b"%C3"


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 383, 1_024])
def test_string_lengths_are_encoded_as_hpack_reads_them(size: int) -> None:
    """RFC 7541 §5.1: a prefix of seven bits, then groups of seven."""
    fields = dict(Decoder().decode(response.trailers(3, "x" * size), raw=True))
    assert fields.get(b"grpc-message", b"") == b"x" * size


def test_prebuilt_blocks_mean_what_they_say() -> None:
    for block, expected in [
        (response.HEADERS, {b":status": b"200", b"content-type": b"application/grpc"}),
        (response.TRAILERS_OK, {b"grpc-status": b"0"}),
        (response.http_refusal(415), {b":status": b"415"}),
    ]:
        decoder = Decoder()
        assert dict(decoder.decode(block, raw=True)) == expected
        assert len(decoder.header_table.dynamic_entries) == 0


@hypothesis_settings(deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=8), st.lists(st.integers(1, 20), min_size=1))
def test_any_cut_of_any_messages_gives_them_back(messages: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(map(prefixed, messages))
    assert stream == b"".join(map(framed, messages))
    reader = MessageReader(30)
    found: list[bytes] = []
    position = 0
    while position < len(stream):
        size = sizes[position % len(sizes)]
        found += reader.feed(stream[position : position + size])
        assert reader.buffered <= 30 + 5
        position += size
    assert found == messages
    assert reader.buffered == 0


def test_whole_messages_are_seen_as_such() -> None:
    assert whole_message(prefixed(b"abc"), 3) == b"abc"
    assert whole_message(prefixed(b""), 0) == b""
    for other in [b"", b"\0\0\0\0", prefixed(b"abc")[:-1], prefixed(b"abc") + b"\0", prefixed(b"abc", 1)]:
        assert whole_message(other, 100) is None
    assert whole_message(prefixed(b"abcd"), 3) is None


def test_a_message_too_large_is_refused_before_it_is_stored() -> None:
    with pytest.raises(FramingError) as caught:
        MessageReader(10).feed(b"\x00\x00\x00\x00\x0b")
    assert caught.value.status == 8


@pytest.mark.parametrize(
    ("message", "service"),
    [
        (b"", ""),
        (b"\x0a\x03abc", "abc"),
        # The last one counts, unknown fields of every wire type are skipped.
        (b"\x0a\x01a\x0a\x01b", "b"),
        (b"\x10\x96\x01\x19" + b"\xff" * 8 + b"\x25" + b"\xff" * 4 + b"\x2a\x02hi\x0a\x01z", "z"),
        # A length of two bytes: 2 + 1 * 128.
        (b"\x0a\x82\x01" + b"n" * 130, "n" * 130),
    ],
)
def test_health_requests_are_read(message: bytes, service: str) -> None:
    assert health.parse_request(message) == service


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x0a", "cut short"),
        (b"\x0a\x05abc", "cut short"),
        (b"\x19\x00", "cut short"),
        (b"\x0a\xff\xff\xff\xff\x0f", "cut short"),
        (b"\x0b", "wire type 3"),
        (b"\x80" * 11, "ten bytes"),
        (b"\x0a\x01\xff", "utf-8"),
    ],
)
def test_what_is_no_health_request_is_refused(message: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        health.parse_request(message)
