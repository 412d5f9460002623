"""RFC 9113 §8: what makes a request malformed; and the cache of header blocks, held against plain decoding."""

import pytest
from hpack import Decoder, Encoder
from http2_kit import (
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    HEADERS,
    PROTOCOL_ERROR,
    REQUEST,
    Frame,
    client,
    connection_error,
    data,
    stream_error,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.http2.headers import HeaderDecoder, MalformedError, request_head

Fields = tuple[tuple[bytes, bytes], ...]


def with_field(name: bytes, value: bytes) -> Fields:
    return (*REQUEST, (name, value))


def without(name: bytes) -> Fields:
    return tuple(field for field in REQUEST if field[0] != name)


def replaced(name: bytes, value: bytes) -> Fields:
    return tuple((field[0], value) if field[0] == name else field for field in REQUEST)


MALFORMED = {
    "s8_2_1 upper case": with_field(b"X-Mark", b"1"),
    "s8_2_1 a blank in a name": with_field(b"x mark", b"1"),
    "s8_2_1 a control character in a name": with_field(b"x\x00mark", b"1"),
    "s8_2_1 delete in a name": with_field(b"x\x7fmark", b"1"),
    "s8_2_1 a name outside ASCII": with_field(b"x\xffmark", b"1"),
    "s8_2_1 a colon in a name": with_field(b"x:mark", b"1"),
    "s8_2_1 an empty name": with_field(b"", b"1"),
    "s8_2_1 NUL in a value": with_field(b"x-mark", b"a\x00b"),
    "s8_2_1 a line feed in a value": with_field(b"x-mark", b"a\nb"),
    "s8_2_1 a carriage return in a value": with_field(b"x-mark", b"a\rb"),
    "s8_2_1 a blank before a value": with_field(b"x-mark", b" a"),
    "s8_2_1 a tab after a value": with_field(b"x-mark", b"a\t"),
    "s8_2_1 a line feed in a pseudo-header": replaced(b":path", b"/a\n"),
    "s8_2_2 connection": with_field(b"connection", b"keep-alive"),
    "s8_2_2 proxy-connection": with_field(b"proxy-connection", b"keep-alive"),
    "s8_2_2 keep-alive": with_field(b"keep-alive", b"1"),
    "s8_2_2 transfer-encoding": with_field(b"transfer-encoding", b"chunked"),
    "s8_2_2 upgrade": with_field(b"upgrade", b"h2c"),
    "s8_2_2 te other than trailers": replaced(b"te", b"gzip"),
    "s8_3 a pseudo-header after a regular field": (*REQUEST[:2], *REQUEST[3:], REQUEST[2]),
    "s8_3 an unknown pseudo-header": ((b":what", b"1"), *REQUEST),
    "s8_3 a pseudo-header of responses": ((b":status", b"200"), *REQUEST),
    "s8_3_1 two methods": (REQUEST[0], *REQUEST),
    "s8_3_1 two paths": (REQUEST[2], *REQUEST),
    "s8_3_1 two schemes": (REQUEST[1], *REQUEST),
    "s8_3_1 two authorities": (REQUEST[3], *REQUEST),
    "s8_3_1 no method": without(b":method"),
    "s8_3_1 no scheme": without(b":scheme"),
    "s8_3_1 no path": without(b":path"),
    "s8_3_1 an empty path": replaced(b":path", b""),
    "s8_1_1 a content-length that is no number": with_field(b"content-length", b"+5"),
    "s8_1_1 two different content-lengths": (*REQUEST, (b"content-length", b"5"), (b"content-length", b"6")),
    "s8_5 CONNECT with a path": ((b":method", b"CONNECT"), (b":authority", b"host:1"), (b":path", b"/")),
    "s8_5 CONNECT with a scheme": ((b":method", b"CONNECT"), (b":authority", b"host:1"), (b":scheme", b"http")),
    "s8_5 CONNECT without an authority": ((b":method", b"CONNECT"),),
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED.keys())
def test_s8_malformed_requests_end_their_stream(fields: Fields) -> None:
    peer = client()
    assert stream_error(peer, peer.send(peer.headers(1, fields)), 1) == PROTOCOL_ERROR
    assert not peer.handlers


@pytest.mark.parametrize(
    "fields",
    [
        without(b":authority"),
        with_field(b"x-empty", b""),
        with_field(b"x-bytes", b"\xff\xfe inner blank\tand tab"),
        with_field(b"!#$%&'*+-.^_`|~09az", b"1"),
        replaced(b":method", b"OPTIONS"),
        replaced(b"te", b"Trailers"),
        (*REQUEST, (b"content-length", b"0"), (b"content-length", b"0")),
        ((b":method", b"CONNECT"), (b":authority", b"host:1")),
    ],
)
def test_s8_well_formed_requests_are_taken(fields: Fields) -> None:
    peer = client()
    assert peer.send(peer.headers(1, fields)) == []
    assert 1 in peer.handlers


def test_s8_1_1_content_length_is_held_against_the_content() -> None:
    fields = with_field(b"content-length", b"5")
    for chunks, good in [
        ([(b"abc", 0), (b"de", END_STREAM)], True),
        ([(b"abcde", 0), (b"", END_STREAM)], True),
        ([(b"abcdef", 0)], False),
        ([(b"abc", 0), (b"d", END_STREAM)], False),
        ([(b"", END_STREAM)], False),
    ]:
        peer = client()
        peer.send(peer.headers(1, fields))
        frames = peer.send(*(data(1, content, flags) for content, flags in chunks))
        if good:
            assert frames == []
            assert peer.handlers[1].has_ended
        else:
            assert stream_error(peer, frames, 1) == PROTOCOL_ERROR
            assert not peer.handlers[1].has_ended


def test_s8_1_1_content_length_without_content() -> None:
    peer = client()
    frames = peer.send(peer.headers(1, with_field(b"content-length", b"5"), end_stream=True))
    assert stream_error(peer, frames, 1) == PROTOCOL_ERROR
    peer.send(peer.headers(3, with_field(b"content-length", b"0"), end_stream=True))
    assert peer.handlers[3].has_ended


def test_s8_1_1_content_length_is_held_against_trailers_too() -> None:
    peer = client()
    peer.send(peer.headers(1, with_field(b"content-length", b"5")))
    frames = peer.send(data(1, b"abc"), peer.headers(1, ((b"x-sum", b"1"),), end_stream=True))
    assert stream_error(peer, frames, 1) == PROTOCOL_ERROR


# --- trailers ---


def test_s8_1_trailers_end_the_stream() -> None:
    peer = client()
    peer.opened(1)
    assert peer.send(data(1, b"x"), peer.headers(1, ((b"x-sum", b"1"),), end_stream=True)) == []
    assert peer.handlers[1].has_ended


@pytest.mark.parametrize(
    ("fields", "end_stream"),
    [
        (((b"x-sum", b"1"),), False),
        (((b":path", b"/"),), True),
        (((b"x-sum", b"1"), (b":status", b"200")), True),
        (((b"X-Sum", b"1"),), True),
        (((b"connection", b"close"),), True),
        (((b"x-sum", b"a\nb"),), True),
    ],
)
def test_s8_1_malformed_trailers_end_their_stream(fields: Fields, *, end_stream: bool) -> None:
    peer = client()
    peer.opened(1)
    frames = peer.send(data(1, b"x"), peer.headers(1, fields, end_stream=end_stream))
    assert stream_error(peer, frames, 1) == PROTOCOL_ERROR
    assert not peer.handlers[1].has_ended


# --- bounds ---


def test_s10_5_1_a_header_bomb_is_refused() -> None:
    """A few bytes that name the same large entry again and again (RFC 7541 §7.3)."""
    peer = client(header_list_bytes=65_536)
    bomb = peer.block((*REQUEST, (b"x-bomb", b"b" * 3_000)))
    # The newest entry of the dynamic table is 62.
    frames = peer.send(Frame(HEADERS, END_HEADERS, 1, bomb), Frame(HEADERS, END_HEADERS, 3, bomb + b"\xbe" * 5_000))
    assert connection_error(peer, frames) == ENHANCE_YOUR_CALM
    assert list(peer.handlers) == [1]


# --- what is kept of a request ---


def test_the_head_of_a_request() -> None:
    head = request_head((*REQUEST, (b"content-length", b"12")))
    assert (head.method, head.path) == (b"POST", b"/service/method")
    assert (head.content_type, head.content_length) == (b"application/grpc", 12)


# --- the cache of blocks ---


def test_a_repeated_block_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder()
    decoder = HeaderDecoder(65_536)
    decoder.request(encoder.encode(REQUEST))
    repeated = encoder.encode(REQUEST)
    first = decoder.request(repeated)
    monkeypatch.setattr(Decoder, "decode", None)
    assert decoder.request(repeated) is first


def test_a_repeated_block_means_something_else_when_the_table_moved() -> None:
    """The same bytes name another entry once a new one was inserted before it."""
    decoder = HeaderDecoder(65_536)
    encoder = Encoder()
    decoder.request(encoder.encode((*REQUEST[:2], (b":path", b"/old"))))
    # :method POST, :scheme http, and the newest dynamic entry.
    block = b"\x83\x86\xbe"
    assert decoder.request(block).path == b"/old"
    assert decoder.request(block).path == b"/old"
    decoder.request(encoder.encode((*REQUEST[:2], (b":path", b"/new"))))
    assert decoder.request(block).path == b"/new"


def test_trailers_that_move_the_table_count_as_well() -> None:
    decoder = HeaderDecoder(65_536)
    block = b"\x83\x86\xbe"
    # A literal with incremental indexing under the static name `:path` (4).
    decoder.decode(b"\x44\x04/old")
    assert decoder.request(block).path == b"/old"
    decoder.decode(b"\x44\x04/new")
    assert decoder.request(block).path == b"/new"


def test_shrinking_the_table_forgets_the_blocks() -> None:
    decoder = HeaderDecoder(65_536)
    decoder.decode(b"\x44\x04/old")
    block = b"\x83\x86\xbe"
    decoder.request(block)
    # A size update to 0 empties the table: the block refers to nothing now.
    decoder.decode(b"\x20")
    with pytest.raises(Exception, match="COMPRESSION_ERROR"):
        decoder.request(block)


def test_the_cache_is_bounded() -> None:
    decoder = HeaderDecoder(65_536)
    for number in range(1_000):
        # Literals without indexing: each block differs and none moves the table.
        path = b"/%04d" % number
        assert decoder.request(b"\x83\x86\x04\x05" + path).path == path
    assert len(decoder._heads) <= 64


NAMES = st.sampled_from([b"x-a", b"x-b", b"x-long-name", b"user-agent", b"grpc-timeout"])
VALUES = st.sampled_from([b"", b"1", b"2", b"v" * 500, b"w" * 1_500, b"trailers"])
PATHS = st.sampled_from([b"/a", b"/b", b"/c"])
REQUESTS = st.tuples(PATHS, st.lists(st.tuples(NAMES, VALUES), max_size=4))
STEPS = st.lists(
    st.one_of(REQUESTS, st.sampled_from([0, 64, 200, 4_096])),  # a request, or a new size of the encoder's table
    max_size=30,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.booleans())
def test_cached_decoding_equals_plain_decoding(steps: list[object], huffman: bool) -> None:
    """Whatever an encoder sends, tables evicting and shrinking, each block means what a plain decoder says."""
    encoder, plain = Encoder(), Decoder()
    cached = HeaderDecoder(65_536)
    for step in steps:
        if isinstance(step, int):
            # hpack's encoder forgets to announce a new size when it is told the same one again.
            if step != encoder.header_table_size:
                encoder.header_table_size = step
            continue
        path, more = step  # type: ignore[misc]
        fields = (*REQUEST[:2], (b":path", path), *more)
        block = encoder.encode(fields, huffman=huffman)
        assert cached.request(block) == request_head(plain.decode(block, raw=True))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=6))
def test_any_fields_are_either_a_request_or_malformed(fields: list[tuple[bytes, bytes]]) -> None:
    try:
        head = request_head(fields)
    except MalformedError:
        return
    assert dict(fields)[b":method"] == head.method


def test_data_before_headers_is_never_content() -> None:
    peer = client()
    assert connection_error(peer, peer.send(Frame(DATA, 0, 1, b"x"))) == PROTOCOL_ERROR
