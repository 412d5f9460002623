"""The extproc service as a whole: it listens, counts, says how it is, and drains."""

import asyncio
import contextlib
import logging
import socket
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc import aio
from transport_kit import PROCESS

from extproc.service import serve
from extproc.transports.address import AddressError
from recursant.config.model import Config
from recursant.hot_path import build

PATIENCE_S = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def config(path: Path, port: int) -> Config:
    return Config.model_validate({"extproc": {"listen": [f"unix:{path}"], "metrics_port": port}})


@contextlib.asynccontextmanager
async def running(settings: Config, transport: str, path: Path) -> AsyncIterator[asyncio.Event]:
    """The service, until the block or its `stop` ends it."""
    stop = asyncio.Event()
    task = asyncio.create_task(serve(settings, stop, transport=transport))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not path.is_socket():  # noqa: ASYNC240 - nobody tells
                await asyncio.sleep(0.01)
                assert not task.done()
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await task


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as response:
        text: str = response.read().decode()
    return text


@pytest.mark.parametrize("transport", ["lean", "grpcio"])
async def test_the_service(transport: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path, port = tmp_path / "extproc.sock", free_port()
    async with running(config(path, port), transport, path):
        async with aio.insecure_channel(f"unix:{path}") as channel:
            assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
            call = channel.stream_stream(PROCESS)()
            await call.write(b"\xff not a ProcessingRequest")
            assert (await call.code()).name == "INVALID_ARGUMENT"
        text = await asyncio.to_thread(scrape, port)
    assert f"recursant {build()}" in caplog.text
    assert f"listening on unix:{path} ({transport} transport)" in caplog.text
    for line in (
        'recursant_extproc_errors_total{kind="stream_error"} 1.0',
        "recursant_extproc_streams_begun_total 1.0",
        "recursant_redis_up 0.0",
        'recursant_workers{state="ready"} 0.0',
        "process_cpu_seconds_total",
    ):
        assert line in text
    assert not path.exists()


async def test_an_address_that_cannot_be_used_ends_the_service(tmp_path: Path) -> None:
    path = tmp_path / "extproc.sock"
    path.write_text("a file")
    with pytest.raises(AddressError, match="not a socket"):
        await serve(config(path, free_port()), asyncio.Event())


async def test_a_metrics_port_in_use_ends_the_service(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        await serve(config(tmp_path / "extproc.sock", taken.getsockname()[1]), asyncio.Event())


async def test_no_such_transport(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lean, grpcio"):
        await serve(config(tmp_path / "extproc.sock", free_port()), asyncio.Event(), transport="carrier-pigeon")
