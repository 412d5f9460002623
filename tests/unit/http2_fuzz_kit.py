"""What holds of an HTTP/2 connection whatever comes: for hypothesis (test_http2_fuzz.py), and atheris (tests/fuzz)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from http2_kit import (
    CONTINUATION,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Client,
    Frame,
    read_frames,
)
from transport_kit import PROCESS, Script, Scripts

from extproc.grpc.context import ServerContext
from extproc.grpc.server import application
from extproc.http2.connection import Connection
from extproc.http2.limits import Limits, Rate
from extproc.stream import StreamError

# Small, so that random input reaches them.
LIMITS = replace(
    Limits(),
    concurrent_streams=4,
    header_block_bytes=600,
    header_list_bytes=1_000,
    continuations=3,
    stream_window=2_000,
    connection_window=70_000,
    pending_bytes=60_000,
    control=Rate(burst=2_000, per_second=0),
    early_resets=Rate(burst=8, per_second=0),
)
# Nothing else is ever sent by us.
OURS = {DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE}
GRPC_BLOCK = b"\x83\x86\x04" + bytes((len(PROCESS),)) + PROCESS.encode() + b"\x0f\x10\x10application/grpc"
# More than a test's own answers need.
_LARGE = re.compile(rb"size .{5}", re.DOTALL)

Step = Frame | Sequence[Frame] | str


@dataclass
class Windows:
    """What the client allows: computed from what it sent, as RFC 9113 §6.9 says."""

    connection: int = 65_535
    initial: int = 65_535
    frame: int = 16_384
    streams: dict[int, int] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)

    def sent(self, frame: Frame) -> None:
        """The client sends `frame`."""
        if frame.kind == SETTINGS and not frame.flags & 1:
            for at in range(0, len(frame.payload), 6):
                name = int.from_bytes(frame.payload[at : at + 2], "big")
                value = int.from_bytes(frame.payload[at + 2 : at + 6], "big")
                if name == INITIAL_WINDOW_SIZE:
                    for stream_id in self.streams:
                        self.streams[stream_id] += value - self.initial
                    self.initial = value
                elif name == MAX_FRAME_SIZE:
                    self.frame = value
        elif frame.kind == WINDOW_UPDATE:
            increment = int.from_bytes(frame.payload, "big") & 0x7FFFFFFF
            if frame.stream_id == 0:
                self.connection += increment
            elif frame.stream_id in self.streams:
                self.streams[frame.stream_id] += increment
        elif frame.kind in (HEADERS, CONTINUATION):
            self.streams.setdefault(frame.stream_id, self.initial)

    def received(self, frame: Frame) -> None:
        """The server sent `frame`: it must be allowed."""
        assert len(frame.payload) <= self.frame or frame.kind == GOAWAY
        if frame.kind in (DATA, HEADERS):
            assert frame.stream_id not in self.over, "sent after the end"
        if frame.kind == DATA:
            size = len(frame.payload)
            assert size <= self.connection, "past the connection's window"
            assert size <= self.streams[frame.stream_id], "past the stream's window"
            self.connection -= size
            self.streams[frame.stream_id] -= size
        if frame.kind == RST_STREAM or (frame.kind == HEADERS and frame.flags & END_STREAM):
            self.over.add(frame.stream_id)


def act(peer: Client, action: str) -> None:
    """What the application or the transport does."""
    living = [handler for handler in peer.handlers.values() if not handler.closed_times]
    match action:
        case "send":
            for handler in living:
                handler.send(b"answer")
        case "send large":
            for handler in living[:1]:
                handler.send(b"x" * 30_000)
        case "end":
            for handler in living[:1]:
                handler.end()
        case "pause":
            peer.connection.pause()
        case "resume":
            peer.connection.resume()
        case "drain":
            peer.connection.drain()
        case "finish":
            peer.connection.finish()


def check_bounds(peer: Client) -> None:
    """No table outgrows its bound."""
    connection = peer.connection
    check_tables(connection)
    living = [handler for handler in peer.handlers.values() if not handler.closed_times]
    assert len(living) == connection.open_streams
    if not living:
        assert connection._sender._pending_bytes == 0
        assert not connection._sender._ready


def check_tables(connection: Connection) -> None:
    """The same, whatever is above the connection."""
    assert connection.open_streams <= LIMITS.concurrent_streams
    assert len(connection._receiver._input) <= LIMITS.frame_bytes + 9
    assert len(connection._registry._reset) <= 1_024
    assert connection._receiver._block._size <= max(LIMITS.header_block_bytes, LIMITS.frame_bytes)
    assert len(connection._receiver._decoder._heads) <= 64
    assert connection._sender._pending_bytes >= 0


def run_steps(window: int, steps: Iterable[Step]) -> None:
    """Any frames, while the application and the transport do anything.

    Args:
        window: the client's initial window for streams.
        steps: frames that go out together, or what `act` knows.
    """
    peer = Client(LIMITS).shake_hands((INITIAL_WINDOW_SIZE, window))
    windows = Windows(initial=window)
    for step in steps:
        if isinstance(step, str):
            act(peer, step)
            frames = peer.take()
        else:
            sent = (step,) if isinstance(step, Frame) else step
            for frame in sent:
                windows.sent(frame)
            frames = peer.send(*sent)
        for frame in frames:
            windows.received(frame)
        check_bounds(peer)
        if peer.connection.closed:
            assert frames[-1].kind == GOAWAY
            break
    peer.connection.lost()
    assert all(handler.closed_times == 1 for handler in peer.handlers.values())
    assert peer.connection.open_streams == 0


# --- the same with sessions on top ---


class BoundedScript(Script):
    """Answers of any size would be the test's own use of memory."""

    def receive(self, message: bytes) -> bytes | None:
        if _LARGE.match(message):
            raise StreamError("too large for a test")
        return super().receive(message)


class Calls:
    """A connection with the real gRPC application, over scripted sessions. Every step is checked."""

    def __init__(self) -> None:
        self.scripts = Scripts(BoundedScript)
        self.context = ServerContext(factory=self.scripts, max_message_bytes=2_000, max_buffered_bytes=2_500)
        self.connection = Connection(application(self.context), LIMITS, _nothing)
        self.connection.start()

    def send(self, payload: bytes, budget: int = 8) -> bytes:
        """Send bytes; give what comes back."""
        connection, context = self.connection, self.context
        connection.receive(payload)
        while connection.run(0.0, budget):
            pass
        written = connection.take()
        assert {frame.kind for frame in read_frames(written)} <= OURS
        check_tables(connection)
        assert context.stats.streams_open == sum(not script.closed for script in self.scripts.sessions)
        assert context.stats.streams_open <= connection.open_streams
        assert 0 <= context.buffered <= context.max_buffered_bytes
        assert len(context.watches) <= connection.open_streams
        return written

    def lost(self) -> None:
        """The transport is gone."""
        self.connection.lost()
        assert [script.closed for script in self.scripts.sessions] == [1] * len(self.scripts.sessions)
        assert not any(script.after_close for script in self.scripts.sessions)
        assert (self.context.stats.streams_open, self.context.buffered) == (0, 0)
        assert not self.context.watches
        assert self.connection._sender._pending_bytes == 0

    @property
    def heard(self) -> list[list[bytes]]:
        """What each session was told."""
        return [script.received for script in self.scripts.sessions]


def _nothing() -> None:
    """There is no transport to wake."""
