"""Envoy as a process: found, started, drained."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from recursant.supervise.envoy import EnvoyAdmin, envoy_binary, envoy_command
from recursant.supervise.ports import free_ports


def test_finds_the_binary_of_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECURSANT_ENVOY", raising=False)
    binary = envoy_binary()
    # The program itself, not the script beside Python: that would be one more process start.
    assert binary.read_bytes()[:4] == b"\x7fELF"


def test_another_binary_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "envoy"
    mine.touch(mode=0o755)
    monkeypatch.setenv("RECURSANT_ENVOY", str(mine))
    assert envoy_binary() == mine


def test_a_named_binary_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RECURSANT_ENVOY", str(tmp_path / "envoy"))
    with pytest.raises(FileNotFoundError, match=r"RECURSANT_ENVOY names .*, which is not an executable file"):
        envoy_binary()


def test_threads_are_few_and_can_be_said() -> None:
    def threads(concurrency: int | None) -> int:
        command = envoy_command(Path("/e"), Path("/b"), log_level="info", concurrency=concurrency)
        return int(command[command.index("--concurrency") + 1])

    assert threads(17) == 17
    assert 1 <= threads(None) <= 4


class Admin:
    """An admin interface that counts down its running requests."""

    def __init__(self, active: list[int]) -> None:
        self.active = active
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(" ".join(head.split()[:2]))
        body = "OK\n"
        if "/stats" in head:
            now = self.active.pop(0) if len(self.active) > 1 else self.active[0]
            body = (
                "http.admin.downstream_rq_active: 1\n"
                "http.async-client.downstream_rq_active: 0\n"
                f"http.gateway.downstream_rq_active: {now}\n"
            )
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def admin(active: list[int]) -> AsyncIterator[tuple[Admin, EnvoyAdmin]]:
    fake = Admin(active)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    async with server:
        yield fake, EnvoyAdmin("127.0.0.1", server.sockets[0].getsockname()[1])


async def test_drains_until_no_request_runs() -> None:
    async with admin([2, 1, 0]) as (fake, envoy):
        await envoy.drain(30)
    assert fake.asked[0] == "POST /drain_listeners?graceful"
    assert fake.asked[1:] == ["GET /stats?filter=downstream_rq_active$"] * 3


async def test_requests_of_the_admin_interface_do_not_count() -> None:
    async with admin([3]) as (_, envoy):
        assert await envoy.active_requests() == 3


async def test_a_drain_is_bounded() -> None:
    async with admin([1]) as (fake, envoy):
        await envoy.drain(0.3)
    assert len(fake.asked) >= 2


async def test_an_envoy_that_has_gone_has_nothing_to_drain() -> None:
    await EnvoyAdmin("127.0.0.1", free_ports("127.0.0.1", 1)[0]).drain(30)
