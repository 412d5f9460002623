"""Both transports under a real Envoy: a stream's life is its request's life (DESIGN §4.3)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from transport_rig import (
    PATIENCE_S,
    SEEN,
    Client,
    Envoy,
    Reply,
    ScriptedSessions,
    Upstream,
    envoy,
    eventually,
    fetch,
    server_process,
)

from extproc.transports.base import Transport
from extproc.transports.grpcio import GrpcioTransport
from extproc.transports.lean import LeanTransport

pytestmark = pytest.mark.e2e

TRANSPORTS = {"lean": LeanTransport, "grpcio": GrpcioTransport}
MAX_MESSAGE = 16 * 1024 * 1024


@dataclass
class Gateway:
    """Envoy, the transport behind it, and the upstream."""

    envoy: Envoy
    transport: Transport
    sessions: ScriptedSessions
    upstream: Upstream
    address: str

    @property
    def port(self) -> int:
        return self.envoy.port


@pytest.fixture(params=TRANSPORTS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    yield upstream
    upstream.release.set()
    server.close()


@pytest.fixture
async def gateway(kind: str, upstream: Upstream, tmp_path: Path) -> AsyncIterator[Gateway]:
    sessions = ScriptedSessions()
    transport = TRANSPORTS[kind](sessions, max_message_bytes=MAX_MESSAGE)
    [address] = await transport.listen([f"unix:{tmp_path / 'extproc.sock'}"])
    async with envoy(tmp_path, address, upstream.port) as running:
        yield Gateway(running, transport, sessions, upstream, address)
        await sessions.all_closed()
    await transport.drain(5)
    assert transport.stats.streams_open == 0


async def test_a_request_goes_through(gateway: Gateway) -> None:
    reply = await fetch(gateway.port)
    assert (reply.status, reply.headers[SEEN], reply.body) == (200, "0", b"0")
    await gateway.sessions.all_closed()
    assert gateway.sessions.made[0].phases == ["request_headers", "response_headers"]


async def test_the_stream_lives_as_long_as_the_response(gateway: Gateway) -> None:
    async with Client(gateway.port) as client:
        await client.send("/slow")
        status, headers = await client.head()
        assert (status, headers[SEEN]) == (200, "0")
        await asyncio.sleep(0.5)
        assert gateway.sessions.open == 1
        gateway.upstream.release.set()
        assert await client.rest() == b"firstlast"
    await gateway.sessions.all_closed()


async def test_the_stream_ends_when_the_client_hangs_up(gateway: Gateway) -> None:
    async with Client(gateway.port) as client:
        await client.send("/slow")
        await client.head()
        assert gateway.sessions.open == 1
        client.hang_up()
        await gateway.sessions.all_closed()


async def test_the_stream_ends_when_the_client_hangs_up_while_held(gateway: Gateway) -> None:
    async with Client(gateway.port) as client:
        await client.send("/", "late 15")
        await eventually(lambda: gateway.sessions.open == 1, "a session")
        client.hang_up()
        await gateway.sessions.all_closed()


async def test_a_late_answer_arrives_past_the_message_timeout(gateway: Gateway) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    reply = await fetch(gateway.port, script="late 1.5")
    assert (reply.status, reply.headers[SEEN]) == (200, "0")
    # The message timeout is 1 s: without the extension it would have gone on without us.
    assert loop.time() - began >= 1.5


@pytest.mark.parametrize("size", [1, 16_384, 3_000_000])
async def test_a_buffered_body_arrives_whole(gateway: Gateway, size: int) -> None:
    reply = await fetch(gateway.port, script="body", body=b"b" * size)
    assert (reply.status, reply.headers[SEEN], reply.body) == (200, str(size), b"%d" % size)


@pytest.mark.parametrize("size", [4, 1_000_000])
async def test_an_immediate_response(gateway: Gateway, size: int) -> None:
    reply = await fetch(gateway.port, script=f"refuse {size}")
    assert (reply.status, reply.body) == (429, b"x" * size)
    await gateway.sessions.all_closed()
    assert (await fetch(gateway.port)).headers[SEEN] == "0"


async def test_a_stream_error_fails_open(gateway: Gateway) -> None:
    reply = await fetch(gateway.port, script="nonsense")
    assert reply.status == 200
    assert SEEN not in reply.headers


async def test_many_requests_at_once(gateway: Gateway) -> None:
    scripts = ["go", "late 1.2", "refuse 4", "body"]

    async def one(number: int) -> None:
        script = scripts[number % len(scripts)]
        reply = await fetch(gateway.port, script=script, body=b"b" * 5_000 if script == "body" else b"")
        assert reply.status == (429 if script.startswith("refuse") else 200)
        if reply.status == 200:
            assert reply.headers[SEEN] == ("5000" if script == "body" else "0")

    await asyncio.gather(*(one(number) for number in range(200)))
    assert len(gateway.sessions.made) == 200
    await gateway.sessions.all_closed()


async def test_envoys_keepalive_is_answered(gateway: Gateway) -> None:
    await fetch(gateway.port)
    # Envoy pings every second.
    await asyncio.sleep(3.5)
    await fetch(gateway.port)
    stats = await gateway.envoy.stats("cluster.extproc.")
    assert stats["cluster.extproc.upstream_cx_total"] == 1
    assert stats["cluster.extproc.http2.keepalive_timeout"] == 0
    assert not any(value for name, value in stats.items() if "protocol_error" in name), stats


async def test_a_successor_takes_over_without_a_loss(upstream: Upstream, tmp_path: Path) -> None:
    """Requests keep coming while one process follows another: each is seen by one of them.

    Only the lean transport: grpcio removes the socket file that its successor has put in its place.
    """
    sessions = ScriptedSessions()
    old, new = (LeanTransport(sessions, max_message_bytes=MAX_MESSAGE) for _ in range(2))
    path, beside = tmp_path / "extproc.sock", tmp_path / "next.sock"
    [address] = await old.listen([f"unix:{path}"])
    replies: list[Reply] = []
    stop = asyncio.Event()

    async with envoy(tmp_path, address, upstream.port) as running:

        async def load() -> None:
            while not stop.is_set():
                replies.append(await fetch(running.port, script="late 0.02"))

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(load())
            await eventually(lambda: len(replies) > 50, "load")
            # The successor is there before the predecessor leaves; its file replaces the old one in one step.
            await new.listen([f"unix:{beside}"])
            beside.rename(path)
            await old.drain(10)
            before = len(replies)
            await eventually(lambda: len(replies) > before + 50, "load on the successor")
            stop.set()
        assert {(reply.status, reply.headers.get(SEEN)) for reply in replies} == {(200, "0")}
        assert old.stats.errors == {}
        assert new.stats.streams_total > 50
        await sessions.all_closed()
    await new.drain(5)


async def test_a_restart_does_not_cut_a_running_response(kind: str, upstream: Upstream, tmp_path: Path) -> None:
    sessions = ScriptedSessions()
    transport = TRANSPORTS[kind](sessions, max_message_bytes=MAX_MESSAGE)
    [address] = await transport.listen([f"unix:{tmp_path / 'extproc.sock'}"])
    async with envoy(tmp_path, address, upstream.port) as running, Client(running.port) as client:
        await client.send("/slow")
        await client.head()
        await transport.drain(0.2)
        await sessions.all_closed()
        upstream.release.set()
        assert await client.rest() == b"firstlast"
        # And the next ones fail open.
        reply = await fetch(running.port)
        assert reply.status == 200
        assert SEEN not in reply.headers


async def test_killed_and_restarted(kind: str, upstream: Upstream, tmp_path: Path) -> None:
    """kill -9 cuts no response, the next requests fail open, and a new process is found by itself."""
    address = f"unix:{tmp_path / 'extproc.sock'}"
    async with contextlib.AsyncExitStack() as stack:
        process = await stack.enter_async_context(server_process(kind, address))
        running = await stack.enter_async_context(envoy(tmp_path, address, upstream.port))
        client = await stack.enter_async_context(Client(running.port))
        await client.send("/slow")
        assert SEEN in (await client.head())[1]
        process.kill()
        await process.wait()
        assert SEEN not in (await fetch(running.port)).headers
        # The dead one's socket file is in the way of its successor.
        await stack.enter_async_context(server_process(kind, address))
        async with asyncio.timeout(PATIENCE_S):
            while SEEN not in (await fetch(running.port)).headers:  # noqa: ASYNC110 - Envoy tells nobody
                await asyncio.sleep(0.05)
        upstream.release.set()
        assert await client.rest() == b"firstlast"


async def test_every_endpoint_is_used(kind: str, upstream: Upstream, tmp_path: Path) -> None:
    """Several processes are several endpoints, TCP or Unix."""
    everyone = [ScriptedSessions(), ScriptedSessions()]
    transports = [TRANSPORTS[kind](sessions, max_message_bytes=MAX_MESSAGE) for sessions in everyone]
    [first] = await transports[0].listen([f"unix:{tmp_path / 'extproc.sock'}"])
    [second] = await transports[1].listen(["127.0.0.1:0"])
    async with envoy(tmp_path, [first, second], upstream.port) as running:
        for _ in range(10):
            assert SEEN in (await fetch(running.port)).headers
    assert [len(sessions.made) for sessions in everyone] == [5, 5]
    for transport in transports:
        await transport.drain(5)
