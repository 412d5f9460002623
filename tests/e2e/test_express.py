"""The express lane through the real Envoy: who keeps off it, who finds it free, and what is said of it."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from harness.programs import recursant
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

CHAT = "/v1/chat/completions"
QWEN = "Qwen/Qwen2.5-7B-Instruct"
PHI = "microsoft/Phi-3-mini-4k-instruct"
WORKERS = ("q0", "q1", "q2", "q3")
# Four bytes a token in the simulated worker: three steps of 2,048.
PROMPT_TOKENS = 6_000
# Of two processes each may send one to each of three workers before it hears of the other's.
REPORTS = 8
# Long, so that no test sees two of them: who is the lane is known beforehand.
TURNS_S = (500, 600)
CONFIG = """
routing: {{timeout_ms: 120000, weights: {{profile: adaptive}}}}
agents:
  - {{agent_id: chat, model_family: qwen, class: high}}
  - {{agent_id: report, model_family: qwen, class: low}}
admission: {{express: {{turn_ms: {turn_ms}, clear_ms: 0}}}}
decisions: {{sample: 1}}
probes: {{enabled: false}}
# A busy machine must neither silence a worker nor let Envoy go on without a decision.
liveness: {{min_silence_ms: 20000}}
extproc: {{message_timeout_ms: 5000}}
"""


def turn_s() -> int:
    """A length of turns of which one has just begun, or is far from its end."""
    return max(TURNS_S, key=lambda length: length - time.time() % length)


@pytest.fixture(params=[1, 2], ids=["one process", "two processes"])
def fleet(make_stack: MakeStack, request: pytest.FixtureRequest) -> tuple[Stack, str]:
    """Four workers that read slowly, and the one that is the lane."""
    length = turn_s()
    config = CONFIG.format(turn_ms=length * 1_000)
    stack = make_stack(
        workers=1, config=config, args=["--worker-models", PHI, "--extproc-processes", str(request.param)]
    )
    for worker_id in WORKERS:
        # A step of 2,048 tokens takes some 0.17 s of this device: here five times as long.
        engine = ("--profile", "a100-llama-3-8b", "--speed", "0.2", "--scheduling-policy", "priority")
        stack.start_sim("--worker-id", worker_id, "--model", QWEN, *engine)
    for worker_id in WORKERS:
        stack.wait_worker(worker_id)
    wait_until(lambda: stack.chat(agent="chat", max_tokens=1).status_code == 200)
    return stack, WORKERS[int(time.time() // length) % len(WORKERS)]


def held(stack: Stack) -> float:
    """Requests that wait, in all processes."""
    return sum(stack.service_metrics(name).value("recursant_queue_depth") for name in stack.extproc_names)


def told(stack: Stack, *arguments: str) -> str:
    done = recursant(*arguments, "--run-dir", str(stack.run_dir))
    assert done.exit_code == 0, done.err
    return done.out


async def reports_and_chats(stack: Stack) -> tuple[list[httpx.Response], list[httpx.Response], dict[str, Any], str]:
    """The answers to reports that come at once, and to chats while they are read; what `explain` says meanwhile."""
    async with stack.async_client() as client:

        async def ask(agent: str, content: str) -> httpx.Response:
            body = Stack.chat_body(content, max_tokens=1)
            return await client.post(CHAT, json=body, headers={"x-agent-id": agent})

        # Urgent ones have just come to every process, or nobody needs a lane.
        await asyncio.gather(*(ask("chat", "Hello") for _ in range(16)))
        reports = [asyncio.create_task(ask("report", f"{number:04d}" * PROMPT_TOKENS)) for number in range(REPORTS)]
        await asyncio.to_thread(wait_until, lambda: held(stack) >= 2)
        question = ("explain", "--agent", "report", "--tokens", str(PROMPT_TOKENS))
        chats = [await ask("chat", "Hello") for _ in range(3)]
        explained = json.loads(await asyncio.to_thread(told, stack, *question, "-o", "json"))
        table = await asyncio.to_thread(told, stack, *question)
        return [await report for report in reports], chats, explained, table


def test_long_prompts_keep_off_the_lane_and_urgent_requests_find_it_free(fleet: tuple[Stack, str]) -> None:
    stack, lane = fleet
    reports, chats, explained, table = asyncio.run(reports_and_chats(stack))

    # The others read them, one after the other.
    assert [answer.status_code for answer in reports] == [200] * REPORTS
    assert {answer.headers["x-recursant-worker"] for answer in reports} == {*WORKERS} - {lane}
    # Whoever came meanwhile had nobody's long prompt before it.
    assert [answer.status_code for answer in chats] == [200] * 3
    assert {answer.headers["x-recursant-worker"] for answer in chats} == {lane}

    apart = next(each for each in explained["workers"] if each["worker_id"] == lane)
    check = next(each for each in apart["checks"] if each["filter"] == "express")
    assert (apart["removed_by"], check["passed"], check["limit"]) == ("express", False, 0)
    assert "removed by express" in table
    # A report that was held says so in the log of decisions.
    notes = [json.loads(line) for line in told(stack, "decisions", "-o", "json", "--limit", "100").splitlines()]
    assert any(lane in note["removed"].get("express", {}).get("workers", ()) for note in notes if note["held_ms"])
