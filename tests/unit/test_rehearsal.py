"""A dry run says what the decision would, and leaves no trace."""

import random
from typing import Any

import numpy as np
import pytest
from fleet_kit import PHI, Recorded, record, table_of

from extproc.desk import Desk
from extproc.gateway import Gateway
from extproc.inspection import read_question
from extproc.rehearsal import Question, rehearse
from recursant.admission.queue import HoldQueue
from recursant.config.model import Config
from recursant.fleet.facts import Fact
from recursant.problems import ApiProblem

AGENTS: list[dict[str, Any]] = [
    {"agent_id": "chat-web", "model_family": "qwen", "priority": 10, "max_new_tokens": 512},
    {"agent_id": "nobody-has-it", "model_family": "whisper"},
    {"agent_id": "too-big", "model_family": "qwen", "min_vram_mb": 500_000},
    {"agent_id": "low", "model_family": "qwen", "class": "low"},
    {"agent_id": "degrade", "model_family": "qwen", "class": "low", "fallback_strategy": "degrade_to_phi"},
    {"agent_id": "batch", "model_family": "qwen", "batch_window_ms": 50},
    {"agent_id": "reader", "model_family": "qwen", "inspect_body": "always"},
]
IDLE = (record("w1", free_vram_mb=8_000), record("w2", models=[PHI]))
# Low may use 7 of 10 slots.
BUSY = (record("w1", running_requests=8, max_num_seqs=10), record("w2", models=[PHI]))


def gateway_over(*records: Any) -> Gateway:
    return Gateway(
        config=Config.model_validate({"agents": AGENTS}),
        table=table_of(*records),
        recorder=Recorded(),
        clock=lambda: 100.0,
        rng=random.Random(3),
    )


def ask(gateway: Gateway, agent: str | None, **fields: Any) -> dict[str, Any]:
    headers = {} if agent is None else {"x-agent-id": agent}
    return rehearse(gateway, Question(headers | fields.pop("headers", {}), **fields), waiting={"low": 0})


def test_a_request_that_somebody_takes() -> None:
    found = ask(gateway_over(*IDLE), "chat-web", prompt_tokens=700)
    assert found["outcome"]["kind"] == "placed"
    assert (found["outcome"]["workers"], found["outcome"]["fallback"]) == (["w1"], None)
    assert (found["request"]["agent"], found["request"]["class"]) == ("chat-web", "high")
    assert found["request"]["prompt_tokens"] == 700
    assert [(each["worker_id"], each["rank"]) for each in found["workers"]] == [("w1", 1)]
    assert found["others"] == [{"worker_id": "w2", "reason": "model"}]


@pytest.mark.parametrize(
    ("agent", "model", "status"),
    [
        # The body of the first is not read here: Envoy refuses what the decision does not name.
        ("chat-web", "Qwen/Qwen2.5-7B-Instruct", None),
        ("chat-web", "auto", None),
        ("chat-web", PHI.name, 403),
        ("chat-web", "gpt-x", 403),
        ("reader", PHI.name, 403),
        ("reader", "gpt-x", 404),
    ],
)
def test_a_model_is_judged_as_the_requests_own_would_be(agent: str, model: str, status: int | None) -> None:
    found = ask(gateway_over(*IDLE), agent, model=model)
    assert found["outcome"].get("status") == status
    if status is not None:
        assert found["outcome"]["code"] == {403: "model_not_allowed", 404: "model_not_found"}[status]
        assert all(each["rank"] is None for each in found["workers"])


def test_the_length_asked_about_is_the_length_decided_on_whatever_was_learnt() -> None:
    gateway = gateway_over(*IDLE)
    before = ask(gateway, "chat-web", prompt_tokens=700)["request"]
    assert (before["bytes_per_token"], before["estimate_error"]) == (4.0, None)
    calibration = gateway.calibration
    calibration.reported("w1", "first", 0, 0)
    for _ in range(8):
        calibration.finished("w1", "qwen", 310, 256)
    calibration.reported("w1", "first", 8, 800)
    after = ask(gateway, "chat-web", prompt_tokens=700)["request"]
    assert after["prompt_tokens"] == 700
    # 4 were assumed where it is 3.1: the truth is 1.29 times the estimate.
    assert (after["bytes_per_token"], after["estimate_error"]) == (3.1, 0.225)


def test_what_the_policy_takes_back_is_named() -> None:
    found = ask(gateway_over(*IDLE), "chat-web", headers={"x-agent-max-new-tokens": "9000"})
    assert found["request"]["clamped"] == ["max_new_tokens"]
    assert found["request"]["expected_tokens"] == 512


@pytest.mark.parametrize(
    ("agent", "status", "code"),
    [("nobody-has-it", 404, "model_not_found"), ("too-big", 503, "no_vram")],
)
def test_a_request_that_nobody_takes(agent: str, status: int, code: str) -> None:
    found = ask(gateway_over(*IDLE), agent)
    assert (found["outcome"]["kind"], found["outcome"]["status"], found["outcome"]["code"]) == ("refused", status, code)
    assert all(each["rank"] is None for each in found["workers"])


def test_a_request_that_would_wait() -> None:
    found = ask(gateway_over(*BUSY), "low")
    assert found["outcome"] == {"kind": "held", "for_ms": 15_000, "fallback": None}
    assert found["workers"][0]["removed_by"] == "slots"


def test_another_family_in_its_place_is_explained_too() -> None:
    found = ask(gateway_over(*BUSY), "degrade")
    assert found["outcome"]["fallback"] == "degrade_to_phi"
    assert found["outcome"]["workers"] == ["w2"]
    assert found["workers"][0]["removed_by"] == "slots"
    assert [(each["worker_id"], each["rank"]) for each in found["degraded"]["workers"]] == [("w2", 1)]


def test_a_batch_window_is_looked_past() -> None:
    assert ask(gateway_over(*IDLE), "batch")["outcome"]["workers"] == ["w1"]


def test_the_body_counts_only_where_it_is_read() -> None:
    gateway = gateway_over(*IDLE)
    unread, read = (ask(gateway, agent, max_tokens=9) for agent in ("chat-web", "reader"))
    assert (unread["request"]["body_read"], unread["request"]["expected_tokens"]) == (False, 512)
    assert (read["request"]["body_read"], read["request"]["expected_tokens"]) == (True, 9)


def test_a_bad_description_is_refused_as_it_would_be() -> None:
    found = ask(gateway_over(*IDLE), "chat-web", headers={"x-agent-priority": "much"})
    assert (found["request"], found["outcome"]["status"]) == (None, 400)


def test_a_dry_run_leaves_no_trace() -> None:
    gateway = gateway_over(*IDLE)
    rows = np.arange(2)
    before = gateway.table.facts(rows)
    turn = [ask(gateway, None)["outcome"]["workers"][0] for _ in range(3)]
    for agent in ("chat-web", "degrade", "batch", "low", "too-big"):
        ask(gateway, agent, prompt_tokens=500)
    np.testing.assert_array_equal(gateway.table.facts(rows), before)
    assert gateway.table.facts(rows)[Fact.IN_FLIGHT].sum() == 0
    assert gateway.table.in_flight_total() == 0
    # Whose turn it is stays, too.
    assert len(set(turn)) == 1
    recorder = gateway.recorder
    assert isinstance(recorder, Recorded)
    assert (recorder.decisions, recorder.fallbacks, recorder.finished) == ([], [], [])


def test_the_dry_run_says_what_the_desk_says() -> None:
    for agent in ("chat-web", "too-big", "nobody-has-it", "degrade"):
        gateway = gateway_over(*BUSY)
        told = ask(gateway, agent)["outcome"]
        arrival = gateway.arrival({"x-agent-id": agent.encode(), "content-length": b"0"}, has_body=False)
        assert not isinstance(arrival, ApiProblem)
        demand = gateway.demand(arrival, None)
        assert not isinstance(demand, ApiProblem)
        done = Desk(gateway, HoldQueue(1), lambda: None).admit(_Nobody(), demand, arrival.at_s)
        if isinstance(done, ApiProblem):
            assert (told["status"], told["code"], told["message"]) == (done.status, done.code, done.message)
        else:
            assert told["workers"] == [gateway.table.worker_id(row) for row in done.rows]  # type: ignore[union-attr]


class _Nobody:
    def resume(self, outcome: Any) -> None:
        raise AssertionError("nobody waits here")


def test_a_question_is_read() -> None:
    found = read_question(
        {"agent": ["a"], "tokens": ["12"], "max_tokens": ["3"], "model": ["m"], "header": ["X-Agent-Priority=3"]}
    )
    assert found == Question({"x-agent-id": "a", "x-agent-priority": "3"}, 12, 3, "m")


@pytest.mark.parametrize(
    "parameters",
    [
        {"tokens": ["-1"]},
        {"tokens": ["1e3"]},
        {"max_tokens": ["0"]},
        {"header": ["authorization=x"]},
        {"header": ["x"]},
    ],
)
def test_a_question_that_makes_no_sense_is_refused(parameters: dict[str, list[str]]) -> None:
    found = read_question(parameters)
    assert isinstance(found, ApiProblem)
    assert found.status == 400
