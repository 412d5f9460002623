"""Affinity: bounded tables, and a pick that follows them only where it may (SPEC C8, D1)."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from fleet_kit import PHI, Recorded, record, table_of
from hypothesis import given
from hypothesis import strategies as st

from extproc.body import BodyFacts, read_json_body
from extproc.decision import Arrival, Decision, Demand
from extproc.gateway import Gateway
from recursant.agents.policy import AgentPolicy
from recursant.agents.priority import PriorityClass
from recursant.config.model import AffinityBounds, Config, Routing, ScoreWeights
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import WorkerStatus
from recursant.routing.affinity import Affinity, Leaning, Trail, weigh
from recursant.routing.affinity_blocks import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    MOST_BLOCKS,
    chained_blocks,
    prompt_bytes,
    session_key,
)
from recursant.routing.affinity_tables import WORKERS_OF_A_BLOCK, Place, PrefixIndex, SessionTable
from recursant.routing.filters import HARD_FILTERS
from recursant.routing.need import Need
from recursant.routing.picker import Pick, pick
from recursant.routing.scorers import load_of

PROFILES = ("classic", "adaptive")


# --- the tables ---


def test_a_session_is_known_until_its_time_is_over() -> None:
    table = SessionTable(10, ttl_s=30.0)
    place = Place("w1", 100, 5.0)
    table.put(b"a", place)
    assert table.get(b"a", 34.9) == place
    assert table.get(b"a", 35.0) is None
    assert table.get(b"b", 5.0) is None


def test_the_session_that_was_used_longest_ago_goes_first() -> None:
    table = SessionTable(2, ttl_s=100.0)
    for at, session in enumerate((b"a", b"b", b"a", b"c")):
        table.put(session, Place("w1", 1, float(at)))
    assert [session for session, _ in table.items()] == [b"a", b"c"]


@given(
    capacity=st.integers(1, 8),
    puts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=60),
)
def test_the_table_of_sessions_is_bounded_and_says_the_last_word(
    capacity: int, puts: Sequence[tuple[int, int]]
) -> None:
    table = SessionTable(capacity, ttl_s=10.0)
    last: dict[bytes, Place] = {}
    now = 0.0
    for session, wait in puts:
        now += wait
        last[bytes([session])] = place = Place(f"w{session}", session, now)
        table.put(bytes([session]), place)
        assert len(table) <= capacity
        assert table.get(bytes([session]), now) == place
    for key, place in last.items():
        assert table.get(key, now) in ((None, place) if now - place.at_s < 10.0 else (None,))


def test_what_has_ended_leaves_the_table_without_anybody_asking_for_it() -> None:
    table = SessionTable(1_000, ttl_s=10.0)
    for number in range(100):
        table.put(b"old %d" % number, Place("w1", 1, 0.0))
    for number in range(100):
        table.put(b"new %d" % number, Place("w1", 1, 20.0))
    assert len(table) == 100


def test_a_worker_matches_as_far_as_it_was_sent_the_same() -> None:
    index = PrefixIndex(100, ttl_s=10.0)
    index.put((1, 2, 3), "w1", 0.0)
    index.put((1, 2, 9, 10), "w2", 1.0)
    assert index.matches((1, 2, 3, 4), 2.0) == {"w1": (3, 0.0), "w2": (2, 1.0)}
    assert list(index.matches((1, 2, 3, 4), 2.0)) == ["w1", "w2"]
    assert index.matches((7, 2, 3), 2.0) == {}
    # w1's blocks have ended.
    assert index.matches((1, 2, 3), 10.5) == {"w2": (2, 1.0)}


def test_the_ends_of_prompts_leave_the_index_before_their_beginnings() -> None:
    index = PrefixIndex(3, ttl_s=10.0)
    index.put((1, 2, 3), "w1", 0.0)
    index.put((8,), "w2", 0.0)
    assert index.matches((1, 2, 3), 0.0) == {"w1": (2, 0.0)}


@given(
    capacity=st.integers(1, 20),
    puts=st.lists(st.tuples(st.lists(st.integers(0, 30), max_size=30), st.integers(0, 20)), max_size=20),
)
def test_the_index_is_bounded_in_blocks_and_in_workers_of_each(
    capacity: int, puts: Sequence[tuple[list[int], int]]
) -> None:
    index = PrefixIndex(capacity, ttl_s=10.0)
    for blocks, worker in puts:
        index.put(blocks, f"w{worker}", 0.0)
        assert len(index) <= capacity
        assert len(index.matches(blocks[:1], 0.0)) <= WORKERS_OF_A_BLOCK


def test_other_bounds_hold_at_once() -> None:
    affinity = Affinity(AffinityBounds(sessions=10, prefix_blocks=10))
    for number in range(10):
        affinity.placed(Trail(bytes([number]), (number,), BLOCK_TOKENS), "w1", 1, 0.0)
    affinity.set_bounds(AffinityBounds(sessions=2, prefix_blocks=3, session_ttl_s=5))
    assert (len(affinity.sessions), len(affinity.prefixes)) == (2, 3)
    assert affinity.leaning(Trail(b"\x09"), 10, 6.0) is None


# --- names ---


def test_a_session_has_a_short_name_of_its_own_for_each_agent_and_model() -> None:
    names = {session_key(agent, model, b"s" * 256) for agent in ("a", "b") for model in ("qwen", "phi")}
    assert len(names) == 4
    assert {len(name) for name in names} == {12}
    assert session_key("a", "qwen", b"x") == session_key("a", "qwen", b"x") != session_key("a", "qwen", b"y")


def test_equal_beginnings_give_equal_blocks_and_nothing_after_the_first_difference() -> None:
    one, other = b"a" * (3 * BLOCK_BYTES), b"a" * (2 * BLOCK_BYTES) + b"b" * BLOCK_BYTES
    first, second = chained_blocks(one, "qwen"), chained_blocks(other, "qwen")
    assert len(first) == len(second) == 3
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    # Equal blocks in other places are others.
    assert len(set(first)) == 3
    assert not set(chained_blocks(one, "phi")) & set(first)
    # A model's name may be anything that JSON can say.
    assert len(chained_blocks(one, "\ud800")) == len(first)
    assert chained_blocks(b"a" * (BLOCK_BYTES - 1), "qwen") == ()
    assert len(chained_blocks(b"a" * (MOST_BLOCKS + 5) * BLOCK_BYTES, "")) == MOST_BLOCKS


def test_a_conversation_that_goes_on_begins_as_it_did() -> None:
    turns = [{"role": "system", "content": "s" * 900}, {"role": "user", "content": [{"type": "text", "text": "q"}]}]
    before = prompt_bytes({"messages": turns, "temperature": 0.1})
    after = prompt_bytes({"top_p": 1, "messages": [*turns, {"role": "assistant", "content": "a"}]})
    assert after.startswith(before)
    assert not prompt_bytes({"messages": turns, "tools": [{"type": "function"}]}).startswith(before)


@pytest.mark.parametrize(
    "body", [{}, {"messages": 7}, {"messages": [1, None]}, {"prompt": [1, 2]}, {"prompt": "\ud800"}]
)
def test_any_body_has_blocks(body: dict[str, Any]) -> None:
    assert isinstance(read_json_body(json.dumps(body).encode(), "qwen"), BodyFacts)


# --- weighing ---


def plain(table: FleetTable, need: Need, weights: ScoreWeights, candidates: int = 3, seed: int = 0) -> Pick:
    found = pick(table, need, weights=weights, candidates=candidates, rng=random.Random(seed))
    assert isinstance(found, Pick)
    return found


def led(
    table: FleetTable, need: Need, *cached: tuple[str, int], sticky: bool = True, profile: Any = "adaptive"
) -> tuple[list[str], str]:
    weights = ScoreWeights(profile=profile)
    found = weigh(table, need, plain(table, need, weights), Leaning(cached, sticky), weights=weights, candidates=3)
    return [table.worker_id(row) for row in found.pick.rows], found.said


@pytest.mark.parametrize("profile", PROFILES)
def test_a_session_goes_where_it_was_though_others_have_a_little_less_to_do(profile: str) -> None:
    table = table_of(*(record(f"w{n}", max_num_seqs=256, running_requests=n) for n in range(1, 4)))
    workers, said = led(table, Need(family="qwen", prompt_tokens=2_000), ("w3", 1_900), profile=profile)
    assert (workers[0], said) == ("w3", "kept")
    assert sorted(workers) == ["w1", "w2", "w3"]


@pytest.mark.parametrize("profile", PROFILES)
def test_it_leaves_a_worker_that_is_much_busier_and_says_so(profile: str) -> None:
    busy = record("w1", max_num_seqs=256, running_requests=200, waiting_requests=50, waiting_tokens=100_000)
    table = table_of(busy, record("w2", max_num_seqs=256), record("w3", max_num_seqs=256))
    workers, said = led(table, Need(family="qwen", prompt_tokens=100), ("w1", 100), profile=profile)
    assert workers[0] != "w1"
    assert said == "moved:busy"


@pytest.mark.parametrize("status", [status for status in WorkerStatus if status is not WorkerStatus.READY])
def test_a_worker_that_is_not_ready_is_left_and_named_by_its_state(status: WorkerStatus) -> None:
    table = table_of(record("w1", status=status), record("w2"))
    assert led(table, Need(family="qwen"), ("w1", 0)) == (["w2"], f"moved:{status.value}")


def test_a_worker_that_is_gone_or_does_not_fit_is_left() -> None:
    table = table_of(record("w1", models=[PHI]), record("w2"), record("w3", exclusive=True))
    assert led(table, Need(family="qwen"), ("w9", 0)) == (["w2"], "moved:gone")
    assert led(table, Need(family="qwen"), ("w1", 0)) == (["w2"], "moved:unfit")
    assert led(table, Need(family="qwen"), ("w3", 0)) == (["w2"], "moved:unfit")


@pytest.mark.parametrize(
    ("need", "state", "filtered_by"),
    [
        (Need(min_vram_mb=100), {"free_vram_mb": 99}, "vram"),
        (Need(min_bandwidth_mb_s=100), {"bandwidth_total_mb_s": 1_000.0, "bandwidth_used_mb_s": 950.0}, "bandwidth"),
        (
            Need(prompt_tokens=200),
            {
                "kv_blocks_total": 100,
                "kv_block_tokens": 16,
                "kv_cache_usage": 0.84,
                "kv_blocks_free": 16,
                "running_requests": 1,
            },
            "memory",
        ),
        (Need(count_as=PriorityClass.HIGH), {"max_num_seqs": 4, "running_requests": 4}, "slots"),
    ],
)
def test_a_filter_holds_for_the_worker_of_a_session_as_for_any(
    need: Need, state: dict[str, Any], filtered_by: str
) -> None:
    table = table_of(record("w1", **state), record("w2"))
    assert led(table, need, ("w1", 10_000)) == (["w2"], f"moved:{filtered_by}")


def test_an_expected_wait_over_the_target_is_a_reason_where_the_score_knows_no_work() -> None:
    table = table_of(record("w1", queue_wait_ms=71.0, running_requests=1), record("w2"))
    need = Need(latency_sla_ms=100, prompt_tokens=100)
    assert led(table, need, ("w1", 100), profile="classic") == (["w2"], "moved:wait")
    # There is next to nothing ahead of it at w1, so that the mean of the past says little.
    assert led(table, need, ("w1", 100), profile="adaptive") == (["w1", "w2"], "kept")


def test_the_worker_with_the_longest_prefix_is_first_unless_it_costs_more_than_it_saves() -> None:
    table = table_of(*(record(f"w{n}", max_num_seqs=256) for n in range(1, 5)))
    need = Need(family="qwen", prompt_tokens=8_000)
    assert led(table, need, ("w3", 6_000), ("w4", 2_000), sticky=False)[0][0] == "w3"
    row = table.row_of_worker("w3")
    assert row is not None
    table.acquire(row, 5_000, 0)
    workers, said = led(table, need, ("w3", 6_000), ("w4", 2_000), sticky=False)
    assert (workers[0], said) == ("w4", "kept")


def test_of_two_models_of_a_family_the_session_keeps_its_own() -> None:
    other = record("w2", models=[type(PHI)("Qwen/Qwen2.5-14B-Instruct", "qwen", 32_768)], running_requests=1)
    table = table_of(record("w1"), other, record("w3"))
    weights = ScoreWeights(profile="adaptive")
    need = Need(family="qwen", prompt_tokens=1_000)
    found = weigh(
        table, need, plain(table, need, weights), Leaning((("w2", 1_000),), True), weights=weights, candidates=3
    )
    assert (found.pick.model, found.said, found.cached_tokens) == ("Qwen/Qwen2.5-14B-Instruct", "kept", 1_000)
    assert [table.worker_id(row) for row in found.pick.rows] == ["w2"]


@st.composite
def fleets(draw: st.DrawFn) -> FleetTable:
    """Some workers in any state."""
    records = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        records.append(
            record(
                f"w{number}",
                status=draw(st.sampled_from([WorkerStatus.READY, WorkerStatus.READY, WorkerStatus.DRAINING])),
                models=draw(st.sampled_from([(PHI,), (record("x").models[0],)])),
                max_num_seqs=4,
                running_requests=draw(st.integers(0, 5)),
                waiting_tokens=draw(st.integers(0, 20_000)),
                queue_wait_ms=draw(st.floats(0, 500)),
                free_vram_mb=draw(st.integers(0, 200)),
                kv_blocks_total=1_000,
                kv_block_tokens=16,
                kv_cache_usage=draw(st.floats(0, 1)),
            )
        )
    return table_of(*records)


@given(
    table=fleets(),
    cached=st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 10_000)), min_size=1, max_size=8, unique_by=lambda x: x[0]
    ),
    sticky=st.booleans(),
    profile=st.sampled_from(PROFILES),
    prompt=st.integers(0, 10_000),
    candidates=st.integers(1, 4),
)
def test_never_a_worker_that_a_hard_filter_removes_and_always_the_same_answer(
    table: FleetTable,
    cached: list[tuple[int, int]],
    sticky: bool,
    profile: Any,
    prompt: int,
    candidates: int,
) -> None:
    weights = ScoreWeights(profile=profile)
    need = Need(family="qwen", prompt_tokens=prompt, min_vram_mb=50, latency_sla_ms=400, count_as=PriorityClass.NORMAL)
    found = pick(table, need, weights=weights, candidates=candidates, rng=random.Random(1))
    if not isinstance(found, Pick):
        return
    leaning = Leaning(tuple((f"w{number}", tokens) for number, tokens in cached), sticky)
    answers = [weigh(table, need, found, leaning, weights=weights, candidates=candidates) for _ in range(2)]
    assert answers[0] == answers[1]
    chosen, said = answers[0].pick, answers[0].said
    assert said == "kept" or said.startswith("moved:")
    assert 1 <= len(chosen.rows) <= candidates
    assert len(set(chosen.rows)) == len(chosen.rows)
    usable = table.candidates(family="qwen")
    facts = table.facts(usable.rows)
    keep = [True] * usable.rows.size
    for each in HARD_FILTERS:
        mask = each.keep(facts, usable.max_model_len, load_of(facts), need)
        keep = keep if mask is None else [kept and bool(stays) for kept, stays in zip(keep, mask, strict=True)]
    allowed = {row for row, kept in zip(usable.rows.tolist(), keep, strict=True) if kept}
    assert set(chosen.rows) <= allowed
    if said == "kept" and sticky:
        assert table.worker_id(chosen.rows[0]) == leaning.cached[0][0]


# --- the gateway ---


class Desk:
    """A gateway with one agent, and its clock."""

    def __init__(self, table: FleetTable, *, weights: ScoreWeights | None = None, **policy: Any) -> None:
        self.now = 0.0
        self.recorded = Recorded()
        agent = AgentPolicy.model_validate({"agent_id": "chat", "model_family": "qwen", **policy})
        routing = Routing(weights=weights or ScoreWeights(profile="adaptive"))
        self.gateway = Gateway(
            config=Config(agents=(agent,), routing=routing),
            table=table,
            recorder=self.recorded,
            clock=lambda: self.now,
            rng=random.Random(3),
        )

    def demand(self, session: str = "", *, body: BodyFacts | None = None, length: int = 400) -> Demand:
        headers = {"x-agent-id": b"chat", "content-length": b"%d" % length, "x-session-id": session.encode()}
        arrival = self.gateway.arrival(headers, has_body=True)
        assert isinstance(arrival, Arrival)
        demand = self.gateway.demand(arrival, body)
        assert isinstance(demand, Demand)
        return demand

    def place(self, session: str = "", **more: Any) -> tuple[str, str | None]:
        """Where a request goes that is over at once."""
        decision = self.gateway.place(self.demand(session, **more))
        assert isinstance(decision, Decision)
        prompt = self.gateway.prompts.sent(decision.rows[0], decision.prompt_tokens, decision.cached_tokens, self.now)
        self.gateway.prompts.read(prompt)
        self.gateway.table.release(decision.rows[0], decision.prompt_tokens, decision.answer_tokens)
        return self.gateway.table.worker_id(decision.rows[0]), decision.affinity


def fleet(count: int = 5) -> FleetTable:
    return table_of(*(record(f"w{n}", max_num_seqs=64) for n in range(1, count + 1)))


def test_a_session_stays_and_without_one_nothing_is_said() -> None:
    desk = Desk(fleet())
    first, said = desk.place("a")
    assert said is None
    assert {desk.place("a") for _ in range(20)} == {(first, "kept")}
    assert len({desk.place(f"other {n}")[0] for n in range(40)}) == 5
    assert {desk.place()[1] for _ in range(20)} == {None}
    assert desk.recorded.affinities == [("chat", "kept")] * 20


def test_scaling_moves_only_the_sessions_that_must_move() -> None:
    """SPEC D2."""
    desk = Desk(fleet(3))
    table = desk.gateway.table

    def beat(*names: str) -> None:
        for name in names:
            table.upsert(record(name, max_num_seqs=64))

    homes = {}
    for number in range(30):
        homes[f"s{number}"] = desk.place(f"s{number}")[0]
        beat("w1", "w2", "w3")
    assert set(homes.values()) == {"w1", "w2", "w3"}
    beat("w4", "w5")
    for session, worker in homes.items():
        assert desk.place(session) == (worker, "kept")
        beat("w1", "w2", "w3")
    table.remove("w2")
    for session, worker in homes.items():
        there, said = desk.place(session)
        assert (there == worker, said) == ((False, "moved:gone") if worker == "w2" else (True, "kept"))
        beat("w1", "w3", "w4", "w5")


def test_an_agent_or_a_weight_of_nothing_switches_it_off() -> None:
    for desk in (Desk(fleet(), affinity="none"), Desk(fleet(), weights=ScoreWeights(affinity=0.0))):
        assert len({desk.place("a") for _ in range(60)}) == 5


def test_a_worker_that_was_started_anew_has_nothing_cached_and_keeps_its_session() -> None:
    desk = Desk(fleet())
    first, _ = desk.place("a")
    affinity = desk.gateway.affinity
    trail = desk.demand("a").trail
    assert trail is not None
    affinity.observe(first, "one", 0.5)
    before = affinity.leaning(trail, 100, 1.0)
    affinity.observe(first, "two", 1.5)
    after = affinity.leaning(trail, 100, 2.0)
    assert before == Leaning(((first, 100),), sticky=True)
    assert after == Leaning(((first, 0),), sticky=True)


def test_a_retry_that_another_worker_served_moves_the_session_there() -> None:
    desk = Desk(fleet())
    first, _ = desk.place("a")
    other = next(worker for worker in ("w1", "w2") if worker != first)
    row = desk.gateway.table.row_of_worker(other)
    assert row is not None
    desk.now = 1.0
    desk.gateway.served_by(desk.demand("a"), row)
    assert desk.place("a") == (other, "kept")


def test_the_prompt_leads_where_the_policy_says_so() -> None:
    body = {"messages": [{"role": "system", "content": "x" * 8_000}, {"role": "user", "content": "hello"}]}
    desk = Desk(fleet(), affinity="prefix")
    facts = read_json_body(json.dumps(body).encode(), "qwen")
    assert isinstance(facts, BodyFacts)
    assert len(facts.blocks) == 8_000 // BLOCK_BYTES
    first, said = desk.place(body=facts, length=8_100)
    assert said is None
    for _ in range(4):
        # Until the next report, what is new of a prompt counts as work that is ahead.
        desk.gateway.table.upsert(record(first, max_num_seqs=64))
        assert desk.place(body=facts, length=8_100) == (first, "kept")
    # Agents that lead by session only never look at it.
    plain_desk = Desk(fleet())
    assert len({plain_desk.place(body=facts, length=8_100)[0] for _ in range(60)}) == 5


def test_only_agents_that_lead_by_prefix_have_their_bodies_read_for_it() -> None:
    headers = {"x-agent-id": b"chat", "content-length": b"400", "content-type": b"application/json"}
    for mode, read in (("none", False), ("session", False), ("prefix", True)):
        gateway = Desk(fleet(), affinity=mode).gateway
        arrival = gateway.arrival(headers, has_body=True)
        assert isinstance(arrival, Arrival)
        assert gateway.needs_body(arrival) is read
        assert (gateway.prefix_seed(arrival) is not None) is read


def test_the_newest_word_about_a_session_counts() -> None:
    affinity = Affinity(AffinityBounds())
    affinity.placed(Trail(b"a"), "w1", 10, 5.0)
    affinity.heard(b"a", Place("w2", 10, 4.0))
    affinity.heard(b"b", Place("w2", 10, 4.0))
    assert affinity.leaning(Trail(b"a"), 10, 6.0) == Leaning((("w1", 10),), sticky=True)
    affinity.heard(b"a", Place("w3", 10, 6.0))
    assert affinity.leaning(Trail(b"a"), 10, 6.0) == Leaning((("w3", 10),), sticky=True)
    assert affinity.leaning(Trail(b"b"), 10, 6.0) == Leaning((("w2", 10),), sticky=True)


def test_a_dry_run_knows_the_same_and_learns_nothing() -> None:
    affinity = Affinity(AffinityBounds())
    affinity.placed(Trail(b"a"), "w1", 10, 5.0)
    twin = affinity.read_only()
    twin.placed(Trail(b"a"), "w2", 10, 6.0)
    twin.placed(Trail(b"b", (1,), 1), "w2", 10, 6.0)
    assert twin.leaning(Trail(b"a"), 10, 7.0) == affinity.leaning(Trail(b"a"), 10, 7.0)
    assert affinity.leaning(Trail(b"b", (1,), 1), 10, 7.0) is None
