"""Why requests go where they go, through the whole product: the dry run and the log of decisions."""

import itertools
import json
from typing import Any

import pytest
import yaml
from harness.programs import recursant
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

QWEN = "Qwen/Qwen2.5-7B-Instruct"
PHI = "microsoft/Phi-3-mini-4k-instruct"
CONFIG = """
decisions: {sample: 1.0, keep: 100}
agents:
  - {agent_id: chat-web, model_family: qwen, priority: 10, latency_sla_ms: 800, max_new_tokens: 512}
  - {agent_id: voice, model_family: whisper}
  - {agent_id: huge, model_family: qwen, min_vram_mb: 900000000}
  - {agent_id: degrade, model_family: whisper, fallback_strategy: degrade_to_phi}
"""


@pytest.fixture
def fleet(make_stack: MakeStack) -> Stack:
    """Two workers for qwen, one for phi."""
    stack = make_stack(workers=2, config=CONFIG, args=["--worker-models", QWEN])
    stack.start_sim("--worker-id", "phi", "--model", PHI)
    stack.wait_worker("phi")
    wait_until(lambda: stack.chat(agent="chat-web", max_tokens=1).status_code == 200)
    return stack


def cli(stack: Stack, *arguments: str) -> str:
    done = recursant(*arguments, "--run-dir", str(stack.run_dir))
    assert done.exit_code == 0, done.err
    return done.out


def explain(stack: Stack, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli(stack, "explain", *arguments, "-o", "json"))
    return found


def decision(stack: Stack, request_id: str) -> dict[str, Any]:
    """The ended decision of a request."""

    def found() -> dict[str, Any] | None:
        lines = cli(stack, "decisions", "-o", "json", "--limit", "100").splitlines()
        notes = [note for note in map(json.loads, lines) if note["request_id"] == request_id]
        return notes[0] if notes and notes[0]["outcome"] != "running" else None

    note = wait_until(found)
    assert note is not None
    return note


def test_explain_says_what_would_happen_and_nothing_does(fleet: Stack) -> None:
    served = fleet.service_metrics("extproc").value("recursant_requests_total")
    found = explain(fleet, "--agent", "chat-web", "--tokens", "200", "--header", "X-Agent-Priority=900")
    assert found["outcome"]["kind"] == "placed"
    assert set(found["outcome"]["workers"]) == set(fleet.worker_pids)
    assert (found["request"]["agent"], found["request"]["clamped"]) == ("chat-web", ["priority"])
    assert [each["rank"] for each in found["workers"]] == [1, 2]
    assert {check["filter"] for check in found["workers"][0]["checks"]} == {"context", "memory", "slots", "wait"}
    assert {"worker_id": "phi", "reason": "model"} in found["others"]

    table = cli(fleet, "explain", "--agent", "chat-web", "--tokens", "200")
    assert f"→ {found['outcome']['workers'][0].rpartition('-')[0]}" in table
    assert all(f"{worker} " in table for worker in (*fleet.worker_pids, "phi"))
    assert "serves other models" in table
    assert yaml.safe_load(cli(fleet, "explain", "-o", "yaml"))["request"]["known_agent"] is False

    assert fleet.service_metrics("extproc").value("recursant_requests_total") == served
    assert fleet.inflight() == 0


def test_explain_names_what_nobody_has(fleet: Stack) -> None:
    fleet.wait_settled()
    voice = explain(fleet, "--agent", "voice")
    answer = fleet.chat(agent="voice")
    assert (voice["outcome"]["status"], voice["outcome"]["code"]) == (404, "model_not_found")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert voice["workers"] == []
    assert {each["reason"] for each in voice["others"]} == {"model"}

    huge = explain(fleet, "--agent", "huge")
    answer = fleet.chat(agent="huge")
    assert (huge["outcome"]["status"], huge["outcome"]["code"]) == (503, "no_vram")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_vram")
    for worker in huge["workers"]:
        vram = next(check for check in worker["checks"] if check["filter"] == "vram")
        assert (worker["removed_by"], vram["passed"], vram["limit"]) == ("vram", False, 900_000_000)
        assert vram["have"] < vram["limit"]
    table = cli(fleet, "explain", "--agent", "huge")
    assert "503 no_vram" in table
    assert "removed by vram" in table


def test_explain_refuses_what_makes_no_sense(fleet: Stack) -> None:
    done = recursant("explain", "--header", "Authorization=x", "--run-dir", str(fleet.run_dir))
    assert done.exit_code == 1
    assert "x-agent-priority" in done.err
    done = recursant("explain", "--header", "X-Real-Time", "--run-dir", str(fleet.run_dir))
    assert (done.exit_code, "NAME=VALUE" in done.err) == (2, True)


def test_explain_says_what_envoy_will_say_of_a_model(fleet: Stack) -> None:
    answer = fleet.chat(agent="chat-web", model="openai/whisper-large-v3")
    found = explain(fleet, "--agent", "chat-web", "--model", "openai/whisper-large-v3")
    assert found["request"]["body_read"] is False
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "model_not_allowed")
    assert (found["outcome"]["status"], found["outcome"]["code"]) == (403, "model_not_allowed")


def test_decisions_show_a_refusal_a_fallback_and_a_retry(fleet: Stack) -> None:
    assert fleet.chat(agent="huge", headers={"x-request-id": "refused-1"}).status_code == 503
    note = decision(fleet, "refused-1")
    assert (note["agent"], note["outcome"], note["refusal"]) == ("huge", "refused", "no_vram")
    assert note["removed"]["vram"]["count"] == 2

    assert fleet.chat(agent="degrade", headers={"x-request-id": "fallback-1"}).status_code == 200
    note = decision(fleet, "fallback-1")
    assert (note["fallback"], note["pick"], note["worker"]) == ("degrade_to_phi", ["phi"], "phi")
    assert (note["kept_because"], note["outcome"], note["status"]) == ("fallback", "ok", 200)

    def retried() -> dict[str, Any] | None:
        # Which of two equal workers comes first is drawn: ask until it is the busy one.
        victim = next(iter(fleet.worker_pids))
        fleet.sim_fault(victim, kind="busy", count=1)
        number = next(numbers)
        answer = fleet.chat("secret words", agent="chat-web", headers={"x-request-id": f"retried-{number}"})
        assert answer.status_code == 200
        note = decision(fleet, f"retried-{number}")
        assert note["worker"] == answer.headers["x-recursant-worker"]
        return note if note["pick"][0] == victim else None

    numbers = itertools.count()
    note = wait_until(retried)
    assert note is not None
    assert (note["worker"], note["outcome"]) == (note["pick"][1], "ok")
    assert "secret" not in json.dumps(note)
