"""`recursant plan`: what it prints, and how it fails."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_kit import Done

from recursant.cli.app import run

LOAD = "agent=chat-web,rate=2,prompt=200,output=20,sla_ms=800,family=llama"
KIND = "a100-llama-3.1-8b"
SHORT = ("--seconds", "10", "--worker", KIND)


Plan = Callable[..., Done]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Runs the command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Done:
        exit_code = run(["plan", *arguments])
        out, err = capsys.readouterr()
        return Done(exit_code, out, err)

    return call


def test_it_prints_the_fleet_the_settings_and_the_assumptions(plan: Plan) -> None:
    done = plan("--load", LOAD, *SHORT)
    assert done.exit_code == 0, done.err
    assert "family llama: chat-web (first token within 800 ms)" in done.out
    assert f"→ 1 worker of {KIND}, each: vllm serve ... --max-model-len 2048 --max-num-seqs " in done.out
    assert "Assumptions:" in done.out
    assert "Checked by simulation" in done.out


@pytest.mark.parametrize("flags", [("--json",), ("-o", "json")])
def test_as_json(plan: Plan, flags: tuple[str, ...]) -> None:
    done = plan("--load", LOAD, *SHORT, *flags)
    assert done.exit_code == 0, done.err
    document = json.loads(done.out)
    [group] = document["groups"]
    assert document["devices"] == group["best"]["devices"] == 1
    assert group["best"]["kind"] == KIND
    assert group["best"]["settings"]["max_num_batched_tokens"] >= 512
    [agent] = group["best"]["agents"]
    assert agent["agent_id"] == "chat-web"
    assert agent["in_time"] >= document["goal"] == 0.99
    assert 0 < agent["p50_ms"] <= agent["p99_ms"] <= 800


def test_a_trace_and_the_targets_of_a_configuration(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "recursant.yaml").write_text(
        "agents:\n  - {agent_id: chat-web, model_family: llama, latency_sla_ms: 700, priority: 10}\n"
    )
    (tmp_path / "trace.jsonl").write_text(
        "".join(
            json.dumps({"timestamp": 500 * n, "input_length": 600, "output_length": 9, "hash_ids": [0, n + 1]}) + "\n"
            for n in range(20)
        )
    )
    done = plan("--trace", "trace.jsonl", *SHORT, "--estimate", "--json")
    assert done.exit_code == 0, done.err
    document = json.loads(done.out)
    assert document["simulated"] is False
    assert document["groups"][0]["agents"] == [{"agent_id": "chat-web", "latency_sla_ms": 700, "priority": 10}]
    assert document["groups"][0]["requests_s"] == 2.0
    assert document["groups"][0]["mean_prompt_tokens"] == 600


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--load for each agent, or --trace"),
        (("--load", LOAD, "--trace", "x"), "--load for each agent, or --trace"),
        (("--load", "agent=a"), "rate, prompt, output missing"),
        (("--load", LOAD, "--worker", "b200"), "unknown profile 'b200'"),
        (("--load", LOAD, "--worker", "h100-qwen2-7b"), "no kind of worker serves family 'llama'"),
        (("--load", LOAD, "--rate-factor", "0"), "must be above 0"),
        (("--trace", "missing.csv"), "missing.csv: No such file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(plan: Plan, arguments: tuple[str, ...], words: str) -> None:
    done = plan(*arguments)
    assert done.exit_code == 2
    assert words in done.err
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err


def test_a_load_that_no_kind_takes_ends_with_1_and_says_why(plan: Plan) -> None:
    load = "agent=chat-web,rate=2,prompt=100000,output=20,sla_ms=100,family=llama"
    done = plan("--load", load, *SHORT)
    assert done.exit_code == 1
    assert "→ none of these kinds is enough" in done.out
    assert "longer than its 131,072 tokens" in done.out
    assert "no kind of worker" in done.err
