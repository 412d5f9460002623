"""One table of stream behaviour, run over every transport with gRPC's own client."""

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc import aio
from transport_kit import PROCESS, Scripts

from extproc.transports.address import AddressError
from extproc.transports.base import Transport
from extproc.transports.grpcio import GrpcioTransport
from extproc.transports.lean import LeanTransport

MAX_MESSAGE = 4 * 1024 * 1024
SERVICE = b"envoy.service.ext_proc.v3.ExternalProcessor"
TRANSPORTS = {"lean": LeanTransport, "grpcio": GrpcioTransport}


class Bench:
    """A transport on a Unix socket, with a client."""

    def __init__(self, transport: Transport, scripts: Scripts, address: str, channel: aio.Channel) -> None:
        self.transport = transport
        self.scripts = scripts
        self.address = address
        self.channel = channel

    def call(self) -> aio.StreamStreamCall[bytes, bytes]:
        """A new ext_proc stream."""
        return self.channel.stream_stream(PROCESS)()


@pytest.fixture(params=TRANSPORTS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def make(kind: str, scripts: Scripts) -> Transport:
    return TRANSPORTS[kind](scripts, max_message_bytes=MAX_MESSAGE)


@pytest.fixture
async def bench(kind: str, tmp_path: Path) -> AsyncIterator[Bench]:
    scripts = Scripts()
    transport = make(kind, scripts)
    [address] = await transport.listen([f"unix:{tmp_path / 'extproc.sock'}"])
    options = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
    async with aio.insecure_channel(address, options=options) as channel:
        yield Bench(transport, scripts, address, channel)
    await scripts.all_closed()
    await transport.drain(5)
    assert transport.stats.streams_open == 0


async def test_answers_come_back_in_order(bench: Bench) -> None:
    call = bench.call()
    for number in range(3):
        await call.write(b"echo %d" % number)
        assert await call.read() == b"%d" % number
    await call.done_writing()
    assert await call.read() is aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await bench.scripts.all_closed()
    assert bench.scripts.sessions[0].received == [b"echo 0", b"echo 1", b"echo 2"]


async def test_a_late_answer_reaches_the_peer(bench: Bench) -> None:
    call = bench.call()
    await call.write(b"late hello")
    assert await call.read() == b"hello"
    await call.write(b"echo again")
    assert await call.read() == b"again"
    call.cancel()


async def test_send_from_within_receive_goes_first(bench: Bench) -> None:
    call = bench.call()
    await call.write(b"two x")
    assert [await call.read(), await call.read()] == [b"x1", b"x2"]
    call.cancel()


async def test_an_answer_after_the_end_is_dropped(bench: Bench) -> None:
    call = bench.call()
    await call.write(b"late never")
    await call.done_writing()
    assert await call.read() is aio.EOF
    await bench.scripts.all_closed()
    bench.scripts.sessions[0].send(b"never")
    await asyncio.sleep(0.05)


async def test_an_empty_message_and_an_empty_answer(bench: Bench) -> None:
    call = bench.call()
    await call.write(b"echo ")
    assert await call.read() == b""
    call.cancel()


@pytest.mark.parametrize("size", [16_384, 65_535, 65_536, 3_000_000])
async def test_large_messages_pass_both_ways(bench: Bench, size: int) -> None:
    call = bench.call()
    await call.write(b"echo " + b"q" * size)
    assert await call.read() == b"q" * size
    call.cancel()


async def test_a_message_over_the_limit_ends_its_stream_only(bench: Bench) -> None:
    other = bench.call()
    await other.write(b"echo 1")
    assert await other.read() == b"1"
    call = bench.call()
    await call.write(b"echo " + b"q" * MAX_MESSAGE)
    assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await other.write(b"echo 2")
    assert await other.read() == b"2"
    other.cancel()


async def test_a_stream_error_is_the_peers_fault(bench: Bench) -> None:
    call = bench.call()
    await call.write(b"bad")
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await call.details() == "no such phase"
    assert bench.transport.stats.errors == {"stream_error": 1}


async def test_an_unready_session_sends_the_request_on(bench: Bench) -> None:
    call = bench.call()
    await call.write(b"unready")
    assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert bench.transport.stats.errors == {"unready": 1}


async def test_a_bug_in_a_session_costs_its_stream_only(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    call = bench.call()
    await call.write(b"bug")
    assert await call.code() is grpc.StatusCode.INTERNAL
    assert "a bug" not in (await call.details() or "")
    assert "a bug in the session" in caplog.text
    call = bench.call()
    await call.write(b"echo 1")
    assert await call.read() == b"1"
    call.cancel()


async def test_hang_up_while_an_answer_is_awaited(bench: Bench) -> None:
    call = bench.call()
    await call.write(b"silent")
    await asyncio.sleep(0.05)
    call.cancel()
    await bench.scripts.all_closed()
    assert len(bench.scripts.sessions) == 1


async def test_a_lost_connection_closes_every_session(bench: Bench) -> None:
    calls = [bench.call() for _ in range(20)]
    for call in calls:
        await call.write(b"echo 1")
        assert await call.read() == b"1"
    assert bench.transport.stats.streams_open == 20
    await bench.channel.close()
    await bench.scripts.all_closed()


async def test_many_streams_at_once(bench: Bench) -> None:
    async def one(number: int) -> None:
        call = bench.call()
        await call.write(b"late %d" % number)
        assert await call.read() == b"%d" % number
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK

    await asyncio.gather(*(one(number) for number in range(500)))
    assert bench.transport.stats.streams_total == 500


async def test_an_unknown_method_is_unimplemented(bench: Bench) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await bench.channel.unary_unary("/envoy.service.ext_proc.v3.ExternalProcessor/Other")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("request_bytes", [b"", b"\x0a\x00", b"\x0a" + bytes([len(SERVICE)]) + SERVICE, b"\x10\x01"])
async def test_health_check_says_serving(bench: Bench, request_bytes: bytes) -> None:
    assert await bench.channel.unary_unary("/grpc.health.v1.Health/Check")(request_bytes) == b"\x08\x01"


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [(b"\x0a\x01x", grpc.StatusCode.NOT_FOUND), (b"\x0a\x05x", grpc.StatusCode.INVALID_ARGUMENT)],
)
async def test_health_check_refuses(bench: Bench, request_bytes: bytes, code: grpc.StatusCode) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await bench.channel.unary_unary("/grpc.health.v1.Health/Check")(request_bytes)
    assert caught.value.code() is code


async def test_health_watch_says_when_we_drain(bench: Bench) -> None:
    watch = bench.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
    assert await watch.read() == b"\x08\x01"
    draining = asyncio.create_task(bench.transport.drain(5))
    assert await watch.read() == b"\x08\x02"
    assert await watch.read() is aio.EOF
    await draining


async def test_health_watch_of_an_unknown_service(bench: Bench) -> None:
    watch = bench.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\x0a\x01x")
    assert await watch.read() == b"\x08\x03"
    watch.cancel()


async def test_drain_lets_a_running_stream_finish(bench: Bench) -> None:
    call = bench.call()
    await call.write(b"silent")
    await asyncio.sleep(0.05)
    draining = asyncio.create_task(bench.transport.drain(10))
    await asyncio.sleep(0.05)
    bench.scripts.sessions[0].send(b"decided")
    assert await call.read() == b"decided"
    assert not draining.done()
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    await asyncio.wait_for(draining, 5)


async def test_drain_ends_what_does_not_finish(bench: Bench, kind: str) -> None:
    call = bench.call()
    await call.write(b"silent")
    await asyncio.sleep(0.05)
    await asyncio.wait_for(bench.transport.drain(0.1), 5)
    assert [session.closed for session in bench.scripts.sessions] == [1]
    # grpcio cancels; the lean transport ends the stream in order, which Envoy does not count as a failure.
    expected = {"grpcio": grpc.StatusCode.UNAVAILABLE, "lean": grpc.StatusCode.OK}
    assert await call.code() is expected[kind]


async def test_drain_removes_the_socket_file(kind: str, tmp_path: Path) -> None:
    transport = make(kind, Scripts())
    path = tmp_path / "deep" / "extproc.sock"
    await transport.listen([f"unix:{path}"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await transport.drain(1)
    assert not path.exists()


async def test_a_stale_socket_file_is_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "extproc.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    transport = make(kind, Scripts())
    await transport.listen([f"unix:{path}"])
    await transport.drain(1)


async def test_a_live_socket_is_left_alone(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "extproc.sock"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()
        transport = make(kind, Scripts())
        with pytest.raises(AddressError, match="in use"):
            await transport.listen([f"unix:{path}"])
        await transport.drain(1)
        assert path.exists()


async def test_a_taken_port_is_a_clear_error(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        transport = make(kind, Scripts())
        with pytest.raises(AddressError, match="cannot listen"):
            await transport.listen([f"127.0.0.1:{taken.getsockname()[1]}"])
        await transport.drain(1)


async def test_several_addresses(kind: str, tmp_path: Path) -> None:
    scripts = Scripts()
    transport = make(kind, scripts)
    addresses = await transport.listen(["127.0.0.1:0", f"unix:{tmp_path / 's'}"])
    assert not addresses[0].endswith(":0")
    for address in addresses:
        async with aio.insecure_channel(address) as channel:
            call = channel.stream_stream(PROCESS)()
            await call.write(b"echo 1")
            assert await call.read() == b"1"
    await scripts.all_closed()
    await transport.drain(1)
