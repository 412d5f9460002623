"""The express lane: long prompts of low classes keep off some workers in turn, and urgent requests go there."""

import random
from typing import Any

import pytest
from desk_kit import Client
from fleet_kit import PHI, Recorded, record, table_of
from hypothesis import given
from hypothesis import strategies as st

from extproc.decision import Arrival, Decision, Demand
from extproc.desk import Desk, Ticket
from extproc.gateway import Gateway
from recursant.admission.queue import HoldQueue
from recursant.admission.rules import ExpressRules
from recursant.config.live import GatewayRules
from recursant.config.model import Config
from recursant.fleet.facts import Fact
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import WorkerRecord
from recursant.problems import ApiProblem
from recursant.routing.express import LATELY_S, ExpressLane
from recursant.routing.need import Express, Need

RULES = ExpressRules(share=0.125, turn_ms=3_000, clear_ms=1_000, kv_kept_free=0.1)
STEP = 2_048
LONG = 5_000
URGENT = Need("qwen", prompt_tokens=100, express=Express.URGENT)
SLOW = Need("qwen", prompt_tokens=LONG, express=Express.KEEPS_OFF)


def worker(worker_id: str, **state: Any) -> WorkerRecord:
    state = {"max_num_batched_tokens": STEP, "peak_token_rate": 1_000.0, **state}
    return record(worker_id, **state)


def fleet(size: int, **state: Any) -> list[WorkerRecord]:
    return [worker(f"w{number}", **state) for number in range(size)]


def fact(table: FleetTable, which: int) -> dict[str, float]:
    """One fact of every worker."""
    rows = table.candidates().rows
    return {
        table.worker_id(row): float(value) for row, value in zip(rows.tolist(), table.facts(rows)[which], strict=True)
    }


def closed(table: FleetTable) -> set[str]:
    """Who gets no long prompt of a low class, whatever it has to do."""
    return {worker_id for worker_id, limit in fact(table, Fact.LONG_PROMPT_LIMIT).items() if limit == 0}


def lane_of(table: FleetTable) -> set[str]:
    """Who is the lane: closed, and nothing is ahead of an urgent request there."""
    return {each for each in closed(table) if fact(table, Fact.EXPRESS_WORK)[each] == 0}


def in_use(table: FleetTable, rules: ExpressRules | None = RULES, now: float = 0.0) -> ExpressLane:
    lane = ExpressLane(table, rules)
    lane.follow(URGENT, now)
    lane.follow(SLOW, now)
    return lane


def test_one_worker_in_eight_is_the_lane_and_the_next_one_follows_it() -> None:
    table = table_of(*fleet(8))
    lane = in_use(table)
    seen = []
    for turn in range(9):
        lane.follow(URGENT, 3.0 * turn)
        lane.follow(SLOW, 3.0 * turn)
        (only,) = closed(table)
        seen.append(only)
    assert seen == ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7", "w0"]


def test_gateways_that_met_the_workers_in_another_order_agree() -> None:
    workers = fleet(9)
    one, other = table_of(*workers), table_of(*reversed(workers))
    for now in (0.0, 4.0, 11.5):
        in_use(one, now=now)
        in_use(other, now=now)
        assert closed(one) == closed(other) != set()


def test_before_its_turn_a_worker_gets_no_long_prompt_any_more() -> None:
    table = table_of(*fleet(8))
    lane = in_use(table)
    lane.follow(URGENT, 1.9)
    assert closed(table) == {"w0"}
    lane.follow(URGENT, 2.0)
    assert closed(table) == {"w0", "w1"}
    assert lane_of(table) == {"w0"}
    # Urgent requests that the lane has no room for rather go there than to the others.
    work = fact(table, Fact.EXPRESS_WORK)
    assert 0 == work["w0"] < work["w1"] < work["w2"]
    lane.follow(URGENT, 3.0)
    assert closed(table) == lane_of(table) == {"w1"}


@pytest.mark.parametrize(
    ("needs", "size"),
    [
        ((URGENT,), 8),
        ((SLOW,), 8),
        # Neither is its prompt of more than a step.
        ((URGENT, Need("qwen", prompt_tokens=STEP, express=Express.KEEPS_OFF)), 8),
        ((URGENT, Need("qwen", prompt_tokens=LONG)), 8),
        ((URGENT, SLOW), 2),
        # Nobody serves it.
        ((URGENT, Need("whisper", prompt_tokens=LONG, express=Express.KEEPS_OFF)), 8),
    ],
)
def test_there_is_no_lane_where_nothing_asks_for_one(needs: tuple[Need, ...], size: int) -> None:
    table = table_of(*fleet(size))
    lane = ExpressLane(table, RULES)
    for now in (0.0, 2.5, 5.0):
        for need in needs:
            lane.follow(need, now)
        assert all(limit != limit for limit in fact(table, Fact.LONG_PROMPT_LIMIT).values())
        assert set(fact(table, Fact.EXPRESS_WORK).values()) == {0.0}


@pytest.mark.parametrize("last", [URGENT, SLOW])
def test_it_ends_when_only_one_of_the_two_has_come_for_a_while(last: Need) -> None:
    table = table_of(*fleet(8, kv_blocks_total=100, kv_block_tokens=16, kv_cache_usage=0.0))
    lane = in_use(table)
    lane.follow(last, LATELY_S - 0.1)
    assert closed(table)
    lane.follow(last, LATELY_S)
    assert not closed(table)
    assert set(fact(table, Fact.KV_KEPT_FREE).values()) == {0.0}
    # And begins again with the other one.
    lane.follow(SLOW if last is URGENT else URGENT, LATELY_S + 1)
    assert closed(table)


def test_workers_that_serve_only_others_take_no_part() -> None:
    table = table_of(*fleet(4), *(record(f"p{number}", models=(PHI,)) for number in range(4)))
    in_use(table)
    assert closed(table) == {"w0"}
    work = fact(table, Fact.EXPRESS_WORK)
    assert [work[f"p{number}"] for number in range(4)] == [0.0] * 4


def test_a_worker_that_left_or_is_new_does_not_stop_it() -> None:
    table = table_of(*fleet(4))
    lane = in_use(table)
    table.remove("w0")
    table.upsert(worker("v"))
    assert not closed(table)
    lane.follow(URGENT, 3.0)
    lane.follow(SLOW, 3.0)
    # The second of v, w1, w2, w3.
    assert closed(table) == {"w1"}


def test_other_rules_count_at_once() -> None:
    table = table_of(*fleet(8))
    lane = in_use(table)
    lane.set_rules(RULES.model_copy(update={"share": 0.5}))
    lane.follow(URGENT, 0.1)
    # Half of eight, and as many to be cleared, would leave nobody.
    assert len(closed(table)) == 3
    lane.set_rules(None)
    assert not closed(table)
    lane.follow(URGENT, 0.2)
    assert not closed(table)


@given(
    size=st.integers(3, 40),
    share=st.floats(0.01, 0.5),
    now=st.floats(0, 1e9),
    clear_ms=st.integers(0, 1_000),
)
def test_somebody_always_reads_long_prompts(size: int, share: float, now: float, clear_ms: int) -> None:
    rules = ExpressRules(share=share, clear_ms=clear_ms)
    table = table_of(*fleet(size))
    in_use(table, rules, now)
    assert 1 <= len(lane_of(table)) <= max(1, int(size * share))
    assert len(closed(table)) < size


@given(size=st.integers(3, 20), share=st.floats(0.01, 0.5))
def test_every_worker_reads_long_prompts_again(size: int, share: float) -> None:
    table = table_of(*fleet(size))
    lane = in_use(table, ExpressRules(share=share))
    opened: set[str] = set()
    for turn in range(size + 1):
        lane.follow(URGENT, 3.0 * turn)
        lane.follow(SLOW, 3.0 * turn)
        opened |= {f"w{number}" for number in range(size)} - closed(table)
    assert opened == {f"w{number}" for number in range(size)}


# --- at the desk ---

AGENTS: list[dict[str, Any]] = [
    {"agent_id": "chat", "model_family": "qwen", "class": "high"},
    {"agent_id": "report", "model_family": "qwen", "class": "low"},
    {"agent_id": "drop", "model_family": "qwen", "class": "low", "fallback_strategy": "drop"},
]
# Bytes of a body; four a token before anything is learnt.
LONG_BODY = 4 * LONG
SHORT_BODY = 400


class Office:
    """A desk over a fleet of four, in the first turn: w0 is the lane, once chat and report have come."""

    def __init__(self, *workers: WorkerRecord, profile: str = "adaptive", express: ExpressRules = RULES) -> None:
        self.now = 0.0
        self.table = table_of(*(workers or fleet(4)))
        self.config = Config.model_validate(
            {
                "agents": AGENTS,
                "routing": {"weights": {"profile": profile}},
                "admission": {"express": express.model_dump()},
            }
        )
        self.gateway = Gateway(
            config=self.config,
            table=self.table,
            recorder=Recorded(),
            clock=lambda: self.now,
            rng=random.Random(1),
            wall=lambda: self.now,
        )
        self.desk = Desk(self.gateway, HoldQueue(100), lambda: None)

    def demand(self, agent: str, length: int) -> Demand:
        headers = {"x-agent-id": agent.encode(), "content-length": b"%d" % length}
        arrival = self.gateway.arrival(headers, has_body=True)
        assert isinstance(arrival, Arrival)
        demand = self.gateway.demand(arrival, None)
        assert isinstance(demand, Demand)
        return demand

    def come(self, agent: str, length: int) -> Client:
        client = Client()
        outcome = self.desk.admit(client, self.demand(agent, length), self.now)
        if not isinstance(outcome, Ticket):
            client.outcome = outcome
        return client

    def worker_of(self, client: Client) -> str:
        assert isinstance(client.outcome, Decision), client.outcome
        return self.table.worker_id(client.outcome.rows[0])

    def read(self) -> None:
        """Every worker has read what it has, and says so."""
        for number in range(4):
            row = self.table.row_of_worker(f"w{number}")
            assert row is not None
            busy = int(self.table.in_flight()[f"w{number}"])
            self.table.upsert(worker(f"w{number}", running_requests=busy))
        self.desk.capacity_changed()
        self.desk.run(self.now)


def test_long_prompts_of_low_classes_keep_off_the_lane_and_wait_for_each_other() -> None:
    office = Office()
    chat = office.come("chat", SHORT_BODY)
    assert isinstance(chat.outcome, Decision)
    reports = [office.come("report", LONG_BODY) for _ in range(4)]
    assert sorted(map(office.worker_of, reports[:3])) == ["w1", "w2", "w3"]
    assert reports[3].outcome is None
    # A chat of now goes to the lane; so may a short report.
    assert office.worker_of(office.come("chat", SHORT_BODY)) == "w0"
    assert office.worker_of(office.come("report", SHORT_BODY)) == "w0"
    office.read()
    assert office.worker_of(reports[3]) in {"w1", "w2", "w3"}


def test_ageing_does_not_open_the_lane() -> None:
    office = Office()
    office.come("chat", SHORT_BODY)
    reports = [office.come("report", LONG_BODY) for _ in range(4)]
    # By now it counts as High; w3 is the lane, and w0 is open but for nothing.
    office.now = 9.0
    office.come("chat", SHORT_BODY)
    office.desk.run(office.now)
    assert closed(office.table) == {"w3"}
    assert office.worker_of(reports[3]) == "w0"


def test_an_agent_that_does_not_wait_takes_no_part() -> None:
    office = Office()
    office.come("chat", SHORT_BODY)
    found = [office.worker_of(office.come("drop", LONG_BODY)) for _ in range(5)]
    assert set(found) == {"w0", "w1", "w2", "w3"}
    assert not closed(office.table)


def test_where_a_worker_fails_the_others_are_tried_all_the_same() -> None:
    office = Office()
    office.come("chat", SHORT_BODY)
    reports = [office.come("report", LONG_BODY) for _ in range(3)]
    last = reports[2].outcome
    assert isinstance(last, Decision)
    # Everybody else is the lane, or reads a long prompt.
    assert len(last.rows) == 3


def test_a_held_long_prompt_ends_at_its_deadline_at_the_latest() -> None:
    office = Office(*fleet(3))
    office.come("chat", SHORT_BODY)
    reports = [office.come("report", LONG_BODY) for _ in range(3)]
    assert reports[2].outcome is None
    office.now = 15.0
    office.desk.run(office.now)
    assert reports[2].outcome is not None


def test_low_classes_leave_memory_free_while_there_is_a_lane() -> None:
    # 10,240 tokens each, 8,704 of them below the water-mark, 1,024 kept free.
    memory = {"kv_blocks_total": 640, "kv_block_tokens": 16, "kv_cache_usage": 0.0, "running_requests": 1}
    office = Office(*fleet(4, **memory))
    assert isinstance(office.come("report", 4 * 8_000).outcome, Decision)
    office.come("chat", SHORT_BODY)
    refused = office.come("report", 4 * 8_000)
    assert isinstance(refused.outcome, ApiProblem)
    assert refused.outcome.code == "kv_memory"
    assert isinstance(office.come("chat", 4 * 8_000).outcome, Decision)


@pytest.mark.parametrize("change", [{"profile": "classic"}, {"express": ExpressRules(enabled=False)}])
def test_without_it_nobody_is_kept_off(change: dict[str, Any]) -> None:
    office = Office(**change)
    office.come("chat", SHORT_BODY)
    found = [office.worker_of(office.come("report", LONG_BODY)) for _ in range(8)]
    assert set(found) == {"w0", "w1", "w2", "w3"}
    assert office.demand("report", LONG_BODY).need.express == Express.NONE


def test_it_is_switched_off_while_requests_run() -> None:
    office = Office()
    office.come("chat", SHORT_BODY)
    office.come("report", LONG_BODY)
    assert closed(office.table) == {"w0"}
    rules = GatewayRules.of(
        office.config.model_copy(
            update={"admission": type(office.config.admission)(express=ExpressRules(enabled=False))}
        )
    )
    office.gateway.set_rules(rules)
    assert not closed(office.table)


def test_a_dry_run_makes_no_lane() -> None:
    office = Office()
    twin = office.gateway.twin(Recorded())
    office.come("chat", SHORT_BODY)
    assert isinstance(twin.place(office.demand("report", LONG_BODY)), Decision)
    assert not closed(office.table)


@given(st.lists(st.tuples(st.sampled_from(["chat", "report"]), st.floats(0.01, 0.5)), min_size=5, max_size=60))
def test_nobody_starves_while_workers_read(arrivals: list[tuple[str, float]]) -> None:
    """Every worker reads what it has within 0.5 s: whoever is held then gets a place."""
    office = Office()
    waiting: list[Client] = []
    next_read = 0.5
    for agent, pause in arrivals:
        office.now += pause
        if office.now >= next_read:
            next_read = office.now + 0.5
            office.read()
        waiting.append(office.come(agent, LONG_BODY if agent == "report" else SHORT_BODY))
    for _ in range(len(arrivals)):
        office.now += 0.5
        office.read()
    # Three of four workers, or two while one is cleared, take one each time.
    assert all(client.outcome is not None for client in waiting)
    served = [client for client in waiting if isinstance(client.outcome, Decision)]
    assert len(served) == len(waiting)
