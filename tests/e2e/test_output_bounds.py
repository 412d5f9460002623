"""Bounds on the output, as clients and workers see them: the policy's own, and the one that memory leaves."""

import json
from typing import Any

import pytest
from harness.programs import recursant
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

QWEN = "Qwen/Qwen2.5-7B-Instruct"
PHI = "microsoft/Phi-3-mini-4k-instruct"
CONFIG = """
agents:
  - {agent_id: brief, model_family: qwen, max_new_tokens: 20}
  - {agent_id: free, model_family: qwen}
  - {agent_id: shape, model_family: qwen, on_memory_pressure: shape, max_new_tokens: 2000}
probes: {enabled: false}
"""


def room(stack: Stack) -> float:
    """KV tokens below the water-mark at the worker for qwen, as extproc compares them."""
    done = recursant("explain", "--agent", "shape", "-o", "json", "--run-dir", str(stack.run_dir))
    (worker,) = json.loads(done.out)["workers"]
    return next(float(check["have"]) for check in worker["checks"] if check["filter"] == "memory")


def test_no_answer_is_longer_than_the_policy_allows(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=CONFIG, args=["--worker-models", QWEN])

    def tokens(agent: str, **fields: Any) -> tuple[int, str | None]:
        answer = stack.chat("Tell me more", agent=agent, ignore_eos=True, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["completion_tokens"], answer.headers.get("x-recursant-clamped")

    assert tokens("brief", max_tokens=21) == (20, "max_tokens")
    assert tokens("brief", max_tokens=20) == (20, None)
    assert tokens("brief", max_tokens=3) == (3, None)
    assert tokens("free", max_tokens=60) == (60, None)
    # A client that sets no bound gets the policy's.
    assert tokens("brief", max_tokens=None) == (20, None)
    # A request may narrow it further; what would widen it is named, and the body's bound as well.
    narrow = {"headers": {"x-agent-max-new-tokens": "5"}}
    assert tokens("brief", max_tokens=10, **narrow) == (5, "max_tokens")
    wide = {"headers": {"x-agent-max-new-tokens": "500"}}
    assert tokens("brief", max_tokens=400, **wide) == (20, "max_new_tokens,max_tokens")
    with stack.stream("On and on", agent="brief", max_tokens=400, ignore_eos=True) as streamed:
        assert streamed.headers["x-recursant-clamped"] == "max_tokens"
        assert sum("content" in line for line in streamed.iter_lines()) <= 22

    # The same without extproc: the route carries it.
    stack.kill("extproc")
    answer = stack.chat("Tell me more", agent="brief", max_tokens=400, ignore_eos=True)
    assert answer.json()["usage"]["completion_tokens"] == 20


def test_an_answer_is_shaped_to_the_memory_that_is_left(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=CONFIG, args=["--worker-models", PHI])
    # 200 blocks of 16 tokens: the water-mark is at 2,720.
    stack.start_sim("--worker-id", "tight", "--model", QWEN, "--kv-blocks", "200", "--max-model-len", "3000")
    stack.wait_worker("tight")
    wait_until(lambda: stack.chat(agent="free", max_tokens=1).status_code == 200)
    with stack.stream("x" * 6_000, agent="free", max_tokens=1_000, ignore_eos=True) as running:
        lines = running.iter_lines()
        next(lines)
        wait_until(lambda: room(stack) < 1_300)
        # 1,500 tokens run; a prompt of 200 and the 2,000 that the policy allows do not fit beside them.
        answer = stack.chat("y" * 800, agent="shape", max_tokens=1_500, ignore_eos=True)
        assert answer.status_code == 200
        assert answer.headers["x-recursant-fallback"] == "shape"
        assert answer.headers["x-recursant-clamped"] == "max_tokens"
        assert 16 <= answer.json()["usage"]["completion_tokens"] <= 1_100
        assert stack.service_metrics("extproc").value("recursant_fallbacks_total", agent="shape", strategy="shape") >= 1
    wait_until(lambda: stack.inflight() == 0)
    # With room it is not touched.
    after = wait_until(
        lambda: (
            found
            if "x-recursant-fallback" not in (found := stack.chat("y" * 800, agent="shape", max_tokens=30)).headers
            else None
        )
    )
    assert (after.status_code, after.headers.get("x-recursant-clamped")) == (200, None)
