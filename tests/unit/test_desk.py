import json
import random
from dataclasses import replace
from typing import Any

import pytest
from desk_kit import Client
from fleet_kit import PHI, QWEN, Recorded, record, table_of
from hypothesis import given
from hypothesis import strategies as st

from extproc.decision import Arrival, Decision, Demand
from extproc.desk import Desk, Ticket
from extproc.gateway import Gateway
from recursant.admission.queue import HoldQueue
from recursant.agents.policy import AgentPolicy
from recursant.agents.request import AgentRequest
from recursant.config.model import Config
from recursant.fleet.worker import Model, WorkerStatus
from recursant.problems import ApiProblem

AGENTS: list[dict[str, Any]] = [
    {"agent_id": "high", "model_family": "qwen", "class": "high"},
    {"agent_id": "low", "model_family": "qwen", "class": "low"},
    {"agent_id": "queue", "model_family": "qwen", "fallback_strategy": "queue_and_retry", "retry_max": 3},
    {"agent_id": "drop", "model_family": "qwen", "fallback_strategy": "drop"},
    {"agent_id": "turns", "model_family": "qwen", "fallback_strategy": "round_robin"},
    {"agent_id": "degrade", "model_family": "qwen", "fallback_strategy": "degrade_to_phi"},
    {"agent_id": "hold", "model_family": "qwen", "on_memory_pressure": "hold", "max_new_tokens": 100},
    {
        "agent_id": "shape",
        "model_family": "qwen",
        "on_memory_pressure": "shape",
        "max_new_tokens": 1_000,
        "class": "high",
    },
    {"agent_id": "batch", "model_family": "qwen", "batch_window_ms": 50, "class": "high"},
    {"agent_id": "slow-batch", "model_family": "qwen", "batch_window_ms": 200},
    {"agent_id": "hurry", "model_family": "qwen", "timeout_ms": 1_000},
    {"agent_id": "whisper", "model_family": "whisper", "fallback_strategy": "queue_and_retry", "retry_max": 9},
]


class Office:
    """A desk over a small fleet, with a clock of its own."""

    def __init__(self, *records: Any, capacity: int = 100) -> None:
        self.now = 0.0
        self.table = table_of(*records)
        self.recorded = Recorded()
        self.gateway = Gateway(
            config=Config.model_validate({"agents": AGENTS}),
            table=self.table,
            recorder=self.recorded,
            clock=lambda: self.now,
            rng=random.Random(3),
        )
        self.woken = 0
        self.desk = Desk(self.gateway, HoldQueue(capacity), self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def demand(self, agent: str, length: int = 0) -> Demand:
        headers = {"x-agent-id": agent.encode(), "content-length": str(length).encode()}
        arrival = self.gateway.arrival(headers, has_body=True)
        assert isinstance(arrival, Arrival)
        demand = self.gateway.demand(arrival, None)
        assert isinstance(demand, Demand)
        return demand

    def come(self, agent: str, length: int = 0) -> tuple[Client, Ticket | None]:
        client = Client()
        outcome = self.desk.admit(client, self.demand(agent, length), self.now)
        if isinstance(outcome, Ticket):
            return client, outcome
        client.outcome = outcome
        return client, None

    def done(self, client: Client) -> None:
        assert isinstance(client.outcome, Decision)
        self.table.release(client.outcome.rows[0], client.outcome.prompt_tokens, client.outcome.answer_tokens)
        self.desk.capacity_changed()

    def run(self, at: float | None = None) -> float | None:
        if at is not None:
            self.now = at
        return self.desk.run(self.now)

    def worker_of(self, client: Client) -> str:
        assert isinstance(client.outcome, Decision), client.outcome
        return self.table.worker_id(client.outcome.rows[0])


def problem(client: Client) -> ApiProblem:
    assert isinstance(client.outcome, ApiProblem), client.outcome
    return client.outcome


def test_a_full_worker_is_waited_for_and_capacity_wakes() -> None:
    office = Office(record("w1", max_num_seqs=1))
    first, _ = office.come("high")
    second, ticket = office.come("high")
    assert ticket is not None
    assert second.outcome is None
    assert office.desk.depth()["high"] == 1
    office.run()
    assert second.outcome is None
    woken = office.woken
    office.done(first)
    assert office.woken == woken + 1
    office.run()
    assert office.worker_of(second) == "w1"
    assert second.outcome is not None
    assert isinstance(second.outcome, Decision)
    assert second.outcome.fallback is None


def test_low_leaves_places_to_high_and_high_overtakes() -> None:
    # 0.7 x 4 slots: Low may fill two of them.
    office = Office(record("w1", max_num_seqs=4))
    lows = [office.come("low") for _ in range(4)]
    assert [ticket is None for _, ticket in lows] == [True, True, False, False]
    highs = [office.come("high") for _ in range(3)]
    assert [ticket is None for _, ticket in highs] == [True, True, False]
    office.done(highs[0][0])
    office.run()
    assert highs[2][0].outcome is not None
    assert lows[2][0].outcome is None


def test_low_is_never_starved() -> None:
    office = Office(record("w1", max_num_seqs=2))
    running = [office.come("high")[0] for _ in range(2)]
    low, _ = office.come("low")
    # High requests keep coming, one for each that ends; the Low one is served all the same.
    for step in range(1, 100):
        office.now = step * 0.5
        running.append(office.come("high")[0])
        office.done(running.pop(0))
        office.run()
        if low.outcome is not None:
            break
    assert isinstance(low.outcome, Decision)
    assert office.now < 15


def test_a_newcomer_does_not_overtake_whoever_waits() -> None:
    office = Office(record("w1", max_num_seqs=1))
    first, _ = office.come("high")
    waiting, _ = office.come("high")
    office.done(first)  # woken, but not run yet
    newcomer, ticket = office.come("high")
    assert isinstance(waiting.outcome, Decision)
    assert ticket is not None
    assert newcomer.outcome is None


def test_queue_and_retry_waits_as_long_as_it_says() -> None:
    office = Office(record("w1", status=WorkerStatus.MISSING))
    client, _ = office.come("queue")
    # 3 x 200 ms.
    assert office.run() == pytest.approx(0.6)
    office.run(0.59)
    assert client.outcome is None
    office.run(0.6)
    assert (problem(client).status, problem(client).code) == (503, "no_room")
    assert problem(client).retry_after_s is not None
    assert office.recorded.fallbacks == [("queue", "queue_and_retry")]


def test_a_worker_that_comes_back_serves_whoever_waits() -> None:
    office = Office(record("w1", status=WorkerStatus.MISSING))
    client, _ = office.come("queue")
    office.table.upsert(record("w1"))
    office.desk.capacity_changed()
    office.run(0.3)
    assert isinstance(client.outcome, Decision)
    assert client.outcome.fallback == "queue_and_retry"
    assert office.recorded.fallbacks == [("queue", "queue_and_retry")]


def test_nobody_waits_past_the_timeout() -> None:
    office = Office(record("w1", max_num_seqs=1))
    office.come("high")
    client, _ = office.come("hurry")
    office.run(0.99)
    assert client.outcome is None
    office.run(1.0)
    assert (problem(client).status, problem(client).code) == (504, "deadline_exceeded")


def test_a_client_that_leaves_gives_its_place_up() -> None:
    office = Office(record("w1", max_num_seqs=1))
    first, _ = office.come("high")
    gone, ticket = office.come("high")
    assert ticket is not None
    office.desk.leave(ticket)
    office.done(first)
    office.run()
    assert gone.outcome is None
    assert office.table.in_flight_total() == 0
    assert sum(office.desk.depth().values()) == 0


def test_drop_does_not_wait() -> None:
    office = Office(record("w1", max_num_seqs=1))
    office.come("high")
    client, _ = office.come("drop")
    assert (problem(client).status, problem(client).code) == (429, "dropped")


def test_round_robin_goes_to_full_workers_and_says_so() -> None:
    office = Office(record("w1", max_num_seqs=1))
    office.come("high")
    client, _ = office.come("turns")
    assert isinstance(client.outcome, Decision)
    assert client.outcome.fallback == "round_robin"


def test_degrade_goes_to_another_family() -> None:
    office = Office(record("w1", status=WorkerStatus.MISSING), record("w2", models=[PHI]))
    client, _ = office.come("degrade")
    assert office.worker_of(client) == "w2"
    assert isinstance(client.outcome, Decision)
    assert (client.outcome.fallback, client.outcome.model) == ("degrade_to_phi", PHI.name)
    assert client.outcome.replaced_models == f",{QWEN.name},"


@pytest.mark.parametrize(("free", "served"), [(6_400, True), (6_399, False)])
def test_the_memory_that_an_agent_needs_holds_for_the_other_family_too(free: int, served: bool) -> None:
    office = Office(record("w1", status=WorkerStatus.MISSING), record("w2", models=[PHI], free_vram_mb=free))
    office.gateway.set_policies(
        [AgentPolicy(agent_id="degrade", model_family="qwen", min_vram_mb=6_400, fallback_strategy="degrade_to_phi")]
    )
    client, _ = office.come("degrade")
    if served:
        assert office.worker_of(client) == "w2"
    else:
        # What the first family said counts.
        assert (problem(client).status, problem(client).code) == (503, "no_worker")


def test_a_prompt_that_looks_too_long_for_any_model_needs_the_memory_of_the_longest() -> None:
    # 3,200 tokens, 2,720 of them below the water-mark: room for the longest prompt, 2,048, and an answer of 256.
    memory = {"kv_blocks_total": 200, "kv_block_tokens": 16, "kv_cache_usage": 0.0, "running_requests": 1}
    short = Model("Qwen/Qwen2.5-7B-Instruct", "qwen", 2_048)
    room = Office(record("w1", models=(short,), **memory))
    client, _ = room.come("high", 4 * 2_500)
    assert isinstance(client.outcome, Decision)
    assert client.outcome.fallback == "context"
    full = Office(record("w1", models=(short,), **{**memory, "kv_cache_usage": 0.5}))
    client, _ = full.come("high", 4 * 2_500)
    assert problem(client).code == "kv_memory"


def test_a_model_with_a_shorter_context_than_the_agent_needs_is_ruled_out() -> None:
    short = Model(QWEN.name, "qwen", 8_191)
    policy = AgentPolicy(agent_id="long", model_family="qwen", context_length=8_192)
    office = Office(record("w1", models=[short]), record("w2"))
    office.gateway.set_policies([policy])
    assert {office.worker_of(office.come("long")[0]) for _ in range(5)} == {"w2"}
    # An estimate may be wrong; what the policy says is not.
    office = Office(record("w1", models=[short]))
    office.gateway.set_policies([policy])
    client, _ = office.come("long")
    assert (problem(client).status, problem(client).code) == (503, "no_context")


def test_a_session_does_not_hold_a_request_to_a_full_worker() -> None:
    office = Office(record("w1", max_num_seqs=2), record("w2", max_num_seqs=2))

    def come() -> Client:
        client = Client()
        headers = {"x-agent-id": b"high", "content-length": b"0", "x-session-id": b"the same"}
        arrival = office.gateway.arrival(headers, has_body=True)
        assert isinstance(arrival, Arrival)
        demand = office.gateway.demand(arrival, None)
        assert isinstance(demand, Demand)
        outcome = office.desk.admit(client, demand, office.now)
        client.outcome = None if isinstance(outcome, Ticket) else outcome
        return client

    assert sorted(office.worker_of(come()) for _ in range(4)) == ["w1", "w1", "w2", "w2"]


def test_a_request_may_outlive_its_agents_policy() -> None:
    # Between its headers and its body the agent is deleted: it goes on with the policy that it came with.
    office = Office(record("w1", exclusive=True), record("w2"))
    office.gateway.set_policies([AgentPolicy(agent_id="own", model_family="qwen", workers=("w1",))])
    headers = {"x-agent-id": b"own", "content-length": b"8"}
    arrival = office.gateway.arrival(headers, has_body=True)
    assert isinstance(arrival, Arrival)
    office.gateway.set_policies([])
    demand = office.gateway.demand(arrival, None)
    assert isinstance(demand, Demand)
    assert demand.agent.agent == "own"
    # It may not use exclusive workers any longer.
    client = Client()
    client.outcome = outcome if isinstance(outcome := office.desk.admit(client, demand, 0.0), Decision) else None
    assert office.worker_of(client) == "w2"


def test_a_degraded_prompt_is_measured_with_the_other_family_s_tokenizer() -> None:
    office = Office(record("w1", status=WorkerStatus.MISSING), record("w2", models=[PHI]))
    calibration = office.gateway.calibration
    calibration.reported("w2", "first", 0, 0)
    for _ in range(8):
        calibration.finished("w2", "phi", 200, 256)
    calibration.reported("w2", "first", 8, 800)
    demand = office.demand("degrade", length=4_000)
    assert demand.need.prompt_tokens == 1_000
    assert office.gateway.degraded(demand, "phi").need.prompt_tokens == 2_000


def test_degrade_without_the_other_family_is_refused() -> None:
    client, _ = Office(record("w1", status=WorkerStatus.MISSING)).come("degrade")
    assert problem(client).status == 503


def test_a_family_that_the_fleet_does_not_have_is_404() -> None:
    client, _ = Office(record("w1")).come("whisper")
    assert (problem(client).status, problem(client).code) == (404, "model_not_found")


def test_a_full_queue_sheds() -> None:
    office = Office(record("w1", max_num_seqs=1), capacity=1)
    office.come("high")
    low, _ = office.come("low")
    high, ticket = office.come("high")
    assert (problem(low).status, problem(low).code) == (429, "queue_full")
    assert ticket is not None
    late, _ = office.come("high")
    assert problem(late).code == "queue_full"
    assert high.outcome is None


# --- memory: 100 blocks of 16 tokens, so the mark is at 1,360 ---

KV = {"kv_blocks_total": 100, "kv_block_tokens": 16}


def test_past_the_water_mark_a_request_is_refused_with_what_would_fit() -> None:
    office = Office(record("w1", kv_cache_usage=0.5, running_requests=1, **KV))
    # 560 tokens are free below the mark; 1,840 bytes and 100 tokens of output are exactly that.
    client, _ = office.come("high", length=(560 - 256) * 4)
    assert isinstance(client.outcome, Decision)
    office = Office(record("w1", kv_cache_usage=0.5, running_requests=1, **KV))
    client, _ = office.come("high", length=(560 - 256) * 4 + 4)
    refused = problem(client)
    assert (refused.status, refused.code) == (429, "kv_memory")
    assert "lower max_tokens to 255" in json.loads(refused.body())["error"]["message"]
    assert refused.retry_after_s is not None


def test_what_was_sent_since_the_last_beat_counts() -> None:
    office = Office(record("w1", kv_cache_usage=0.0, running_requests=1, **KV))
    outcomes = [office.come("high", length=400)[0].outcome for _ in range(5)]
    # 356 tokens each: three fit below 1,360.
    assert [isinstance(outcome, Decision) for outcome in outcomes] == [True, True, True, False, False]
    office.table.upsert(record("w1", kv_cache_usage=0.1, running_requests=4, **KV))
    assert isinstance(office.come("high", length=400)[0].outcome, Decision)


def test_an_idle_worker_takes_what_it_can() -> None:
    office = Office(record("w1", kv_cache_usage=0.0, **KV))
    assert isinstance(office.come("high", length=100_000)[0].outcome, Decision)


def test_an_answer_is_shortened_to_what_fits_where_the_policy_says_so() -> None:
    # 560 tokens are free below the mark, the prompt has 100.
    office = Office(record("w1", kv_cache_usage=0.5, running_requests=1, **KV))
    # Answers are as long as they may be here.
    office.gateway.calibration.reported("w1", "first", 0, 0, 0)
    for _ in range(8):
        office.gateway.calibration.finished("w1", "qwen", 400, 1_000)
    office.gateway.calibration.reported("w1", "first", 8, 800, 8_000)
    client, _ = office.come("shape", length=400)
    assert isinstance(client.outcome, Decision)
    assert (client.outcome.fallback, client.outcome.shaped, client.outcome.max_tokens) == ("shape", 460, 460)
    assert office.recorded.fallbacks == [("shape", "shape")]
    # All of the room is given away: the next one finds none, and hears what would fit.
    second, _ = office.come("shape", length=400)
    assert (problem(second).status, problem(second).code) == (429, "kv_memory")


def test_what_fits_as_it_is_is_not_shaped() -> None:
    office = Office(record("w1", kv_cache_usage=0.0, running_requests=1, **KV))
    client, _ = office.come("shape", length=400)
    assert isinstance(client.outcome, Decision)
    assert (client.outcome.fallback, client.outcome.shaped, client.outcome.max_tokens) == (None, None, 1_000)


def test_an_answer_is_shaped_for_the_worker_with_most_room_that_it_may_use() -> None:
    office = Office(
        record("w1", kv_cache_usage=0.5, running_requests=1, **KV),
        record("w2", kv_cache_usage=0.35, running_requests=1, **KV),
        # It has the room, but no slot.
        record("w3", kv_cache_usage=0.2, running_requests=1, max_num_seqs=1, **KV),
    )
    client, _ = office.come("shape", length=400)
    assert office.worker_of(client) == "w2"
    assert isinstance(client.outcome, Decision)
    assert client.outcome.shaped == 800 - 100


def test_an_answer_that_would_be_too_short_is_refused() -> None:
    # 16 tokens are left beside the prompt, or 15.
    for left, code in ((16, None), (15, "kv_memory")):
        office = Office(record("w1", kv_cache_usage=0.5, running_requests=1, **KV))
        client, _ = office.come("shape", length=(560 - left) * 4)
        assert (problem(client).code if isinstance(client.outcome, ApiProblem) else None) == code


def test_whoever_waits_for_a_slot_is_shaped_when_it_comes() -> None:
    office = Office(record("w1", kv_cache_usage=0.5, running_requests=2, max_num_seqs=2, **KV))
    client, ticket = office.come("shape", length=400)
    assert ticket is not None
    office.table.upsert(record("w1", kv_cache_usage=0.6, running_requests=1, max_num_seqs=2, **KV))
    office.desk.capacity_changed()
    office.run(0.1)
    assert isinstance(client.outcome, Decision)
    # 0.25 x 1,600 less the prompt.
    assert client.outcome.shaped == 300


def test_the_bounds_of_a_batch_are_each_request_s_own() -> None:
    office = Office(record("w1"))
    demands = [office.demand("batch"), office.demand("batch")]
    demands[1].agent = replace(demands[1].agent, max_new_tokens=7)
    clients = [Client(), Client()]
    for client, demand in zip(clients, demands, strict=True):
        assert isinstance(office.desk.admit(client, demand, 0.0), Ticket)
    office.run(0.05)
    bounds = [client.outcome.max_tokens for client in clients if isinstance(client.outcome, Decision)]
    assert bounds == [None, 7]


def test_memory_is_waited_for_where_the_policy_says_so() -> None:
    office = Office(record("w1", kv_cache_usage=0.84, running_requests=1, **KV))
    client, ticket = office.come("hold", length=400)
    assert ticket is not None
    office.table.upsert(record("w1", kv_cache_usage=0.2, running_requests=1, **KV))
    office.desk.capacity_changed()
    office.run(0.2)
    assert isinstance(client.outcome, Decision)


# --- batch windows ---


def test_a_batch_goes_to_one_worker_together() -> None:
    office = Office(*(record(f"w{n}") for n in range(4)))
    clients = [office.come("batch")[0] for _ in range(5)]
    other, _ = office.come("slow-batch")
    assert office.run(0.04) == pytest.approx(0.05)
    assert all(client.outcome is None for client in clients)
    assert office.run(0.05) == pytest.approx(0.2)
    assert len({office.worker_of(client) for client in clients}) == 1
    assert other.outcome is None
    office.run(0.2)
    assert isinstance(other.outcome, Decision)


def test_a_batch_that_does_not_fit_one_worker_is_split() -> None:
    office = Office(record("w1", max_num_seqs=2), record("w2", max_num_seqs=2))
    clients = [office.come("batch")[0] for _ in range(5)]
    office.run(0.05)
    placed = [office.worker_of(client) for client in clients if client.outcome is not None]
    assert sorted(placed) == ["w1", "w1", "w2", "w2"]


def test_a_client_may_leave_its_batch() -> None:
    office = Office(record("w1"))
    gone, ticket = office.come("batch")
    stays, _ = office.come("batch")
    assert ticket is not None
    office.desk.leave(ticket)
    office.run(0.05)
    assert gone.outcome is None
    assert isinstance(stays.outcome, Decision)
    assert office.table.in_flight_total() == 1


# --- properties ---

events = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from([agent["agent_id"] for agent in AGENTS]), st.integers(0, 8_000)),
        st.tuples(st.just("done"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 50), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 3_000), st.just(0)),
    ),
    max_size=60,
)


@given(events)
def test_everybody_is_answered_once_in_time_and_every_count_returns_to_zero(script: list[tuple[str, Any, int]]) -> None:
    office = Office(
        record("w1", max_num_seqs=2, **KV, kv_cache_usage=0.1), record("w2", models=[PHI], max_num_seqs=1), capacity=5
    )
    waiting: list[tuple[Client, Ticket, float]] = []
    running: list[Client] = []

    def settle() -> None:
        for entry in list(waiting):
            client, _, deadline = entry
            if client.outcome is not None:
                waiting.remove(entry)
                if isinstance(client.outcome, Decision):
                    running.append(client)
            else:
                assert office.now <= deadline

    for kind, what, length in script:
        if kind == "come":
            client, ticket = office.come(what, length)
            if ticket is not None:
                waiting.append((client, ticket, office.now + 15.0))
            elif isinstance(client.outcome, Decision):
                running.append(client)
        elif kind == "done" and running:
            office.done(running.pop(what % len(running)))
        elif kind == "leave" and waiting:
            office.desk.leave(waiting.pop(what % len(waiting))[1])
        elif kind == "wait":
            office.now += what / 1_000
        office.run()
        settle()
    while running or waiting:
        while running:
            office.done(running.pop())
        office.now += 0.5
        office.run()
        settle()
    assert office.table.in_flight_total() == 0
    assert sum(office.desk.depth().values()) == 0
    assert office.run() is None


def test_requests_without_an_agent_wait_too() -> None:
    office = Office(record("w1", max_num_seqs=1))
    first, _ = office.come("nobody")
    second, ticket = office.come("nobody")
    assert ticket is not None
    office.done(first)
    office.run()
    assert isinstance(second.outcome, Decision)
    assert second.outcome.fallback == "round_robin"
    assert isinstance(office.demand("nobody").agent, AgentRequest)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 6)), min_size=1, max_size=4),
    st.integers(0, 8_000),
)
def test_what_is_shaped_fits_below_the_water_mark(workers: list[tuple[float, int]], length: int) -> None:
    office = Office(
        *(
            record(f"w{number}", kv_cache_usage=usage, running_requests=running, max_num_seqs=6, **KV)
            for number, (usage, running) in enumerate(workers)
        )
    )
    client, _ = office.come("shape", length=length)
    if isinstance(client.outcome, Decision):
        usage, _ = workers[client.outcome.rows[0]]
        room = (0.85 - usage) * 1_600
        prompt = length // 4
        bound = client.outcome.shaped
        if bound is None:
            assert prompt + 1_000 <= room + 1e-6
        else:
            assert 16 <= bound < 1_000
            assert prompt + bound <= room + 1e-6
            assert client.outcome.fallback == "shape"
            # No more was taken from the answer than had to be: nobody else had more room for it.
            free = [(0.85 - other) * 1_600 for other, running in workers if running < 6]
            assert bound == int(max(free) - prompt + 1e-6) or bound == int(max(free) - prompt)
