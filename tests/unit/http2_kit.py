"""A client of the sans-IO HTTP/2 connection: builds frames, reads frames, records what the handlers hear.

Nothing here uses the product's own frame code, so that a mistake there cannot hide.
"""

from dataclasses import dataclass, field, replace

from hpack import Decoder, Encoder

from extproc.http2.connection import Connection
from extproc.http2.headers import RequestHead
from extproc.http2.limits import Limits
from extproc.http2.stream import Stream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED, FRAME_SIZE_ERROR = range(
    7
)
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM = range(7, 12)

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/service/method"),
    (b":authority", b"extproc"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
# `:status 200` in the static table.
RESPONSE_BLOCK = b"\x88"
TRAILER_BLOCK = b"\x00\x0bgrpc-status\x010"


@dataclass(frozen=True)
class Frame:
    """A frame as it is on the wire."""

    kind: int
    flags: int = 0
    stream_id: int = 0
    payload: bytes = b""

    def __bytes__(self) -> bytes:
        head = len(self.payload).to_bytes(3, "big") + bytes((self.kind, self.flags))
        return head + self.stream_id.to_bytes(4, "big") + self.payload

    @property
    def number(self) -> int:
        """The payload as an integer: an error code, or an increment."""
        return int.from_bytes(self.payload, "big")


def data(stream_id: int, payload: bytes, flags: int = 0) -> Frame:
    return Frame(DATA, flags, stream_id, payload)


def settings(*pairs: tuple[int, int]) -> Frame:
    return Frame(SETTINGS, payload=b"".join(n.to_bytes(2, "big") + v.to_bytes(4, "big") for n, v in pairs))


def window_update(stream_id: int, increment: int) -> Frame:
    return Frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: int = CANCEL) -> Frame:
    return Frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def ping(payload: bytes = b"12345678", flags: int = 0) -> Frame:
    return Frame(PING, flags, 0, payload)


def read_frames(output: bytes) -> list[Frame]:
    """Parse what the server wrote."""
    frames = []
    while output:
        size = int.from_bytes(output[:3], "big")
        assert len(output) >= 9 + size, "a frame is cut short"
        stream_id = int.from_bytes(output[5:9], "big")
        frames.append(Frame(output[3], output[4], stream_id, output[9 : 9 + size]))
        output = output[9 + size :]
    return frames


@dataclass
class Recording:
    """A stream handler that records. `answer` is sent for each piece of content."""

    connection: Connection
    stream: Stream
    head: RequestHead
    answer: bytes = b""
    received: bytearray = field(default_factory=bytearray)
    has_ended: bool = False
    closed_times: int = 0

    def data(self, payload: bytes) -> None:
        assert payload
        assert not self.has_ended
        assert not self.closed_times
        self.received += payload
        if self.answer:
            self.send(self.answer)

    def ended(self) -> None:
        assert not self.has_ended
        assert not self.closed_times
        self.has_ended = True

    def closed(self) -> None:
        self.closed_times += 1

    def finish(self) -> None:
        self.end()

    def send(self, payload: bytes) -> None:
        if not self.stream.answered:
            self.connection.send_headers(self.stream, RESPONSE_BLOCK)
        self.connection.send_data(self.stream, payload)

    def end(self) -> None:
        self.connection.end(self.stream, TRAILER_BLOCK)


@dataclass
class Client:
    """Drives a `Connection`; `send` gives the frames that come back."""

    limits: Limits = field(default_factory=Limits)
    answer: bytes = b""
    now: float = 0.0

    def __post_init__(self) -> None:
        self.handlers: dict[int, Recording] = {}
        self.wakes = 0
        self.connection = Connection(self._open, self.limits, self._wake)
        self.connection.start()
        self.encoder = Encoder()
        self.decoder = Decoder()

    def _open(self, connection: Connection, stream: Stream, head: RequestHead) -> Recording:
        handler = Recording(connection, stream, head, self.answer)
        self.handlers[stream.stream_id] = handler
        return handler

    def _wake(self) -> None:
        self.wakes += 1

    def raw(self, payload: bytes) -> list[Frame]:
        """Send bytes."""
        self.connection.receive(payload)
        while self.connection.run(self.now, 64):
            pass
        return self.take()

    def take(self) -> list[Frame]:
        """What is to be written now."""
        return read_frames(self.connection.take())

    def send(self, *frames: Frame) -> list[Frame]:
        """Send frames."""
        return self.raw(b"".join(map(bytes, frames)))

    def shake_hands(self, *pairs: tuple[int, int]) -> "Client":
        """Preface and settings, both ways."""
        self.raw(PREFACE)
        assert self.connection.established
        answers = self.send(settings(*pairs), Frame(SETTINGS, ACK))
        assert Frame(SETTINGS, ACK) in answers
        return self

    def block(self, fields: tuple[tuple[bytes, bytes], ...] = REQUEST) -> bytes:
        """A header block, through this client's dynamic table."""
        block: bytes = self.encoder.encode(fields, huffman=False)
        return block

    def headers(
        self, stream_id: int, fields: tuple[tuple[bytes, bytes], ...] = REQUEST, *, end_stream: bool = False
    ) -> Frame:
        """HEADERS with END_HEADERS."""
        return Frame(HEADERS, END_HEADERS | (END_STREAM if end_stream else 0), stream_id, self.block(fields))

    def opened(self, stream_id: int = 1) -> Recording:
        """Open a stream; gives its handler."""
        assert self.send(self.headers(stream_id)) == []
        return self.handlers[stream_id]


def client(*pairs: tuple[int, int], answer: bytes = b"", **limits: object) -> Client:
    """A client that has shaken hands; `limits` differ from the defaults."""
    return Client(replace(Limits(), **limits), answer).shake_hands(*pairs)  # type: ignore[arg-type]


def connection_error(client: Client, frames: list[Frame]) -> int:
    """The code of the GOAWAY that ends the connection; checks that it does."""
    assert frames[-1].kind == GOAWAY, frames
    assert client.connection.closed
    assert client.connection.open_streams == 0
    assert all(handler.closed_times == 1 for handler in client.handlers.values())
    return int.from_bytes(frames[-1].payload[4:8], "big")


def stream_error(client: Client, frames: list[Frame], stream_id: int) -> int:
    """The code of the RST_STREAM that ends the stream; checks that the connection lives on."""
    assert [frame.kind for frame in frames if frame.kind not in (WINDOW_UPDATE, SETTINGS)] == [RST_STREAM], frames
    [reset] = [frame for frame in frames if frame.kind == RST_STREAM]
    assert reset.stream_id == stream_id
    assert not client.connection.closed
    if stream_id in client.handlers:
        assert client.handlers[stream_id].closed_times == 1
    assert client.send(ping()) == [ping(flags=ACK)]
    return reset.number
