"""The way to the owner of the queue: real sockets and a real file, several processes' parts in one loop."""

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from fleet_kit import Recorded
from hypothesis import given
from hypothesis import strategies as st
from queue_kit import Client, Single, one_worker_each

from extproc.desk import Ticket
from extproc.queue.board import HUNG_SECONDS, Board
from extproc.queue.line import QueueLine
from extproc.queue.messages import (
    MAX_LINE_BYTES,
    Declined,
    Enter,
    Freed,
    Full,
    Granted,
    Hello,
    Leave,
    MessageError,
    Placed,
    Refused,
    decode,
    encode,
)
from extproc.shared_desk import SharedDesk
from recursant.admission.queue import HoldQueue
from recursant.agents.priority import PriorityClass
from recursant.config.model import Config
from recursant.fleet.counts_file import CountsFile, CountsFileError
from recursant.fleet.shared_slots import SharedSlots
from recursant.fleet.table import FleetTable
from recursant.routing.need import Need
from recursant.routing.picker import Refusal

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

    def come(self, agent: str, length: int = 100) -> Client:
        self.now = time.monotonic()
        return super().come(agent, length)

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


@pytest.mark.parametrize("line", [b"nonsense\n", b'["Hello","x"]\n', b'["Leave"]\n', b"[" * 5_000 + b"\n"])
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
    with pytest.raises(CountsFileError, match=r"cannot listen on .*queue-1: "):
        await part.start()


# --- messages ---

NEEDS = st.builds(
    Need,
    family=st.text(max_size=5),
    exclusive=st.frozensets(st.text(max_size=5), max_size=3),
    prompt_tokens=st.integers(0, 1 << 30),
    latency_sla_ms=st.none() | st.integers(1, 1 << 30),
    count_as=st.none() | st.sampled_from(PriorityClass),
)
NUMBERS = st.integers(1, 1 << 60)
TIMES = st.floats(0, 1e9)
TEXTS = st.none() | st.text(max_size=10)
MESSAGES = st.one_of(
    st.builds(Hello, NUMBERS),
    st.builds(
        Enter,
        number=NUMBERS,
        agent=st.text(max_size=9),
        priority_class=st.sampled_from(PriorityClass),
        since_s=TIMES,
        until_s=TIMES,
        need=NEEDS,
        known=st.booleans(),
        shapes=st.booleans(),
        fallback=TEXTS,
        held_fallback=TEXTS,
        waits_for=st.lists(st.sampled_from(Refusal), max_size=3).map(tuple),
    ),
    st.builds(Leave, NUMBERS),
    st.builds(Placed, NUMBERS),
    st.builds(Declined, NUMBERS),
    st.just(Freed()),
    st.builds(
        Granted, NUMBERS, st.lists(st.integers(0, 999), max_size=4).map(tuple), st.text(), TEXTS, st.none(), TIMES
    ),
    st.builds(Refused, NUMBERS, st.sampled_from(Refusal)),
    st.builds(Full, NUMBERS),
)


@given(MESSAGES)
def test_a_message_is_read_as_it_was_written(message: Enter) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    found = decode(line)
    assert found == message
    if isinstance(found, Enter):
        assert isinstance(found.need.exclusive, frozenset)


@given(st.binary(max_size=50) | MESSAGES.map(encode), st.integers(0, 60), st.integers(0, 255))
def test_no_line_is_worse_than_no_message(line: bytes, place: int, byte: int) -> None:
    damaged = bytearray(line)
    if place < len(damaged):
        damaged[place] = byte
    with contextlib.suppress(MessageError):
        decode(bytes(damaged))


# --- what all can see ---


def board(path: Path, process: int, *, processes: int = 3, columns: int = 20) -> Board:
    return Board(path / "queue", process=process, processes=processes, columns=columns)


def test_who_waits_for_what_is_seen_by_all(tmp_path: Path) -> None:
    one, two = board(tmp_path, 1), board(tmp_path, 2)
    assert two.quiet()
    one.post(3, 0b1010)
    assert not two.quiet()
    assert two.waiting() == 3
    assert [two.waited_for(columns) for columns in (0b0101, 0b0010, 0b1000, 1 << 19)] == [False, True, True, False]
    one.post(1, 1 << 40)
    assert two.waited_for(0b0001)
    one.post(0, 0)
    assert two.quiet()


def test_one_owns_the_queue_until_it_ends_or_hangs(tmp_path: Path) -> None:
    one, two = board(tmp_path, 1), board(tmp_path, 2)
    assert one.settle(0.0) == 1
    assert (two.settle(0.5), two.owned) == (1, False)
    one.post(2, 1)
    # It has not moved for a while; what it posted goes with it.
    assert two.settle(HUNG_SECONDS + 0.1) == 2
    assert (one.owned, two.owned) == (False, True)
    assert two.quiet()
    two.close()
    assert one.settle(2.0) == 1


def test_a_board_is_for_one_number_of_processes_and_each_is_there_once(tmp_path: Path) -> None:
    board(tmp_path, 1)
    with pytest.raises(CountsFileError, match="is no file for 2 processes"):
        board(tmp_path, 1, processes=2)
    with pytest.raises(CountsFileError, match="process 1 runs already"):
        board(tmp_path, 1)
    with pytest.raises(ValueError, match="process 4 of 3"):
        board(tmp_path, 4)
    with pytest.raises(CountsFileError, match="cannot use"):
        board(tmp_path / "none", 1)


def test_random_masks_are_compared_as_sets(tmp_path: Path) -> None:
    one, two = board(tmp_path, 1, columns=300), board(tmp_path, 2, columns=300)
    rng = random.Random(5)
    for _ in range(200):
        here, there = ({rng.randrange(300) for _ in range(rng.randrange(1, 20))} for _ in range(2))
        one.post(1, sum(1 << column for column in here))
        assert two.waited_for(sum(1 << column for column in there)) == bool(here & there)


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
