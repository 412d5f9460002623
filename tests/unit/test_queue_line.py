"""The way to the owner of the queue: real sockets and a real file, several processes' parts in one loop."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from fleet_kit import Recorded
from queue_kit import Client, Single, one_worker_each

from extproc.desk import Ticket
from extproc.queue.board import Board
from extproc.queue.line import QueueLine
from extproc.queue.messages import (
    MAX_LINE_BYTES,
)
from extproc.shared_desk import SharedDesk
from recursant.admission.queue import HoldQueue
from recursant.config.model import Config
from recursant.fleet.counts_file import CountsFile
from recursant.fleet.shared_file import SharedFileError
from recursant.fleet.shared_slots import SharedSlots
from recursant.fleet.table import FleetTable

PATIENCE_S = 20.0
CONFIG = Config.model_validate(
    {"agents": [{"agent_id": name, "model_family": "qwen", "class": "critical"} for name in "ab"]}
)


class Part(Single):
    """One process, with all that is real."""

    def __init__(self, path: Path, number: int, processes: int = 3) -> None:
        self.counts = CountsFile(path / "counts", process=number, processes=processes, columns=8)
        self.slots = SharedSlots(self.counts)
        self.board = Board(path / "queue", process=number, processes=processes, columns=8)
        self.path = path / "queue"
        self.number = number
        super().__init__(CONFIG, one_worker_each(qwen=2), FleetTable(self.slots))
        self.gateway.clock = time.monotonic
        assert isinstance(self.gateway.recorder, Recorded)
        self._stack = contextlib.AsyncExitStack()

    def _desk(self, queue: HoldQueue[Ticket]) -> SharedDesk:
        limits = (CONFIG.limits.held_requests, 10.0)
        self.line = QueueLine(
            self.path, self.number, self.board, self.gateway, limits, freed=self.slots.released_anywhere
        )
        desk = SharedDesk(self.gateway, queue, lambda: None, self.line)
        self.line.attach(desk.answered, desk.waiting)
        return desk

    def come(self, agent: str, length: int = 100, session: str = "") -> Client:
        self.now = time.monotonic()
        return super().come(agent, length, session)

    async def start(self) -> None:
        await self._stack.enter_async_context(self.line.running())

    async def stop(self) -> None:
        await self._stack.aclose()
        self.counts.close()


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[list[Part]]:
    parts = [Part(tmp_path, number) for number in (1, 2, 3)]
    for part in parts:
        await part.start()
    yield parts
    for part in parts:
        await part.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what changes is another one's state
            await asyncio.sleep(0.005)


async def test_who_is_held_elsewhere_gets_the_place_that_is_given_back_here(parts: list[Part]) -> None:
    one, two, three = parts
    running = [one.come("a"), one.come("a")]
    held = [two.come("a"), three.come("b")]
    await until(lambda: two.board.waiting() == 2)
    for client in running:
        one.done(client)
    await until(lambda: all(client.placed for client in held))
    await until(one.board.quiet)
    assert one.slots.at(0)[0] == 2
    assert [part.board.owner for part in parts] == [1, 1, 1]


async def test_the_owner_leaves_and_the_next_keeps_the_order(parts: list[Part]) -> None:
    one, two, three = parts
    running = [two.come("a"), two.come("a")]
    held = [three.come("a")]
    await until(lambda: two.board.waiting() == 1)
    held.append(two.come("a"))
    await until(lambda: two.board.waiting() == 2)
    await one.stop()
    await until(lambda: two.board.owner in (2, 3) and two.board.waiting() == 2)
    two.done(running[0])
    await until(lambda: held[0].placed)
    assert not held[1].placed
    two.done(running[1])
    await until(lambda: held[1].placed)


async def test_an_owner_that_hangs_is_replaced_and_comes_back_as_one_of_many(parts: list[Part]) -> None:
    one, two, three = parts
    running = [two.come("a"), two.come("a")]
    held = three.come("a")
    await until(lambda: two.board.waiting() == 1)
    # As with SIGSTOP: it does nothing for so long that the others notice.
    assert one.line._timer is not None
    one.line._timer.cancel()
    office, one.line._office = one.line._office, None
    await until(lambda: two.board.owner in (2, 3))
    one.line._office = office
    two.done(running[0])
    await until(lambda: held.placed)
    one.line._tick()
    await until(lambda: one.line._office is None)
    late = one.come("a")
    assert late.said == "waits"
    two.done(running[1])
    await until(lambda: late.placed)


async def test_a_process_that_comes_again_finds_the_owner(parts: list[Part], tmp_path: Path) -> None:
    one, two, _three = parts
    await two.stop()
    again = Part(tmp_path, 2)
    await again.start()
    running = [one.come("a"), one.come("a")]
    held = again.come("a")
    await until(lambda: one.board.waiting() == 1)
    one.done(running[0])
    await until(lambda: held.placed)
    await again.stop()


async def test_a_process_that_goes_takes_its_requests_with_it(parts: list[Part]) -> None:
    one, two, _three = parts
    for _ in range(2):
        one.come("a")
    two.come("a")
    await until(lambda: one.board.waiting() == 1)
    await two.stop()
    await until(one.board.quiet)


@pytest.mark.parametrize(
    "line",
    [
        *(b"nonsense\n", b"[" * 5_000 + b"\n", b'["Leave"]\n'),
        # Not a number, no such process, and the owner itself.
        *(b'["Hello","x"]\n', b'["Hello",4]\n', b'["Hello",0]\n', b'["Hello",1]\n'),
    ],
)
async def test_a_stranger_is_cut_off(parts: list[Part], line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(str(parts[0].path) + "-1")
    writer.write(line)
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_a_line_without_an_end_is_cut_off(parts: list[Part]) -> None:
    reader, writer = await asyncio.open_unix_connection(str(parts[0].path) + "-1")
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            writer.write(b"x" * (MAX_LINE_BYTES + 1))
            await writer.drain()
            await reader.read()
    writer.close()


async def test_a_folder_with_a_long_path_will_do(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    one, two = Part(folder, 1), Part(folder, 2)
    await one.start()
    await two.start()
    running = [one.come("a"), one.come("a")]
    held = two.come("a")
    await until(lambda: one.board.waiting() == 1)
    one.done(running[0])
    await until(lambda: held.placed)
    await two.stop()
    await one.stop()
    assert not list(folder.glob("*-1"))


async def test_where_no_socket_can_be_made_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "queue-1").mkdir()
    part = Part(tmp_path, 1)
    with pytest.raises(SharedFileError, match=r"cannot listen on .*queue-1: "):
        await part.start()


def test_only_its_user_may_connect(tmp_path: Path) -> None:
    async def mode() -> int:
        part = Part(tmp_path, 1)
        await part.start()
        found = (tmp_path / "queue-1").stat().st_mode & 0o777
        await part.stop()
        return found

    assert asyncio.run(mode()) == 0o600
    with socket.socket(socket.AF_UNIX) as nobody, pytest.raises(FileNotFoundError):
        nobody.connect(str(tmp_path / "queue-1"))
