"""Other rules while requests arrive and wait: what the gateway, the desk and the log of decisions make of them."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
from fleet_kit import Recorded, record, table_of

from extproc.decision import Arrival, Decision, Demand
from extproc.decisions import DecisionLog
from extproc.desk import Desk, Outcome, Ticket
from extproc.gateway import Gateway
from recursant.admission.queue import HoldQueue
from recursant.admission.rules import Admission, ClassRules, SlotShares
from recursant.agents.policy import AgentPolicy
from recursant.agents.priority import PriorityClass
from recursant.config.live import GatewayRules
from recursant.config.model import Config, Decisions, Limits, Routing, ScoreWeights
from recursant.problems import ApiProblem


class Counter:
    """A gateway with a desk and a log, rules changed as extproc changes them."""

    def __init__(self, **worker: Any) -> None:
        config = Config(
            agents=(
                AgentPolicy.model_validate({"agent_id": "low", "model_family": "qwen", "class": "low"}),
                AgentPolicy(agent_id="any", model_family="qwen"),
            )
        )
        self.table = table_of(record("w1", **worker))
        self.gateway = Gateway(
            config=config, table=self.table, recorder=Recorded(), clock=lambda: 0.0, rng=random.Random(1)
        )
        self.woken = 0
        self.desk = Desk(self.gateway, HoldQueue(100), self._wake)
        self.log = DecisionLog(
            Decisions(sample=1.0), config.routing, self.table, clock=lambda: 0.0, rng=random.Random(1)
        )
        self.answers: list[Outcome] = []

    def _wake(self) -> None:
        self.woken += 1

    def resume(self, outcome: Outcome) -> None:
        self.answers.append(outcome)

    def rules(self, rules: GatewayRules) -> None:
        self.gateway.set_rules(rules)
        self.table.set_admission(rules.admission)
        self.log.set_routing(rules.routing)
        self.desk.set_limits(rules.limits.held_requests, rules.admission.ageing_s)

    def arrival(self, agent: str, headers: Mapping[str, bytes] | None = None) -> Arrival | ApiProblem:
        return self.gateway.arrival({"x-agent-id": agent.encode(), **(headers or {})}, has_body=True)

    def demand(self, agent: str, **headers: bytes) -> Demand:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        arrival = self.arrival(agent, {"content-length": b"100", **named})
        assert isinstance(arrival, Arrival)
        demand = self.gateway.demand(arrival, None)
        assert isinstance(demand, Demand)
        return demand

    def come(self, agent: str) -> Outcome | Ticket:
        return self.desk.admit(self, self.demand(agent), 0.0)


def test_whoever_waits_is_looked_at_again_when_the_shares_grow() -> None:
    counter = Counter(max_num_seqs=4)
    # 0.7 x 4: Low may fill two places.
    found = [counter.come("low") for _ in range(3)]
    assert [type(each) for each in found] == [Decision, Decision, Ticket]
    woken = counter.woken
    counter.rules(GatewayRules(admission=Admission(slot_shares=SlotShares(low=0.9))))
    assert counter.woken == woken + 1
    counter.desk.run(0.0)
    [answer] = counter.answers
    assert isinstance(answer, Decision)
    # A smaller share takes nothing back, and holds the next one.
    counter.rules(GatewayRules(admission=Admission(slot_shares=SlotShares(low=0.3))))
    assert counter.table.in_flight() == {"w1": 3}
    assert isinstance(counter.come("low"), Ticket)


def test_a_shorter_queue_sheds_the_next_and_nobody_who_waits() -> None:
    counter = Counter(max_num_seqs=1)
    found = [counter.come("low") for _ in range(3)]
    assert [type(each) for each in found] == [Decision, Ticket, Ticket]
    counter.rules(GatewayRules(limits=Limits(held_requests=1)))
    refused = counter.come("low")
    assert isinstance(refused, ApiProblem)
    assert refused.code == "queue_full"
    assert counter.desk.depth()["low"] == 2
    assert counter.answers == []


def test_limits_and_class_rules_hold_for_the_next_request() -> None:
    counter = Counter()
    session = {"x-session-id": b"s" * 100}
    short = {"x_agent_max_new_tokens": b"100"}
    before = counter.arrival("any", session)
    assert isinstance(before, Arrival)
    assert counter.demand("any", **short).priority_class is PriorityClass.HIGH
    counter.rules(
        GatewayRules(
            limits=Limits(session_id_bytes=64, agent_meta_bytes=64, body_bytes=1_024),
            admission=Admission(rules=ClassRules(short_output_tokens=50)),
            routing=Routing(timeout_ms=1_000),
        )
    )
    refused = counter.arrival("any", session)
    assert isinstance(refused, ApiProblem)
    assert refused.param == "x-session-id"
    assert isinstance(counter.arrival("any", {"x-agent-meta": b'{"priority": 1}' + b" " * 60}), ApiProblem)
    later = counter.demand("any", **short)
    assert (later.priority_class, later.deadline_s) == (PriorityClass.NORMAL, 1.0)
    # What is no live limit does not come with them.
    assert isinstance(counter.arrival("any", {"content-length": b"2000"}), Arrival)
    # The agents stay as they are.
    assert counter.demand("low").priority_class is PriorityClass.LOW


def test_the_log_explains_with_the_weights_in_force() -> None:
    counter = Counter(max_num_seqs=100, running_requests=50, max_queue=100)

    def score() -> tuple[float, float]:
        arrival = counter.arrival("any")
        assert isinstance(arrival, Arrival)
        demand = counter.demand("any")
        outcome = counter.desk.admit(counter, demand, 0.0)
        note = counter.log.decided(b"id", arrival, demand, outcome, 0.0)
        assert note is not None
        [worker] = note.facts["scores"]
        return worker["total"], worker["queue"]

    total, queue = score()
    # One candidate has the best token rate there is: 0.6 x 1 + 0.4 x queue (SPEC C2).
    assert total == pytest.approx(0.6 + 0.4 * queue, abs=1e-3)
    counter.rules(GatewayRules(routing=Routing(weights=ScoreWeights(token_rate=0.0, queue=1.0))))
    total, queue = score()
    assert total == pytest.approx(queue, abs=1e-3)
    assert queue < 0.6


def test_a_worker_that_does_not_tell_its_cache_has_no_water_mark_to_move() -> None:
    counter = Counter()
    counter.rules(GatewayRules(admission=Admission(kv_water_mark=0.1)))
    assert isinstance(counter.come("any"), Decision)
