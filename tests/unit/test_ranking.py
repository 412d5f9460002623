"""A pick from a kept ranking is the pick from scratch, whatever has happened to the fleet before."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
from fleet_kit import PHI, QWEN, record, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

from recursant.admission.rules import Admission
from recursant.agents.priority import PriorityClass
from recursant.config.model import ScoreWeights
from recursant.fleet.changes import MAX_REMEMBERED
from recursant.fleet.counts_file import CountsFile
from recursant.fleet.shared_slots import SharedSlots
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import Model, WorkerStatus
from recursant.routing.need import Express, Need
from recursant.routing.picker import Pick, Refusal, pick_afresh
from recursant.routing.ranking import RankedPicker

# One object: other weights begin all rankings anew.
WEIGHTS = ScoreWeights()
BIG = Model("Qwen/Qwen2.5-72B-Instruct", "qwen", 131_072)
WORKERS = 8

_states = st.fixed_dictionaries(
    {"running_requests": st.integers(0, 6), "waiting_requests": st.integers(0, 3)},
    optional={
        "waiting_tokens": st.integers(0, 2_000),
        "queue_wait_ms": st.floats(0, 1_000),
        "peak_token_rate": st.sampled_from([500.0, 1_000.0, 1_000.0]),
        "token_rate": st.floats(0, 2_000),
        "max_num_seqs": st.sampled_from([2, 8, 256]),
        "max_queue": st.integers(1, 12),
        "free_vram_mb": st.integers(0, 8_000),
        "bandwidth_total_mb_s": st.just(1_000.0),
        "bandwidth_used_mb_s": st.floats(0, 1_000),
        "kv_blocks_total": st.just(100),
        "kv_block_tokens": st.just(16),
        "kv_cache_usage": st.floats(0, 1),
        "exclusive": st.booleans(),
    },
)
_needs = st.builds(
    Need,
    family=st.sampled_from(["", "qwen", "phi"]),
    min_vram_mb=st.sampled_from([0, 3_200]),
    min_bandwidth_mb_s=st.sampled_from([0, 200]),
    prompt_tokens=st.sampled_from([0, 50, 5_000]),
    expected_tokens=st.sampled_from([1, 256]),
    context_length=st.sampled_from([0, 8_000]),
    latency_sla_ms=st.sampled_from([None, 100, 800]),
    count_as=st.sampled_from([None, *PriorityClass]),
    express=st.sampled_from([Express.NONE, Express.URGENT, Express.KEEPS_OFF]),
)
_workers = st.integers(0, WORKERS - 1)
_happenings = st.lists(
    st.one_of(
        st.tuples(st.just("report"), _workers, _states),
        st.tuples(st.just("other models"), _workers, st.sampled_from([(QWEN,), (PHI,), (BIG,), (BIG, PHI), ()])),
        st.tuples(st.just("trial or status"), _workers, st.sampled_from(list(WorkerStatus))),
        st.tuples(st.just("leave"), _workers, st.none()),
        st.tuples(st.just("acquire"), _workers, st.integers(0, 500)),
        st.tuples(st.just("release"), _workers, st.none()),
        st.tuples(st.just("unread"), _workers, st.integers(0, 500)),
        st.tuples(st.just("express"), _workers, st.sampled_from([(math.nan, 0.0), (0.0, 0.0), (300.0, 900.0)])),
        st.tuples(st.just("water-mark"), _workers, st.sampled_from([0.5, 0.9])),
        st.tuples(st.just("pick"), _workers, _needs),
    ),
    min_size=10,
    max_size=60,
)


class _Fleet:
    """A table and the histories of its workers."""

    def __init__(self, size: int, table: FleetTable | None = None) -> None:
        self.table = table or FleetTable()
        self.known: dict[str, dict[str, Any]] = {}
        self.counted: list[tuple[int, int]] = []
        for number in range(size):
            self.report(f"w{number}", {})

    def report(self, worker_id: str, more: dict[str, Any]) -> None:
        self.known[worker_id] = {**self.known.get(worker_id, {}), **more}
        self.table.upsert(record(worker_id, **self.known[worker_id]))

    def acquire(self, row: int, tokens: int) -> None:
        self.table.acquire(row, tokens, tokens)
        self.counted.append((row, tokens))

    def happen(self, what: str, number: int, more: Any) -> None:
        worker_id = f"w{number}"
        match what:
            case "report":
                kept = {
                    key: value for key, value in self.known.get(worker_id, {}).items() if key in ("models", "status")
                }
                self.known[worker_id] = {}
                self.report(worker_id, {**kept, **more})
            case "other models":
                self.report(worker_id, {"models": more})
            case "trial or status":
                self.report(worker_id, {"status": more})
            case "leave":
                self.known.pop(worker_id, None)
                self.table.remove(worker_id)
            case "acquire":
                row = self.table.row_of_worker(worker_id)
                if row is not None:
                    self.acquire(row, more)
            case "release":
                if self.counted:
                    row, tokens = self.counted.pop(number % len(self.counted))
                    self.table.release(row, tokens, tokens)
            case "unread":
                row = self.table.row_of_worker(worker_id)
                if row is not None:
                    self.table.unread(row, more, more // 2)
            case "express":
                row = self.table.row_of_worker(worker_id)
                if row is not None:
                    self.table.set_express(row, *more, 100.0)
            case "water-mark":
                self.table.set_admission(Admission(kv_water_mark=more))


@pytest.mark.parametrize("weights", [ScoreWeights(), ScoreWeights(token_rate=0.0), ScoreWeights(profile="adaptive")])
@given(happenings=_happenings, needs=st.lists(_needs, min_size=1, max_size=3), seed=st.integers(0, 1_000))
@settings(max_examples=150)
def test_it_is_the_pick_from_scratch(
    weights: ScoreWeights, happenings: list[tuple[str, int, Any]], needs: list[Need], seed: int
) -> None:
    fleet = _Fleet(WORKERS)
    ranked = RankedPicker(fleet.table, random.Random(seed))
    draws = random.Random(seed)
    for what, number, more in happenings:
        if what != "pick":
            fleet.happen(what, number, more)
        for need in [more] if what == "pick" else needs:
            found = ranked.pick(need, weights, 3)
            assert found == pick_afresh(fleet.table, need, weights, 3, draws.random())
            if isinstance(found, Pick):
                fleet.acquire(found.rows[0], need.prompt_tokens)


@given(happenings=_happenings, need=_needs, seed=st.integers(0, 1_000))
@settings(max_examples=60)
def test_it_is_the_pick_from_scratch_whatever_another_process_counts(
    tmp_path_factory: pytest.TempPathFactory, happenings: list[tuple[str, int, Any]], need: Need, seed: int
) -> None:
    path = tmp_path_factory.mktemp("counts") / "counts"
    files = [CountsFile(path, process=process, processes=2, columns=4 * WORKERS) for process in (1, 2)]
    fleets = [_Fleet(WORKERS, FleetTable(SharedSlots(file))) for file in files]
    ranked = RankedPicker(fleets[0].table, random.Random(seed))
    draws = random.Random(seed)
    for turn, (what, number, more) in enumerate(happenings):
        if what != "pick":
            # Reports come to both, requests to one of them.
            for fleet in [fleets[turn % 2]] if what in ("acquire", "release", "unread") else fleets:
                fleet.happen(what, number, more)
        for asked in [more] if what == "pick" else [need]:
            assert ranked.pick(asked, WEIGHTS, 3) == pick_afresh(fleets[0].table, asked, WEIGHTS, 3, draws.random())
    for file in files:
        file.close()


def test_what_another_process_sends_and_takes_back_counts_at_the_next_pick(tmp_path: Path) -> None:
    files = [CountsFile(tmp_path / "counts", process=process, processes=2, columns=8) for process in (1, 2)]
    kv = {"kv_blocks_total": 100, "kv_block_tokens": 16, "kv_cache_usage": 0.0}
    here, there = (_Fleet(0, FleetTable(SharedSlots(file))) for file in files)
    for fleet in (here, there):
        for worker_id in ("w1", "w2"):
            fleet.report(worker_id, {**kv, "running_requests": 1})
    ranked = RankedPicker(here.table, random.Random(5))

    def firsts(need: Need) -> set[str]:
        found = [ranked.pick(need, WEIGHTS, 1) for _ in range(20)]
        return {here.table.worker_id(each.rows[0]) if isinstance(each, Pick) else each.value for each in found}

    need = Need(family="qwen", prompt_tokens=100, expected_tokens=100)
    assert firsts(need) == {"w1", "w2"}
    row = there.table.row_of_worker("w1")
    assert row is not None
    there.table.acquire(row, 0, 0)
    there.table.acquire(row, 0, 0)
    assert firsts(need) == {"w2"}
    there.table.release(row)
    there.table.release(row)
    assert firsts(need) == {"w1", "w2"}
    # Its memory counts, too, where it has nothing else to say.
    other = there.table.row_of_worker("w2")
    assert other is not None
    there.table.acquire(row, 600, 700)
    there.table.acquire(other, 600, 700)
    assert firsts(need) == {"memory"}
    for file in files:
        file.close()


def test_equal_workers_all_get_their_share() -> None:
    fleet = _Fleet(WORKERS)
    ranked = RankedPicker(fleet.table, random.Random(3))
    firsts = set()
    for _ in range(200):
        found = ranked.pick(Need(family="qwen"), WEIGHTS, 1)
        assert isinstance(found, Pick)
        firsts.add(found.rows[0])
    assert len(firsts) == WORKERS


def test_other_weights_count_from_the_next_pick_on() -> None:
    # One is twice as fast and has half of its queue full, the other has nothing to do.
    table = table_of(
        record("w1", peak_token_rate=6_000.0, running_requests=2, max_queue=4),
        record("w2", peak_token_rate=1_000.0, max_queue=4),
    )
    ranked = RankedPicker(table, random.Random(1))

    def first(weights: ScoreWeights) -> str:
        found = ranked.pick(Need(family="qwen"), weights, 1)
        assert isinstance(found, Pick)
        return table.worker_id(found.rows[0])

    assert first(ScoreWeights(token_rate=1.0, queue=0.0)) == "w1"
    assert first(ScoreWeights(token_rate=0.0, queue=1.0)) == "w2"


def test_a_long_silence_of_a_ranking_is_made_up_for() -> None:
    fleet = _Fleet(2)
    ranked = RankedPicker(fleet.table, random.Random(1))
    need = Need(family="qwen", count_as=PriorityClass.LOW)
    assert isinstance(ranked.pick(need, WEIGHTS, 1), Pick)
    for _ in range(MAX_REMEMBERED + 5):
        fleet.report("w0", {"max_num_seqs": 1, "running_requests": 1})
    assert len(fleet.table.changes.rows) <= MAX_REMEMBERED
    for _ in range(4):
        found = ranked.pick(need, WEIGHTS, 1)
        assert isinstance(found, Pick)
        assert fleet.table.worker_id(found.rows[0]) == "w1"


def test_nobody_left_is_told_with_the_name_of_the_filter() -> None:
    table = table_of(record("w1", free_vram_mb=100))
    ranked = RankedPicker(table, random.Random(1))
    assert ranked.pick(Need(family="qwen", min_vram_mb=200), WEIGHTS, 3) is Refusal.VRAM
    assert ranked.pick(Need(family="phi"), WEIGHTS, 3) is Refusal.NO_WORKER


def test_the_speeds_of_all_are_held_against_the_best_that_is_left() -> None:
    # By SPEC C2, 0.6 x rate / best rate + 0.4 x room. While the best offers 1,000/s: 0.46 for slow (100/s, room 1)
    # and 0.37 for busy (200/s, room 5/8). When it is taken, and 200/s is the best: 0.70 and 0.85.
    table = table_of(
        record("best", peak_token_rate=1_000.0, max_queue=256),
        record("slow", peak_token_rate=100.0, max_queue=256),
        record("busy", peak_token_rate=800.0, max_queue=8, running_requests=3),
    )
    ranked = RankedPicker(table, random.Random(1))

    def order() -> list[str]:
        found = ranked.pick(Need(family="qwen"), WEIGHTS, 3)
        assert isinstance(found, Pick)
        return [table.worker_id(row) for row in found.rows]

    assert order() == ["best", "slow", "busy"]
    row = table.row_of_worker("best")
    assert row is not None
    for _ in range(20):
        table.acquire(row)
    # 1,000 / 21 tokens/s and 236/256 of the room: 0.51.
    assert order() == ["busy", "slow", "best"]
    for _ in range(20):
        table.release(row)
    assert order() == ["best", "slow", "busy"]
