"""The explanation is the pick's: same winners, same refusal, and numbers that agree with what the filters did."""

import random
from collections import Counter

import numpy as np
import pytest
from fleet_kit import PHI, QWEN, record, table_of
from hypothesis import example, given
from hypothesis import strategies as st

from recursant.agents.priority import PriorityClass
from recursant.config.model import ScoreWeights
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.routing.compared import Bound
from recursant.routing.explain import Check, Considered, Counted, Explanation, Unusable, explain, summarise
from recursant.routing.filters import HARD_FILTERS
from recursant.routing.need import Express, Need
from recursant.routing.picker import Pick, Refusal, pick

WEIGHTS = ScoreWeights()


def explained(table: FleetTable, need: Need, *, candidates: int = 3) -> Explanation:
    return explain(table, need, weights=WEIGHTS, candidates=candidates, rng=random.Random(1))


def row_of(found: Explanation, worker_id: str) -> Considered:
    return next(each for each in found.considered if each.worker_id == worker_id)


def check_of(found: Explanation, worker_id: str, name: str) -> Check:
    return next(each for each in row_of(found, worker_id).checks if each.filter == name)


def test_everybody_is_named_with_the_reason() -> None:
    table = table_of(
        record("w1"),
        record("w2", models=[PHI]),
        record("w3", status=WorkerStatus.ISOLATED),
        record("w4", exclusive=True),
        record("w5", endpoint=None),
    )
    found = explained(table, Need(family="qwen"))
    assert [each.worker_id for each in found.considered] == ["w1"]
    assert {each.worker_id: each.reason for each in found.others} == {
        "w2": Unusable.MODEL,
        "w3": WorkerStatus.ISOLATED,
        "w4": Unusable.EXCLUSIVE,
        "w5": Unusable.NO_ADDRESS,
    }


def test_a_filter_shows_the_two_numbers_and_the_unknown_as_unknown() -> None:
    table = table_of(record("w1", free_vram_mb=3_199), record("w2"), record("w3", free_vram_mb=3_200))
    found = explained(table, Need(family="qwen", min_vram_mb=3_200))
    assert check_of(found, "w1", "vram") == Check("vram", False, 3_199, Bound.AT_LEAST, 3_200)
    assert check_of(found, "w2", "vram") == Check("vram", True, None, Bound.AT_LEAST, 3_200)
    assert check_of(found, "w3", "vram").passed
    assert row_of(found, "w1").removed_by == "vram"
    assert (row_of(found, "w2").removed_by, row_of(found, "w1").rank) == (None, None)


def test_the_share_of_slots_follows_the_class() -> None:
    table = table_of(record("w1", running_requests=7, max_num_seqs=10))
    low = explained(table, Need(family="qwen", count_as=PriorityClass.LOW))
    assert low.outcome is Refusal.SLOTS
    assert check_of(low, "w1", "slots") == Check("slots", False, 7, Bound.BELOW, 7)
    high = explained(table, Need(family="qwen", count_as=PriorityClass.HIGH))
    assert check_of(high, "w1", "slots") == Check("slots", True, 7, Bound.BELOW, 10)


def test_the_score_comes_with_its_terms() -> None:
    table = table_of(
        record("w1", peak_token_rate=1_000.0, max_num_seqs=100),
        record("w2", peak_token_rate=500.0, max_num_seqs=100, running_requests=50),
    )
    found = explained(table, Need(family="qwen"))
    best, second = found.considered
    assert (best.worker_id, best.rank, second.rank) == ("w1", 1, 2)
    # Idle and fastest: both terms are whole.
    assert (best.terms.token_rate, best.terms.queue, best.terms.total) == pytest.approx((1, 1, 1))
    # 500/51 of 1000/1, and half of the queue.
    assert second.terms.token_rate == pytest.approx(500 / 51 / 1_000)
    assert second.terms.queue == pytest.approx(0.5)
    assert second.terms.total == pytest.approx(0.6 * 500 / 51 / 1_000 + 0.4 * 0.5)


def test_a_worker_over_the_target_is_removed_only_while_another_stays() -> None:
    slow = {"running_requests": 4, "peak_token_rate": 1_000.0, "waiting_tokens": 1_000}
    need = Need(family="qwen", latency_sla_ms=800)
    both = explained(table_of(record("w1", **slow), record("w2")), need)
    assert row_of(both, "w1").removed_by == "wait"
    assert check_of(both, "w1", "wait") == Check("wait", False, 1_000, Bound.AT_MOST, 560)
    alone = explained(table_of(record("w1", **slow)), need)
    assert (row_of(alone, "w1").removed_by, row_of(alone, "w1").rank) == (None, 1)
    assert isinstance(alone.outcome, Pick)
    assert alone.outcome.over_sla


def test_a_pick_that_is_counted_already_is_seen_as_the_pick_saw_it() -> None:
    table = table_of(record("w1", running_requests=2, kv_blocks_total=100, kv_block_tokens=16, kv_cache_usage=0.1))
    need = Need(family="qwen", prompt_tokens=100)
    before = explained(table, need)
    assert isinstance(before.outcome, Pick)
    table.acquire(before.outcome.rows[0], need.prompt_tokens, need.answer_tokens)
    assert row_of(explained(table, need), "w1").load == 3
    counted = Counted(before.outcome.rows[0], need.prompt_tokens, need.answer_tokens)
    after = summarise(table, need, weights=WEIGHTS, decided=before.outcome, counted=counted, names=8)
    assert after.best == before.considered


workers = st.builds(
    record,
    worker_id=st.integers(0, 40).map(lambda n: f"w{n}"),
    status=st.sampled_from([WorkerStatus.READY, WorkerStatus.READY, WorkerStatus.READY, *WorkerStatus]),
    endpoint=st.sampled_from(["", "", "", None]),
    models=st.lists(st.sampled_from([QWEN, PHI]), min_size=1, max_size=2, unique=True),
    running_requests=st.integers(0, 20),
    waiting_tokens=st.integers(0, 5_000),
    free_vram_mb=st.none() | st.integers(0, 10_000),
    bandwidth_total_mb_s=st.none() | st.just(1_000.0),
    bandwidth_used_mb_s=st.none() | st.floats(0, 1_000),
    max_num_seqs=st.sampled_from([0, 4, 16, 64]),
    peak_token_rate=st.none() | st.floats(0, 1e4),
    queue_wait_ms=st.none() | st.floats(0, 5_000),
    kv_blocks_total=st.sampled_from([0, 100, 1_000]),
    kv_block_tokens=st.just(16),
    kv_cache_usage=st.none() | st.floats(0, 1),
    exclusive=st.booleans(),
)
needs = st.builds(
    Need,
    family=st.sampled_from(["", "qwen", "phi", "whisper"]),
    exclusive=st.frozensets(st.integers(0, 40).map(lambda n: f"w{n}"), max_size=3),
    min_vram_mb=st.sampled_from([0, 0, 3_000, 20_000]),
    min_bandwidth_mb_s=st.sampled_from([0, 0, 500]),
    prompt_tokens=st.sampled_from([0, 10, 5_000, 40_000]),
    expected_tokens=st.integers(1, 2_000),
    latency_sla_ms=st.none() | st.integers(1, 5_000),
    count_as=st.none() | st.sampled_from(list(PriorityClass)),
    express=st.sampled_from([Express.NONE, Express.URGENT, Express.KEEPS_OFF]),
)
# How workers stand to the express lane: see `FleetTable.set_express`.
express = st.dictionaries(st.integers(0, 40), st.tuples(st.sampled_from([0.0, 1_000.0]), st.just(0.0), st.just(64.0)))


def set_apart(table: FleetTable, standings: dict[int, tuple[float, float, float]]) -> None:
    for number, standing in standings.items():
        row = table.row_of_worker(f"w{number}")
        if row is not None:
            table.set_express(row, *standing)


@given(st.lists(workers, max_size=20), needs, st.integers(1, 4), st.integers(0, 99), express)
def test_explanation_and_pick_agree(
    fleet: list[WorkerRecord],
    need: Need,
    candidates: int,
    seed: int,
    standings: dict[int, tuple[float, float, float]],
) -> None:
    table = table_of(*fleet)
    set_apart(table, standings)
    found = pick(table, need, weights=WEIGHTS, candidates=candidates, rng=random.Random(seed))
    # An explanation after the fact, and one that makes the pick itself.
    for decided in (found, None):
        told = explain(table, need, weights=WEIGHTS, candidates=candidates, rng=random.Random(seed), decided=decided)
        assert told.outcome == found
        short = summarise(table, need, weights=WEIGHTS, decided=found, names=3)
        assert short.considered == len(told.considered)
        assert short.best == tuple(each for each in told.considered if each.rank is not None)[:3]
        gone = Counter(each.removed_by for each in told.considered if each.removed_by is not None)
        assert {name: count for name, (count, _) in short.removed.items()} == gone
        named = [each.worker_id for each in (*told.considered, *told.others)]
        assert sorted(named) == sorted({each.worker_id for each in fleet})
        if isinstance(found, Refusal):
            assert all(each.removed_by is not None for each in told.considered)
            assert (found is Refusal.NO_WORKER) == (not told.considered)
            assert all(each.rank is None for each in told.considered)
            continue
        winners = [each.worker_id for each in told.considered if each.rank is not None and each.rank <= len(found.rows)]
        assert winners == [table.worker_id(row) for row in found.rows]
        stayed = [each for each in told.considered if each.removed_by is None]
        assert {*winners} <= {each.worker_id for each in stayed}
        # The winner has the best score of all that the explanation says stayed; a draw among equals is below 1e-8.
        best = max(each.terms.total for each in stayed)
        assert told.considered[0].terms.total == pytest.approx(best, abs=1e-8)
        # And its list holds everybody of its model that stayed, as far as there is place.
        same = [each for each in stayed if each.model == found.model]
        assert len(winners) == min(candidates, len(same))


@example(
    [record("w0")],
    Need(prompt_tokens=5_000, expected_tokens=1, express=Express.KEEPS_OFF),
    {0: (0.0, 0.0, 64.0)},
)
@given(st.lists(workers, max_size=20), needs, express)
def test_the_numbers_shown_are_those_that_the_filters_compared(
    fleet: list[WorkerRecord], need: Need, standings: dict[int, tuple[float, float, float]]
) -> None:
    table = table_of(*fleet)
    set_apart(table, standings)
    for worker in explained(table, need).considered:
        for check in worker.checks:
            known = check.have is not None and check.limit is not None
            if not known or (check.filter == "memory" and worker.load == 0):
                assert check.passed
                continue
            have, limit = np.float64(check.have), np.float64(check.limit)
            holds = {Bound.AT_LEAST: have >= limit, Bound.AT_MOST: have <= limit, Bound.BELOW: have < limit}
            assert check.passed == holds[check.bound], check


def test_every_filter_is_explained() -> None:
    table = table_of(record("w1"))
    need = Need(
        "qwen",
        min_vram_mb=1,
        min_bandwidth_mb_s=1,
        prompt_tokens=1,
        latency_sla_ms=1,
        express=Express.KEEPS_OFF,
    )
    (worker,) = explained(table, need).considered
    assert [each.filter for each in worker.checks] == [*(each.name for each in HARD_FILTERS), "wait"]
