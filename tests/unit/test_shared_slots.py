"""Counts that several processes share: with real files and real processes, one of them killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fleet_kit import record

from recursant.fleet.counts_file import ColumnsFullError, CountsFile
from recursant.fleet.facts import Fact
from recursant.fleet.shared_file import SharedFileError
from recursant.fleet.shared_slots import SharedSlots
from recursant.fleet.table import FleetTable

# A process that takes three places at one worker and two at another, says so, and stays.
CHILD = """
import sys
from pathlib import Path
from recursant.fleet.counts_file import CountsFile
from recursant.fleet.shared_slots import SharedSlots
file = CountsFile(Path(sys.argv[1]), process=int(sys.argv[2]), processes=3, columns=8)
slots = SharedSlots(file)
slots.add(slots.claim("other"), 2)
slots.add(slots.claim("w1"), 3, 300, 200)
print("counted", flush=True)
sys.stdin.read()
"""

# A process that lets workers come and go, then has all of them, says where, and stays.
CHURN = """
import json, random, sys
from pathlib import Path
from recursant.fleet.counts_file import CountsFile
from recursant.fleet.shared_slots import SharedSlots
process = int(sys.argv[2])
slots = SharedSlots(CountsFile(Path(sys.argv[1]), process=process, processes=3, columns=48))
rng, known = random.Random(process), set()
for _ in range(2_000):
    worker = f"w{rng.randrange(40)}"
    if worker in known:
        known.remove(worker)
        slots.leave(worker)
    else:
        known.add(worker)
        slots.add(slots.claim(worker), 1)
        slots.add(slots.claim(worker), -1)
print(json.dumps({f"w{n}": slots.claim(f"w{n}") for n in range(40)}), flush=True)
sys.stdin.read()
"""


def part(path: Path, process: int, *, processes: int = 3, columns: int = 8) -> CountsFile:
    return CountsFile(path / "inflight", process=process, processes=processes, columns=columns)


@contextlib.contextmanager
def another(path: Path, process: int) -> Iterator["subprocess.Popen[str]"]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path / "inflight"), str(process)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "counted\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def everywhere(slots: SharedSlots, *chosen: int) -> list[int]:
    return slots.counts(np.array(chosen, dtype=np.intp)).tolist()


def test_all_processes_see_what_each_has_in_flight(tmp_path: Path) -> None:
    slots = SharedSlots(part(tmp_path, 1))
    mine = slots.claim("w1")
    slots.add(mine, 1, 60, 40)
    with another(tmp_path, 2):
        assert everywhere(slots, mine) == [4]
        assert (slots.count(mine), slots.total()) == (1, 1)
        sent = slots.tokens_elsewhere(np.array([mine]))
        assert sent is not None
        assert sent.tolist() == [500]
        assert slots.at(mine) == (4, 300, 500)
        assert slots.tokens(mine) == (60, 100)
        # Whatever order they came in, the same worker has the same column.
        assert everywhere(slots, slots.claim("other")) == [2]
    with pytest.raises(ValueError, match="other tokens"):
        slots.add(mine, -1, -60)
    slots.add(mine, -1, -60, -40)
    with pytest.raises(ValueError, match="more often"):
        slots.add(mine, -1)


def test_what_a_killed_process_had_in_flight_is_cleared_by_the_others(tmp_path: Path) -> None:
    file = part(tmp_path, 1)
    slots = SharedSlots(file)
    mine = slots.claim("w1")
    slots.add(mine, 1)
    with another(tmp_path, 2) as child:
        assert not file.reap()
        assert everywhere(slots, mine) == [4]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert everywhere(slots, mine) == [4]
        assert file.reap()
        assert everywhere(slots, mine) == [1]
        assert slots.at(mine) == (1, 0, 0)
        assert not file.reap()
    # Its columns are free again: eight other workers have room beside "w1" but one.
    assert len({slots.claim(f"new-{n}") for n in range(7)} | {mine}) == 8


def test_a_process_that_starts_again_begins_with_nothing(tmp_path: Path) -> None:
    first = SharedSlots(part(tmp_path, 1))
    mine = first.claim("w1")
    with another(tmp_path, 2) as child:
        child.kill()
        child.wait()
        again = SharedSlots(part(tmp_path, 2))
        assert everywhere(first, mine) == [0]
        assert first.at(mine) == (0, 0, 0)
        again.add(again.claim("w1"), 1, 5, 2)
        assert first.at(mine) == (1, 5, 7)


def test_no_two_processes_are_the_same_one(tmp_path: Path) -> None:
    with another(tmp_path, 2), pytest.raises(SharedFileError, match="process 2 runs already"):
        part(tmp_path, 2)
    part(tmp_path, 2).close()


def test_a_process_that_ends_in_order_leaves_nothing(tmp_path: Path) -> None:
    one, two = part(tmp_path, 1), part(tmp_path, 2)
    slots, leaving = SharedSlots(one), SharedSlots(two)
    mine = slots.claim("w1")
    leaving.add(leaving.claim("w1"), 2)
    assert everywhere(slots, mine) == [2]
    two.close()
    two.close()
    assert everywhere(slots, mine) == [0]
    part(tmp_path, 2).close()


def test_a_column_belongs_to_its_worker_while_anybody_uses_it(tmp_path: Path) -> None:
    one, two = SharedSlots(part(tmp_path, 1)), SharedSlots(part(tmp_path, 2))
    column = one.claim("w1")
    assert two.claim("w1") == column
    two.add(column, 1)
    one.leave("w1")
    assert one.claim("w2") != column
    # It left there too, but a request still runs.
    two.leave("w1")
    assert one.claim("w3") != column
    assert one.claim("w1") == column
    assert everywhere(one, column) == [1]
    one.leave("w1")
    two.add(column, -1)
    assert two.claim("w4") == column


def test_a_full_file_refuses_a_worker(tmp_path: Path) -> None:
    slots = SharedSlots(part(tmp_path, 1, columns=2))
    first = slots.claim("w1")
    slots.claim("w2")
    with pytest.raises(ColumnsFullError, match="all 2 columns"):
        slots.claim("w3")
    slots.leave("w1")
    assert slots.claim("w3") == first


@pytest.mark.parametrize("text", [b"something else", b"RCNTCNT2" + bytes(56)])
def test_a_file_for_others_is_refused(tmp_path: Path, text: bytes) -> None:
    part(tmp_path, 1).close()
    with pytest.raises(SharedFileError, match="no file for 2 processes: remove it"):
        part(tmp_path, 1, processes=2)
    (tmp_path / "inflight").write_bytes(text)
    with pytest.raises(SharedFileError, match="no file for 3 processes"):
        part(tmp_path, 1)


def test_a_process_that_allows_for_more_workers_fits_to_those_that_run(tmp_path: Path) -> None:
    one, two = SharedSlots(part(tmp_path, 1, columns=3)), SharedSlots(part(tmp_path, 2, columns=99))
    assert one.claim("w1") == two.claim("w1")
    two.claim("w2")
    two.claim("w3")
    with pytest.raises(ColumnsFullError, match="all 3 columns"):
        two.claim("w4")


def test_a_file_whose_maker_was_killed_is_made_anew(tmp_path: Path) -> None:
    # Killed between the two: the file has its size, and no header yet.
    part(tmp_path, 1).close()
    size = (tmp_path / "inflight").stat().st_size
    (tmp_path / "inflight").write_bytes(bytes(size))
    assert SharedSlots(part(tmp_path, 1)).claim("w1") == 0


def test_a_place_that_nobody_can_write_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SharedFileError, match=r"cannot use .*inflight for shared counts: No such file"):
        part(tmp_path / "nowhere", 1)


@pytest.mark.parametrize(("process", "processes"), [(0, 2), (3, 2), (1, 65)])
def test_numbers_that_make_no_sense(process: int, processes: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected 1 to 64"):
        part(tmp_path, process, processes=processes)


def test_places_given_back_anywhere_can_be_told(tmp_path: Path) -> None:
    one, two = SharedSlots(part(tmp_path, 1)), SharedSlots(part(tmp_path, 2))
    mine = one.claim("w1")
    two.add(two.claim("w1"), 1)
    before = one.released_anywhere()
    two.add(mine, -1)
    assert one.released_anywhere() == before + 1
    one.add(mine, 1)
    one.add(mine, -1)
    assert one.released_anywhere() == two.released_anywhere() == before + 2


def test_a_table_sees_the_load_and_the_memory_that_others_take(tmp_path: Path) -> None:
    slots = SharedSlots(part(tmp_path, 1))
    table = FleetTable(slots)
    table.upsert(record("w1", kv_cache_usage=0.0, kv_blocks_total=1_000, kv_blocks_free=1_000, kv_block_tokens=16))
    rows = table.candidates().rows
    before = table.facts(rows)
    table.acquire(int(rows[0]), 15, 5)
    with another(tmp_path, 2):
        facts = table.facts(rows)
        assert facts[Fact.IN_FLIGHT].tolist() == [4]
        assert facts[Fact.KV_ROOM_TOKENS].tolist() == [before[Fact.KV_ROOM_TOKENS][0] - 520]
        # A beat that knows of the four, and of 100 tokens that they hold so far.
        state = {"kv_cache_usage": 0.00625, "kv_blocks_total": 1_000, "kv_blocks_free": 1_000, "kv_block_tokens": 16}
        table.upsert(record("w1", running_requests=4, **state))
        facts = table.facts(rows)
        assert facts[Fact.IN_FLIGHT_AT_BEAT].tolist() == [4]
        # 100 now, of 85 %; 100 and all answers at the end, of 90 %: there is more room for that.
        assert facts[Fact.KV_ROOM_TOKENS].tolist() == [0.85 * 16_000 - 100]
        assert table.in_flight() == {"w1": 1}


def test_processes_agree_on_columns_however_workers_come_and_go(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHURN, str(tmp_path / "inflight"), str(process)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for process in (1, 2, 3)
    ]
    try:
        found = [json.loads(child.stdout.readline()) for child in children if child.stdout is not None]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert found[0] == found[1] == found[2]
    assert len(set(found[0].values())) == 40
