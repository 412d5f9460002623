"""Probes against real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from recursant.supervise import probe
from recursant.supervise.ports import free_ports
from recursant.supervise.probe import HttpProbe, Probe, RedisProbe, TcpProbe, UnixProbe

HOST = "127.0.0.1"
HANG = b""


@contextlib.asynccontextmanager
async def answering(reply: bytes, *, path: Path | None = None) -> AsyncIterator[int]:
    """A server that answers anything with `reply`, or never if that is HANG; gives its port."""
    hanging = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1)
            if reply == HANG:
                await hanging.wait()
            writer.write(reply)
        finally:
            writer.close()

    server = (
        await asyncio.start_unix_server(serve, path) if path is not None else await asyncio.start_server(serve, HOST, 0)
    )
    try:
        yield 0 if path is not None else server.sockets[0].getsockname()[1]
    finally:
        hanging.set()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("reply", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", True),
        (b"HTTP/1.1 200\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"HTTP/1.1 404 OK 200 \r\n\r\n", False),
        (b"+PONG\r\n", False),
        (b"200", False),
        (b"x" * 100_000, False),
    ],
)
async def test_http_asks_for_a_200(reply: bytes, *, ready: bool) -> None:
    async with answering(reply) as port:
        assert await HttpProbe(HOST, port, "/health").passes() is ready


@pytest.mark.parametrize(
    ("reply", "ready"), [(b"+PONG\r\n", True), (b"-LOADING\r\n", False), (b"HTTP/1.1 400\r\n", False)]
)
async def test_redis_asks_for_a_pong(reply: bytes, *, ready: bool) -> None:
    async with answering(reply) as port:
        assert await RedisProbe(HOST, port).passes() is ready


async def test_sockets_that_accept_are_enough(tmp_path: Path) -> None:
    async with answering(HANG) as port:
        assert await TcpProbe(HOST, port).passes()
    async with answering(HANG, path=tmp_path / "s"):
        assert await UnixProbe(str(tmp_path / "s")).passes()


async def test_nobody_there_is_not_ready(tmp_path: Path) -> None:
    [port] = free_ports(HOST, 1)
    probes: list[Probe] = [
        TcpProbe(HOST, port),
        UnixProbe(str(tmp_path / "none")),
        UnixProbe("/" + "x" * 200),
        HttpProbe(HOST, port, "/"),
        RedisProbe(HOST, port),
    ]
    assert not any([await each.passes() for each in probes])


async def test_one_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_TIMEOUT_S", 0.1)
    async with answering(HANG) as port:
        assert not await HttpProbe(HOST, port, "/health").passes()
