"""The lean transport's shell over real sockets, on both event loops: deadlines, slow readers, turns, draining."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from http2_kit import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Frame,
    data,
    ping,
    settings,
    window_update,
)
from transport_kit import PROCESS, Scripts

from extproc.http2.limits import Limits
from extproc.transports import lean
from extproc.transports.lean import LeanTransport
from extproc.transports.peer import FRAMES_PER_TURN

# `:method POST`, `:scheme http`, then literals that are not indexed: `:path` and `content-type`.
CALL = b"\x83\x86\x04" + bytes((len(PROCESS),)) + PROCESS.encode() + b"\x0f\x10\x10application/grpc"
PATIENCE_S = 20.0

Scenario = Callable[[Path], Coroutine[Any, Any, None]]


def on_both_loops(scenario: Scenario) -> Callable[[str, Path], None]:
    """Run a scenario on asyncio's own loop and on uvloop, which production uses."""

    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    def test(loop: str, tmp_path: Path) -> None:
        run = asyncio.run if loop == "asyncio" else uvloop.run
        run(scenario(tmp_path))

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    return test


def message(content: bytes) -> bytes:
    return b"\x00" + len(content).to_bytes(4, "big") + content


@dataclass
class Peer:
    """A client that speaks frames over a socket."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def write(self, *frames: Frame | bytes) -> None:
        self.writer.write(b"".join(map(bytes, frames)))

    def greet(self, *pairs: tuple[int, int]) -> None:
        self.write(PREFACE, settings(*pairs))

    def call(self, stream_id: int, content: bytes, flags: int = 0) -> None:
        self.write(Frame(HEADERS, END_HEADERS, stream_id, CALL), data(stream_id, message(content), flags))

    async def frame(self) -> Frame:
        """The next frame."""
        async with asyncio.timeout(PATIENCE_S):
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        return Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)

    async def until(self, kind: int, stream_id: int = 0, flags: int = 0) -> Frame:
        """The next frame of that kind, on that stream, with those flags."""
        while True:
            frame = await self.frame()
            if (frame.kind, frame.stream_id) == (kind, stream_id) and frame.flags & flags == flags:
                return frame

    async def end(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


@dataclass
class Bench:
    transport: LeanTransport
    scripts: Scripts
    address: str
    peers: list[Peer] = field(default_factory=list)

    async def connect(self) -> Peer:
        if self.address.startswith("unix:"):
            streams = await asyncio.open_unix_connection(self.address.removeprefix("unix:"), limit=2**24)
        else:
            host, _, port = self.address.rpartition(":")
            streams = await asyncio.open_connection(host.strip("[]"), int(port))
        peer = Peer(*streams)
        self.peers.append(peer)
        return peer


@asynccontextmanager
async def served(address: str | Path, limits: Limits | None = None) -> AsyncIterator[Bench]:
    """A transport that is drained in the end, with every session closed once."""
    scripts = Scripts()
    transport = LeanTransport(scripts, max_message_bytes=2**22, limits=limits)
    text = address if isinstance(address, str) else f"unix:{address / 'extproc.sock'}"
    [bound] = await transport.listen([text])
    bench = Bench(transport, scripts, bound)
    try:
        yield bench
    finally:
        await transport.drain(0.1)
        for peer in bench.peers:
            peer.writer.transport.abort()
    assert [script.closed for script in scripts.sessions] == [1] * len(scripts.sessions)
    assert (transport.stats.streams_open, transport.stats.connections_open) == (0, 0)


async def eventually(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not check():  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.005)


@on_both_loops
async def test_a_call_over_tcp(tmp_path: Path) -> None:
    del tmp_path
    async with served("127.0.0.1:0") as bench:
        peer = await bench.connect()
        peer.greet()
        peer.call(1, b"echo abc")
        assert (await peer.until(DATA, 1)).payload == message(b"abc")
        peer.writer.close()
        await bench.scripts.all_closed()


async def test_a_call_over_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    async with served("[::1]:0") as bench:
        peer = await bench.connect()
        peer.greet()
        peer.call(1, b"echo abc")
        assert (await peer.until(DATA, 1)).payload == message(b"abc")
        peer.writer.close()


@on_both_loops
async def test_answers_of_one_turn_are_written_together(tmp_path: Path) -> None:
    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.greet()
        await peer.until(SETTINGS, flags=ACK)
        for number in range(10):
            peer.call(2 * number + 1, b"echo %d" % number)
        for number in range(10):
            frame = await peer.until(DATA, 2 * number + 1)
            assert frame.payload == message(b"%d" % number)
        peer.writer.close()


@on_both_loops
async def test_input_of_many_turns_is_worked_off_in_order(tmp_path: Path) -> None:
    """More frames in one read than one turn takes: the rest follows, nothing is lost or swapped."""
    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.greet()
        count = 10 * FRAMES_PER_TURN
        peer.call(1, b"silent")
        peer.write(*(data(1, message(b"echo %d" % number)) for number in range(count)))
        received = [(await peer.until(DATA, 1)).payload for _ in range(count)]
        assert received == [message(b"%d" % number) for number in range(count)]
        peer.writer.close()


@on_both_loops
async def test_late_answers_are_written(tmp_path: Path) -> None:
    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.greet()
        peer.call(1, b"late a")
        peer.call(3, b"late b")
        assert (await peer.until(DATA, 1)).payload == message(b"a")
        assert (await peer.until(DATA, 3)).payload == message(b"b")
        peer.writer.close()


@on_both_loops
async def test_a_protocol_error_is_said_and_counted(tmp_path: Path) -> None:
    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.greet()
        peer.call(1, b"silent")
        peer.write(data(9, b"on an idle stream"))
        goaway = await peer.until(GOAWAY)
        assert goaway.payload[:8] == b"\0\0\0\x01\0\0\0\x01"
        assert await peer.end() == b""
        await bench.scripts.all_closed()
        assert bench.transport.stats.errors == {"protocol_error": 1}


@on_both_loops
async def test_who_speaks_something_else_is_sent_away(tmp_path: Path) -> None:
    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await peer.until(GOAWAY)
        assert await peer.end() == b""


async def test_who_says_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "_PREFACE_SECONDS", 0.1)
    async with served(tmp_path) as bench:
        silent, half = await bench.connect(), await bench.connect()
        half.write(PREFACE[:10])
        greeted = await bench.connect()
        greeted.greet()
        await silent.end()
        await half.end()
        assert bench.transport.stats.errors["no_preface"] == 2
        # Whoever has greeted may be silent for long.
        await asyncio.sleep(0.3)
        greeted.write(ping())
        await greeted.until(0x6, flags=ACK)
        greeted.writer.close()


@on_both_loops
async def test_a_slow_reader_stops_the_reading(tmp_path: Path) -> None:
    """Answers that are not taken must not pile up: DATA is held back, and no more requests are read."""
    size = 100_000
    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.greet((INITIAL_WINDOW_SIZE, 2**31 - 1))
        peer.write(window_update(0, 2**30))
        wanted = 400
        for number in range(wanted):
            peer.call(2 * number + 1, b"size %d" % size)
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await eventually(lambda: len(bench.scripts.sessions) > 0)
        await asyncio.sleep(0.3)
        made = len(bench.scripts.sessions)
        # 40 MB of answers: neither was everything read, nor more kept than the buffers take.
        assert made < wanted
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        left = dict.fromkeys(range(1, 2 * wanted, 2), size + 5)
        while left:
            frame = await peer.frame()
            if frame.kind == DATA:
                left[frame.stream_id] -= len(frame.payload)
                if left[frame.stream_id] == 0:
                    del left[frame.stream_id]
        assert len(bench.scripts.sessions) == wanted
        peer.writer.close()
        await bench.scripts.all_closed()


async def test_a_reader_that_stalls_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "_STALL_SECONDS", 0.2)
    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.greet((INITIAL_WINDOW_SIZE, 2**31 - 1))
        peer.write(window_update(0, 2**30))
        for number in range(100):
            peer.call(2 * number + 1, b"size 100000")
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await eventually(lambda: bench.transport.stats.errors["stalled"] == 1)
        await bench.scripts.all_closed()
        peer.writer.transport.abort()


@on_both_loops
async def test_held_answers_of_a_client_that_gives_no_room_are_bounded(tmp_path: Path) -> None:
    async with served(tmp_path, replace(Limits(), pending_bytes=50_000)) as bench:
        peer = await bench.connect()
        peer.greet((INITIAL_WINDOW_SIZE, 0))
        peer.call(1, b"size 40000")
        peer.call(3, b"size 40000")
        goaway = await peer.until(GOAWAY)
        assert goaway.payload[4:8] == b"\0\0\0\x0b"
        await peer.end()
        assert bench.transport.stats.errors == {"enhance_your_calm": 1}


@on_both_loops
async def test_a_late_answer_beyond_the_bound_ends_the_connection_too(tmp_path: Path) -> None:
    async with served(tmp_path, replace(Limits(), pending_bytes=50_000)) as bench:
        peer = await bench.connect()
        peer.greet((INITIAL_WINDOW_SIZE, 0))
        peer.call(1, b"silent")
        await eventually(lambda: bool(bench.scripts.sessions and bench.scripts.sessions[0].received))
        bench.scripts.sessions[0].send(b"x" * 60_000)
        # Not at once: the session is in the middle of something.
        assert bench.scripts.sessions[0].closed == 0
        await peer.until(GOAWAY)
        await bench.scripts.all_closed()


@on_both_loops
async def test_connections_are_bounded(tmp_path: Path) -> None:
    limit = lean._MAX_CONNECTIONS
    lean._MAX_CONNECTIONS = 2  # type: ignore[misc]
    try:
        async with served(tmp_path) as bench:
            peers = [await bench.connect(), await bench.connect()]
            for peer in peers:
                peer.greet()
                await peer.until(SETTINGS, flags=ACK)
            third = await bench.connect()
            assert await third.end() == b""
            assert bench.transport.stats.errors == {"too_many_connections": 1}
            peers[0].writer.close()
            await eventually(lambda: bench.transport.stats.connections_open == 1)
            fourth = await bench.connect()
            fourth.greet()
            await fourth.until(SETTINGS, flags=ACK)
            for peer in (peers[1], fourth):
                peer.writer.close()
    finally:
        lean._MAX_CONNECTIONS = limit  # type: ignore[misc]


@on_both_loops
async def test_draining_warns_waits_and_closes(tmp_path: Path) -> None:
    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.greet()
        peer.call(1, b"silent")
        await eventually(lambda: len(bench.scripts.sessions) == 1)
        draining = asyncio.create_task(bench.transport.drain(PATIENCE_S))
        assert (await peer.until(GOAWAY)).payload[:4] == b"\x7f\xff\xff\xff"
        question = await peer.until(0x6)
        # Already on its way when the warning came: served.
        peer.call(3, b"echo in time")
        peer.write(Frame(0x6, ACK, 0, question.payload))
        assert (await peer.until(DATA, 3)).payload == message(b"in time")
        assert (await peer.until(GOAWAY)).payload[:4] == b"\0\0\0\x03"
        bench.scripts.sessions[0].send(b"decided")
        assert (await peer.until(DATA, 1)).payload == message(b"decided")
        assert not draining.done()
        peer.write(data(1, b"", END_STREAM), data(3, b"", END_STREAM))
        await peer.until(HEADERS, 1, END_STREAM)
        await peer.until(HEADERS, 3, END_STREAM)
        assert await peer.end() == b""
        async with asyncio.timeout(PATIENCE_S):
            await draining


@on_both_loops
async def test_draining_does_not_wait_for_ever(tmp_path: Path) -> None:
    async with served(tmp_path) as bench:
        mute = await bench.connect()
        mute.greet()
        mute.call(1, b"silent")
        await eventually(lambda: len(bench.scripts.sessions) == 1)
        # It answers no ping, and ends nothing.
        async with asyncio.timeout(PATIENCE_S):
            await bench.transport.drain(0.1)
        trailers = await mute.until(HEADERS, 1, END_STREAM)
        assert b"grpc-status\x010" in trailers.payload
        assert (await mute.until(RST_STREAM, 1)).payload == bytes(4)
        assert await mute.end() == b""
        assert bench.transport.stats.errors == {"drain_timeout": 1}


@on_both_loops
async def test_draining_cuts_off_who_does_not_read(tmp_path: Path) -> None:
    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.greet((INITIAL_WINDOW_SIZE, 2**31 - 1))
        peer.write(window_update(0, 2**30))
        for number in range(50):
            peer.call(2 * number + 1, b"size 100000")
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await eventually(lambda: len(bench.scripts.sessions) > 0)
        async with asyncio.timeout(PATIENCE_S):
            await bench.transport.drain(0.1)
        assert bench.transport.stats.connections_open == 0
        peer.writer.transport.abort()


async def test_a_connection_without_streams_drains_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.greet()
        await peer.until(SETTINGS, flags=ACK)
        draining = asyncio.create_task(bench.transport.drain(PATIENCE_S))
        question = await peer.until(0x6)
        peer.write(Frame(0x6, ACK, 0, question.payload))
        assert (await peer.end())[-8:] == bytes(8)
        async with asyncio.timeout(1):
            await draining


@on_both_loops
async def test_who_has_not_greeted_does_not_hold_up_the_draining(tmp_path: Path) -> None:
    async with served(tmp_path) as bench:
        silent = await bench.connect()
        await eventually(lambda: bench.transport.stats.connections_open == 1)
        async with asyncio.timeout(PATIENCE_S):
            await bench.transport.drain(2 * PATIENCE_S)
        await silent.end()


async def test_a_successors_socket_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "extproc.sock"
    old, new = (LeanTransport(Scripts(), max_message_bytes=1_000) for _ in range(2))
    await old.listen([f"unix:{path}"])
    beside = tmp_path / "next.sock"
    await new.listen([f"unix:{beside}"])
    beside.rename(path)
    await old.drain(1)
    assert path.is_socket()
    await new.drain(1)


async def test_streams_leave_no_reference_cycles(tmp_path: Path) -> None:
    """Each request's objects go when it ends, without the garbage collector: it costs latency."""
    import gc

    from extproc.grpc.process_call import ProcessCall

    async with served(tmp_path) as bench:
        peer = await bench.connect()
        peer.greet()
        gc.collect()
        gc.disable()
        try:
            for number in range(100):
                peer.call(2 * number + 1, b"echo 1")
                await peer.until(DATA, 2 * number + 1)
                peer.write(data(2 * number + 1, b"", END_STREAM))
                await peer.until(HEADERS, 2 * number + 1, END_STREAM)
            bench.scripts.sessions.clear()
            await asyncio.sleep(0.01)
            alive = sum(isinstance(thing, ProcessCall) for thing in gc.get_objects())
        finally:
            gc.enable()
        assert alive <= 1
        peer.writer.close()
