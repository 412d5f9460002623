"""Nobody waits for the express lane in vain, and nobody waits behind one who does."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleet_kit import table_of
from queue_kit import AGENTS, Host
from test_express import LONG, LONG_BODY, SHORT_BODY, Office, closed, fleet, worker

from extproc.decision import Decision
from extproc.rehearsal import Question, rehearse
from recursant.admission.queue import Held, HoldQueue
from recursant.admission.rules import ExpressRules
from recursant.agents.priority import PriorityClass
from recursant.config.model import Config, ScoreWeights
from recursant.routing.express import MAX_KINDS, REPORTS_WITHIN_S, ExpressLane
from recursant.routing.filters import EXPRESS
from recursant.routing.need import Express, Need
from recursant.routing.picker import Pick, Refusal, pick_afresh
from recursant.routing.scorers import load_of

MINUTE = ExpressRules(turn_ms=60_000, clear_ms=60_000)
SLOW = Need("qwen", prompt_tokens=LONG, express=Express.KEEPS_OFF)


def test_a_prompt_is_read_by_the_time_it_takes_though_nothing_else_is_sent() -> None:
    office = Office(express=ExpressRules(turn_ms=60_000, clear_ms=0))
    office.come("chat", SHORT_BODY)
    reports = [office.come("report", LONG_BODY) for _ in range(6)]
    for report in reports:
        if isinstance(report.outcome, Decision):
            # As a session does. Their answers are not streamed.
            office.gateway.prompts.sent(report.outcome.rows[0], LONG, 0, office.now)
    assert [report.outcome is None for report in reports].count(True) == 3
    # 5,000 tokens and their attention: 1.08 s at 5,000 a second.
    office.now = 1.0
    office.read()
    assert [report.outcome is None for report in reports].count(True) == 3
    office.now = 1.1
    office.read()
    assert all(isinstance(report.outcome, Decision) for report in reports)


def test_a_model_that_only_the_lane_has_does_not_wait_for_its_turn() -> None:
    office = Office(*(worker(f"w{number}", lora_adapters=["own"] if number == 0 else []) for number in range(4)))
    office.come("chat", SHORT_BODY)
    demand = office.demand("report", LONG_BODY)
    office.gateway.place(demand)
    assert closed(office.table) == {"w0"}
    found = office.gateway.place(replace(demand, need=replace(demand.need, family="", model="own")))
    assert isinstance(found, Decision)
    assert office.table.worker_id(found.rows[0]) == "w0"


def test_whoever_is_left_takes_long_prompts_when_the_others_leave() -> None:
    office = Office(*fleet(3), express=MINUTE)
    office.come("chat", SHORT_BODY)
    office.come("report", LONG_BODY)
    assert closed(office.table) == {"w0", "w1"}
    office.table.remove("w2")
    report = office.come("report", LONG_BODY)
    assert isinstance(report.outcome, Decision)


@pytest.mark.parametrize("state", [{"free_vram_mb": 1_000}, {"bandwidth_total_mb_s": 9.0, "bandwidth_used_mb_s": 9.0}])
def test_workers_that_could_never_take_it_are_not_waited_for(state: dict[str, Any]) -> None:
    table = table_of(worker("w0"), worker("w1", **state))
    for worker_id, limit in (("w0", 0.0), ("w1", 1_024.0)):
        row = table.row_of_worker(worker_id)
        assert row is not None
        table.set_express(row, limit, 0.0, 0.0)
    need = replace(SLOW, min_vram_mb=2_000, min_bandwidth_mb_s=5)
    found = pick_afresh(table, need, ScoreWeights(profile="adaptive"), 3, 0.5)
    assert isinstance(found, Pick)
    assert [table.worker_id(row) for row in found.rows] == ["w0"]
    # But one that has something to read is.
    row = table.row_of_worker("w1")
    assert row is not None
    table.unread(row, 2_000)
    assert pick_afresh(table, SLOW, ScoreWeights(profile="adaptive"), 3, 0.5) is Refusal.EXPRESS


def test_one_worker_alone_is_asked_for_itself() -> None:
    """A batch follows its leader: to the lane it does not."""
    table = table_of(worker("w0"))
    table.set_express(0, 0.0, 0.0, 0.0)
    rows = table.candidates().rows
    facts = table.facts(rows)
    assert EXPRESS.removes_one(facts[:, 0].tolist(), math.inf, 0.0, SLOW)
    kept = EXPRESS.keep(facts, np.full(1, np.inf), load_of(facts), SLOW)
    assert kept is None or kept.all()


# --- whoever stands behind ---


def test_short_prompts_go_past_a_long_one_of_their_agent_that_is_kept_off() -> None:
    # A Low agent may use two of four slots.
    office = Office(*(worker(f"w{number}", max_num_seqs=4) for number in range(4)))
    office.come("chat", SHORT_BODY)
    reports = [office.come("report", LONG_BODY) for _ in range(4)]
    assert reports[3].outcome is None
    shorts = [office.come("report", SHORT_BODY) for _ in range(8)]
    served = [short for short in shorts if isinstance(short.outcome, Decision)]
    held = [short for short in shorts if short.outcome is None]
    assert served
    assert held
    at_lane = next(short for short in served if office.worker_of(short) == "w0")
    assert isinstance(at_lane.outcome, Decision)
    office.table.release(at_lane.outcome.rows[0], at_lane.outcome.prompt_tokens, at_lane.outcome.answer_tokens)
    office.desk.capacity_changed()
    office.desk.run(office.now)
    assert reports[3].outcome is None
    assert office.worker_of(held[0]) == "w0"
    assert held[1].outcome is None


def test_who_stands_apart_has_no_share_of_its_own() -> None:
    queue: HoldQueue[str] = HoldQueue()
    normal = PriorityClass.NORMAL
    for number, (name, agent, apart) in enumerate(
        [("a1", "a", True), ("a2", "a", False), ("b1", "b", False), ("a3", "a", True), ("b2", "b", False)]
    ):
        queue.push(Held(name, agent, normal, float(number), 60.0, apart))
    order = []
    while len(queue):
        first = next(queue.heads(10.0))
        order.append(first.item)
        queue.served(first)
        queue.remove(first)
    assert order == ["a1", "b1", "a2", "b2", "a3"]
    assert queue.depth()["normal"] == 0


# --- clocks, and many models ---

URGENT = Need("qwen", prompt_tokens=100, express=Express.URGENT)


def test_a_clock_that_is_set_back_stops_neither_turns_nor_the_end_of_them() -> None:
    table = table_of(*fleet(8))
    lane = ExpressLane(table, ExpressRules(turn_ms=3_000, clear_ms=0))
    for need in (URGENT, SLOW):
        lane.follow(need, 7_200.0)
    before = closed(table)
    for need in (URGENT, SLOW):
        lane.follow(need, 3_603.0)
    assert len(before) == len(closed(table)) == 1
    assert before != closed(table)
    # No urgent request for 10 s.
    lane.follow(SLOW, 3_613.0)
    assert not closed(table)
    # A long one that was seen at a later time counts as one of now, and no longer.
    lane.follow(SLOW, 9_000.0)
    lane.follow(URGENT, 100.0)
    lane.follow(URGENT, 109.0)
    assert closed(table)
    lane.follow(URGENT, 110.0)
    assert not closed(table)


def test_more_models_than_have_a_lane_do_not_take_it_from_each_other() -> None:
    names = [f"adapter-{number}" for number in range(MAX_KINDS + 1)]
    table = table_of(*(worker(f"w{number}", lora_adapters=names) for number in range(4)))
    lane = ExpressLane(table, ExpressRules(turn_ms=3_000, clear_ms=0))
    lane.follow(URGENT, 0.0)
    for name in names:
        lane.follow(Need("", model=name, prompt_tokens=LONG, express=Express.KEEPS_OFF), 0.1)
    seen = len(table.changes.rows), table.changes.epoch
    for name in names * 3:
        lane.follow(Need("", model=name, prompt_tokens=LONG, express=Express.KEEPS_OFF), 0.2)
    assert (len(table.changes.rows), table.changes.epoch) == seen
    # When one of the others has not come for a while, there is room.
    lane.follow(URGENT, 9.0)
    for name in names[1:]:
        lane.follow(Need("", model=name, prompt_tokens=LONG, express=Express.KEEPS_OFF), 10.2)
    assert closed(table)


def test_workers_that_are_all_exclusive_have_a_lane_too() -> None:
    table = table_of(*fleet(4, exclusive=True))
    lane = ExpressLane(table, ExpressRules(turn_ms=3_000, clear_ms=0))
    ours = frozenset({"w0", "w1", "w2", "w3"})
    for need in (URGENT, SLOW):
        lane.follow(replace(need, exclusive=ours), 0.0)
    assert lane.in_use


def test_without_reports_workers_off_the_lane_take_long_prompts_as_ever() -> None:
    """Redis is away: what has been read since the last report, nobody knows."""
    office = Office(*fleet(4), express=ExpressRules(turn_ms=600_000, clear_ms=0))
    office.come("chat", SHORT_BODY)
    reports = [office.come("report", LONG_BODY) for _ in range(4)]
    assert reports[3].outcome is None
    office.now = REPORTS_WITHIN_S
    office.come("chat", SHORT_BODY)
    office.desk.run(office.now)
    assert office.worker_of(reports[3]) != "w0"
    assert {office.worker_of(office.come("report", LONG_BODY)) for _ in range(9)} == {"w1", "w2", "w3"}
    assert closed(office.table) == {"w0"}
    # It is back.
    office.read()
    office.now += REPORTS_WITHIN_S
    office.come("chat", SHORT_BODY)
    later = [office.come("report", LONG_BODY) for _ in range(4)]
    assert sorted(map(office.worker_of, later[:3])) == ["w1", "w2", "w3"]
    assert later[3].outcome is None


def test_whoever_is_apart_for_one_model_is_so_though_for_another_nothing_is_known_of_it() -> None:
    table = table_of(*(worker(f"w{number}", lora_adapters=["own"] if number else []) for number in range(4)))
    lane = ExpressLane(table, ExpressRules(turn_ms=600_000, clear_ms=0))
    own = Need("", model="own", prompt_tokens=LONG, express=Express.KEEPS_OFF)
    for now in (0.0, 2.0):
        for need in (URGENT, SLOW, own):
            lane.follow(need, now)
        # The first of four, and the first of the other three.
        assert closed(table) == {"w0", "w1"}


def test_a_dry_run_long_after_the_last_request_sees_the_lane_as_the_next_one_will() -> None:
    office = Office(*fleet(4, running_requests=1), express=ExpressRules(turn_ms=600_000, clear_ms=0))
    office.come("chat", SHORT_BODY)
    for report in [office.come("report", LONG_BODY) for _ in range(3)]:
        assert isinstance(report.outcome, Decision)
        office.gateway.prompts.sent(report.outcome.rows[0], LONG, 0, office.now)

    def dry_run() -> str:
        found = rehearse(office.gateway, Question({"x-agent-id": "report"}, LONG), waiting={})
        kind: str = found["outcome"]["kind"]
        return kind

    assert dry_run() == "held"
    office.now = 30.0
    assert dry_run() == "placed"
    assert not closed(office.table)


def test_short_prompts_go_past_a_long_one_at_the_owner_of_the_queue(tmp_path: Path) -> None:
    config = Config.model_validate({"agents": AGENTS, "routing": {"weights": {"profile": "adaptive"}}})
    host = Host(tmp_path, 2, config, fleet(4, max_num_seqs=4))
    owner = host.processes[1]
    owner.come("high")
    longs = [owner.come("low", LONG_BODY) for _ in range(4)]
    shorts = [owner.come("low", SHORT_BODY) for _ in range(8)]
    host.settle()
    assert [each.said for each in longs] == ["placed"] * 3 + ["waits"]
    served = [each for each in shorts if each.placed]
    waiting = [each for each in shorts if not each.placed]
    closed_now = closed(owner.table)
    owner.done(next(each for each in served if each.worker(owner) in closed_now))
    host.settle()
    assert longs[3].said == "waits"
    assert [each.said for each in waiting] == ["placed"] + ["waits"] * (len(waiting) - 1)
    host.close()
