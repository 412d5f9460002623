"""What processes tell each other about the queue: messages, and the board that all can see."""

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.queue.board import HUNG_SECONDS, Board
from extproc.queue.messages import (
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
from recursant.agents.priority import PriorityClass
from recursant.fleet import record_locks
from recursant.fleet.shared_file import SharedFileError
from recursant.routing.need import Need
from recursant.routing.picker import Refusal

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
        cached=st.lists(st.tuples(st.text(max_size=5), st.integers(0, 1 << 30)), max_size=3).map(tuple),
        sticky=st.booleans(),
    ),
    st.builds(Leave, NUMBERS),
    st.builds(Placed, NUMBERS),
    st.builds(Declined, NUMBERS),
    st.just(Freed()),
    st.builds(
        Granted,
        number=NUMBERS,
        rows=st.lists(st.integers(0, 999), max_size=4).map(tuple),
        model=st.text(),
        fallback=TEXTS,
        shaped=st.none() | st.integers(1, 1 << 30),
        affinity=TEXTS,
        cached_tokens=st.integers(0, 1 << 30),
        at_s=TIMES,
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


@pytest.mark.parametrize(
    "line",
    [
        b'["Granted",1,[1e999],"m",null,null,null,0,1.5]',
        b'["Granted",1,[0],"m",null,null,null,0,%d]' % 10**400,
    ],
)
def test_a_number_that_fits_nowhere_is_no_message(line: bytes) -> None:
    with pytest.raises(MessageError):
        decode(line)


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


def test_nobody_waits_for_ever_for_who_settles_it(tmp_path: Path) -> None:
    one, two = board(tmp_path, 1), board(tmp_path, 2)
    # As of a process that was stopped just there.
    assert record_locks.take(two._file.fd, 0)
    assert (one.settle(0.0), one.owned) == (0, False)
    record_locks.give_back(two._file.fd, 0)
    assert (one.settle(0.1), one.owned) == (1, True)


def test_a_board_is_for_one_number_of_processes_and_each_is_there_once(tmp_path: Path) -> None:
    board(tmp_path, 1)
    with pytest.raises(SharedFileError, match="is no file for 2 processes"):
        board(tmp_path, 1, processes=2)
    with pytest.raises(SharedFileError, match="process 1 runs already"):
        board(tmp_path, 1)
    with pytest.raises(ValueError, match="process 4 of 3"):
        board(tmp_path, 4)
    with pytest.raises(SharedFileError, match="cannot use"):
        board(tmp_path / "none", 1)


def test_random_masks_are_compared_as_sets(tmp_path: Path) -> None:
    one, two = board(tmp_path, 1, columns=300), board(tmp_path, 2, columns=300)
    rng = random.Random(5)
    for _ in range(200):
        here, there = ({rng.randrange(300) for _ in range(rng.randrange(1, 20))} for _ in range(2))
        one.post(1, sum(1 << column for column in here))
        assert two.waited_for(sum(1 << column for column in there)) == bool(here & there)
