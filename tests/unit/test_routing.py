import math
import random
from collections import Counter

import pytest
from fleet_kit import PHI, QWEN, record, table_of
from hypothesis import given
from hypothesis import strategies as st

from recursant.config.model import ScoreWeights
from recursant.fleet.facts import Fact
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from recursant.routing.filters import expected_wait_ms
from recursant.routing.need import Need
from recursant.routing.picker import Pick, Refusal, pick, round_robin
from recursant.routing.scorers import load_of, score

WEIGHTS = ScoreWeights()


def choose(table: FleetTable, need: Need, *, candidates: int = 3, seed: int = 0) -> Pick | Refusal:
    return pick(table, need, weights=WEIGHTS, candidates=candidates, rng=random.Random(seed))


def chosen(table: FleetTable, need: Need, *, candidates: int = 3, seed: int = 0) -> list[str]:
    found = choose(table, need, candidates=candidates, seed=seed)
    assert isinstance(found, Pick), found
    return [table.worker_id(row) for row in found.rows]


# --- filters ---


def test_only_ready_workers_of_the_family_are_used() -> None:
    table = table_of(
        record("w1"),
        record("w2", models=[PHI]),
        *(record(f"w{3 + n}", status=s) for n, s in enumerate(WorkerStatus) if s is not WorkerStatus.READY),
        record("w9", endpoint=None),
    )
    assert chosen(table, Need(family="qwen"), candidates=8) == ["w1"]
    assert choose(table, Need(family="whisper")) is Refusal.NO_WORKER


def test_exclusive_workers_serve_only_agents_that_name_them() -> None:
    table = table_of(record("w1", exclusive=True))
    assert choose(table, Need(family="qwen")) is Refusal.NO_WORKER
    assert choose(table, Need(family="qwen", exclusive=frozenset({"w2"}))) is Refusal.NO_WORKER
    assert chosen(table, Need(family="qwen", exclusive=frozenset({"w1"}))) == ["w1"]


@pytest.mark.parametrize(
    ("need", "enough", "too_little", "refusal"),
    [
        (Need(min_vram_mb=3_200), {"free_vram_mb": 3_200}, {"free_vram_mb": 3_199}, Refusal.VRAM),
        (
            Need(min_bandwidth_mb_s=100),
            {"bandwidth_total_mb_s": 1_000.0, "bandwidth_used_mb_s": 900.0},
            {"bandwidth_total_mb_s": 1_000.0, "bandwidth_used_mb_s": 900.5},
            Refusal.BANDWIDTH,
        ),
    ],
)
def test_hard_filters_compare_and_let_the_unknown_pass(
    need: Need, enough: dict[str, float], too_little: dict[str, float], refusal: Refusal
) -> None:
    assert chosen(table_of(record("w1", **enough)), need) == ["w1"]
    assert chosen(table_of(record("w1")), need) == ["w1"]
    assert choose(table_of(record("w1", **too_little)), need) is refusal


def test_requests_that_do_not_fit_the_context_go_where_they_do() -> None:
    table = table_of(record("w1", models=[Model("a", "x", 4_096)]), record("w2", models=[Model("a", "x", 8_192)]))
    assert chosen(table, Need(family="x", prompt_tokens=5_000)) == ["w2"]
    assert choose(table, Need(family="x", prompt_tokens=9_000)) is Refusal.CONTEXT


def test_the_expected_wait_may_use_seven_tenths_of_the_sla() -> None:
    # 560 tokens at 1,000 tokens/s are 560 ms, which is 0.7 x 800 ms.
    busy = {"running_requests": 4, "peak_token_rate": 1_000.0}
    at_bound = record("w1", waiting_tokens=560, **busy)
    over = record("w2", waiting_tokens=561, **busy)
    need = Need(family="qwen", latency_sla_ms=800)
    found = choose(table_of(at_bound, over), need, candidates=8)
    assert isinstance(found, Pick)
    assert (len(found.rows), found.over_sla) == (1, False)
    # The soft filter never leaves nobody.
    found = choose(table_of(over), need)
    assert isinstance(found, Pick)
    assert found.over_sla


def test_the_reported_wait_counts_where_it_is_larger() -> None:
    table = table_of(record("w1", running_requests=1, peak_token_rate=1_000.0, waiting_tokens=10, queue_wait_ms=900.0))
    facts = table.facts(table.candidates().rows)
    assert expected_wait_ms(facts, load_of(facts), 256)[0] == 900.0
    idle = table_of(record("w1", peak_token_rate=1_000.0, queue_wait_ms=900.0))
    facts = idle.facts(idle.candidates().rows)
    assert expected_wait_ms(facts, load_of(facts), 256)[0] == 0.0


def test_picks_beyond_the_slots_make_a_wait_before_any_report() -> None:
    table = table_of(record("w1", max_num_seqs=2, peak_token_rate=1_000.0))
    for _ in range(5):
        table.acquire(int(table.candidates().rows[0]))
    facts = table.facts(table.candidates().rows)
    # 5 - 2 requests of 100 tokens at 1,000 tokens/s.
    assert expected_wait_ms(facts, load_of(facts), 100)[0] == pytest.approx(300.0)


# --- score ---


def test_the_score_is_the_formula_of_the_spec() -> None:
    table = table_of(
        record("w1", running_requests=3, peak_token_rate=1_000.0, max_queue=10),
        record("w2", running_requests=1, waiting_requests=1, peak_token_rate=1_500.0, max_queue=4),
    )
    found = table.candidates()
    facts = table.facts(found.rows)
    got = dict(
        zip([table.worker_id(int(row)) for row in found.rows], score(facts, load_of(facts), WEIGHTS), strict=True)
    )
    # Rates for one request more: 1000/4 = 250 and 1500/3 = 500; the best is 500.
    assert got["w1"] == pytest.approx(0.6 * 250 / 500 + 0.4 * (1 - 3 / 10))
    assert got["w2"] == pytest.approx(0.6 * 1.0 + 0.4 * (1 - 2 / 4))


def test_max_queue_falls_back_to_max_num_seqs() -> None:
    table = table_of(record("w1", max_num_seqs=64))
    assert table.facts(table.candidates().rows)[Fact.MAX_QUEUE][0] == 64


def test_picks_not_yet_seen_in_a_report_count() -> None:
    table = table_of(*(record(f"w{n}", max_num_seqs=64, peak_token_rate=1_000.0) for n in range(8)))
    rng = random.Random(1)
    counts: Counter[str] = Counter()
    for _ in range(200):
        found = pick(table, Need(family="qwen"), weights=WEIGHTS, candidates=3, rng=rng)
        assert isinstance(found, Pick)
        table.acquire(found.rows[0])
        counts[table.worker_id(found.rows[0])] += 1
    assert set(counts.values()) == {25}


def test_load_is_the_report_with_what_came_and_went_since() -> None:
    table = table_of(record("w1", running_requests=8))
    row = int(table.candidates().rows[0])

    def load() -> float:
        return float(load_of(table.facts(table.candidates().rows))[0])

    assert load() == 8
    table.acquire(row)
    table.acquire(row)
    assert load() == 10
    table.upsert(record("w1", running_requests=10))
    assert load() == 10
    table.release(row)
    assert load() == 9
    # A report that is too old to know of ours never hides them.
    table.upsert(record("w1", running_requests=0))
    assert load() == 1


def test_equal_scores_are_spread() -> None:
    table = table_of(*(record(f"w{n}") for n in range(4)))
    firsts = Counter(chosen(table, Need(), seed=seed)[0] for seed in range(400))
    assert len(firsts) == 4
    # A fair draw of 400 over 4 leaves 60..140 with overwhelming probability.
    assert all(60 <= count <= 140 for count in firsts.values())


def test_the_answer_is_ordered_without_repeats() -> None:
    table = table_of(*(record(f"w{n}", running_requests=n) for n in range(5)))
    assert chosen(table, Need(family="qwen"), candidates=3) == ["w0", "w1", "w2"]


def test_candidates_serve_the_model_of_the_first() -> None:
    other = Model("Qwen/Qwen2.5-72B-Instruct", "qwen", 32_768)
    table = table_of(record("w1"), record("w2", models=[other], running_requests=1), record("w3", running_requests=2))
    assert chosen(table, Need(family="qwen")) == ["w1", "w3"]
    assert chosen(table, Need(model=other.name)) == ["w2"]


def test_lora_adapters_are_served_by_name() -> None:
    table = table_of(record("w1", lora_adapters=["sql"]), record("w2"))
    assert chosen(table, Need(model="sql")) == ["w1"]
    assert table.served.knows_model("sql")
    assert table.served.families_of("sql") == {"qwen"}


def test_round_robin_takes_turns() -> None:
    table = table_of(*(record(f"w{n}", running_requests=n) for n in range(3)))
    firsts = []
    for turn in range(6):
        found = round_robin(table, Need(), turn=turn, candidates=2)
        assert isinstance(found, Pick)
        assert len(found.rows) == 2
        firsts.append(table.worker_id(found.rows[0]))
    assert firsts == ["w0", "w1", "w2"] * 2
    assert round_robin(FleetTable(), Need(), turn=0, candidates=2) is Refusal.NO_WORKER


# --- the table ---


def test_a_declared_peak_wins_and_a_missing_one_is_learnt_while_busy() -> None:
    table = FleetTable()

    def peak() -> float:
        return float(table.facts(table.candidates().rows)[Fact.PEAK_RATE][0])

    table.upsert(record("w1", token_rate=50.0))
    assert math.isnan(peak())
    table.upsert(record("w1", running_requests=2, token_rate=100.0))
    assert peak() == 100
    table.upsert(record("w1", running_requests=2, token_rate=50.0))
    assert peak() == pytest.approx(95.0)
    table.upsert(record("w1", token_rate=0.0))
    assert peak() == pytest.approx(95.0)
    table.upsert(record("w1", running_requests=2, token_rate=10.0, peak_token_rate=700.0))
    assert peak() == 700
    # A restarted worker is counted afresh.
    table.upsert(record("w1", incarnation="second"))
    assert math.isnan(peak())


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e308])
def test_absurd_rates_do_no_harm(rate: float) -> None:
    table = table_of(record("w1", running_requests=1, waiting_tokens=7, peak_token_rate=rate), record("w2"))
    found = choose(table, Need(family="qwen", latency_sla_ms=800))
    assert isinstance(found, Pick)
    assert len(found.rows) >= 1


def test_a_worker_that_left_keeps_its_row_until_its_requests_ended() -> None:
    table = table_of(record("w1"), record("w2", running_requests=1))
    row = int(table.candidates().rows[0])
    assert table.worker_id(row) == "w1"
    table.acquire(row)
    table.remove("w1")
    assert (table.in_flight(), table.in_flight_total()) == ({"w2": 0}, 1)
    for n in range(3, 40):
        table.upsert(record(f"w{n}"))
    assert table.record(row) is None
    table.release(row)
    assert table.in_flight_total() == 0
    with pytest.raises(ValueError, match="more often"):
        table.release(row)
    table.upsert(record("w50"))
    assert table.record(row) is not None


def test_a_worker_that_comes_back_while_requests_end_keeps_one_count() -> None:
    table = table_of(record("w1"))
    row = int(table.candidates().rows[0])
    table.acquire(row)
    table.remove("w1")
    table.upsert(record("w1", incarnation="second"))
    assert table.in_flight() == {"w1": 1}
    table.release(row)
    assert table.in_flight() == {"w1": 0}


def test_candidate_sets_follow_the_fleet() -> None:
    table = table_of(record("w1"))
    assert len(table.candidates(family="qwen").rows) == 1
    table.upsert(record("w2"))
    assert len(table.candidates(family="qwen").rows) == 2
    table.upsert(record("w2", status=WorkerStatus.MISSING))
    assert len(table.candidates(family="qwen").rows) == 1
    table.remove("w1")
    assert len(table.candidates(family="qwen").rows) == 0
    assert table.served.knows_model(QWEN.name)
    assert table.served.row_of_endpoint("10.0.0.1:8000") is None


# --- properties ---

statuses = st.sampled_from(list(WorkerStatus))
workers = st.builds(
    record,
    worker_id=st.integers(0, 60).map(lambda n: f"w{n}"),
    status=statuses,
    models=st.lists(st.sampled_from([QWEN, PHI]), max_size=2, unique=True),
    running_requests=st.integers(0, 300),
    waiting_requests=st.integers(0, 300),
    free_vram_mb=st.none() | st.integers(0, 40_000),
    max_num_seqs=st.none() | st.integers(0, 512),
    peak_token_rate=st.none() | st.floats(0, 1e6),
    queue_wait_ms=st.none() | st.floats(0, 1e6),
    exclusive=st.booleans(),
)
needs = st.builds(
    Need,
    family=st.sampled_from(["", "qwen", "phi"]),
    exclusive=st.frozensets(st.integers(0, 60).map(lambda n: f"w{n}"), max_size=3),
    min_vram_mb=st.integers(0, 40_000),
    prompt_tokens=st.integers(0, 40_000),
    latency_sla_ms=st.none() | st.integers(1, 10_000),
)


def _excluded(worker: WorkerRecord, need: Need) -> bool:
    """The hard filters again, one worker at a time, from the words of the spec."""
    state = worker.state
    if worker.status is not WorkerStatus.READY:
        return True
    if state.exclusive and worker.worker_id not in need.exclusive:
        return True
    serving = [m for m in worker.models if not need.family or m.family == need.family]
    if need.family and not serving:
        return True
    if need.prompt_tokens and serving and all((m.max_model_len or 0) < need.prompt_tokens for m in serving[:1]):
        return True
    return need.min_vram_mb > 0 and state.HasField("free_vram_mb") and state.free_vram_mb < need.min_vram_mb


@given(st.lists(workers, max_size=30), needs, st.integers(1, 8), st.integers(0, 99))
def test_no_hard_filter_is_ever_passed_and_equal_inputs_give_equal_answers(
    fleet: list[WorkerRecord], need: Need, candidates: int, seed: int
) -> None:
    table = table_of(*fleet)
    newest = {worker.worker_id: worker for worker in fleet}
    found = choose(table, need, candidates=candidates, seed=seed)
    if isinstance(found, Refusal):
        assert all(_excluded(worker, need) for worker in newest.values())
        return
    names = [table.worker_id(row) for row in found.rows]
    assert 1 <= len(names) <= candidates
    assert len(set(names)) == len(names)
    assert not any(_excluded(newest[name], need) for name in names)
    assert choose(table_of(*fleet), need, candidates=candidates, seed=seed) == found
