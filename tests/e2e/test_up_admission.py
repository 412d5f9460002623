"""Admission through the whole product: who waits, who overtakes, who is shed, and that everybody hears of it."""

import asyncio
import json
from typing import Any, Self

import httpx
import pytest
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

CHAT = "/v1/chat/completions"
QWEN = "Qwen/Qwen2.5-7B-Instruct"
PHI = "microsoft/Phi-3-mini-4k-instruct"

CONFIG = """
routing: {timeout_ms: 60000}
agents:
  - {agent_id: lookup, model_family: qwen, class: high}
  - {agent_id: report, model_family: qwen, class: low}
  - {agent_id: hurry, model_family: qwen, class: low, timeout_ms: 600}
  - {agent_id: drop, model_family: qwen, class: low, fallback_strategy: drop}
  - {agent_id: degrade, model_family: qwen, class: low, fallback_strategy: degrade_to_phi}
  - agent_id: patient
    model_family: qwen
    fallback_strategy: queue_and_retry
    retry_max: 100
    retry_delay_ms: 300
  - {agent_id: live, model_family: qwen, priority: 5, allow_real_time: true}
  - {agent_id: batch, model_family: qwen, batch_window_ms: 300}
"""


@pytest.fixture
def small(make_stack: MakeStack) -> Stack:
    """One worker for phi, and one for qwen that runs four requests at once."""
    stack = make_stack(workers=1, config=CONFIG, args=["--worker-models", PHI])
    stack.start_sim("--worker-id", "small", "--model", QWEN, "--max-num-seqs", "4", "--scheduling-policy", "priority")
    ready(stack, "small")
    return stack


def ready(stack: Stack, worker: str) -> None:
    wait_until(lambda: any(w["id"] == worker and w["status"] == "ready" for w in stack.workers()))
    # Envoy knows it, too.
    wait_until(lambda: stack.chat(agent="lookup", max_tokens=1).status_code == 200)


def sim(stack: Stack, worker: str, path: str) -> Any:
    """GET a path of the simulator's own."""
    endpoint = next(each["endpoint"] for each in stack.workers() if each["id"] == worker)
    return httpx.get(f"http://{endpoint}/sim/{path}", trust_env=False).json()


def held(stack: Stack) -> dict[str, float]:
    return stack.service_metrics("extproc").by("recursant_queue_depth", "class")


def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


class Reports:
    """Long requests of the low class, running in the background."""

    def __init__(self, stack: Stack, client: httpx.AsyncClient) -> None:
        self._stack = stack
        self._client = client
        self.tasks: list[asyncio.Task[httpx.Response]] = []

    def start(self, count: int, *, agent: str = "report", tokens: int = 400, **fields: Any) -> None:
        for number in range(count):
            body = self._stack.chat_body(f"report {number}", max_tokens=tokens, ignore_eos=True, **fields)
            post = self._client.post(CHAT, json=body, headers={"x-agent-id": agent})
            self.tasks.append(asyncio.create_task(post))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def finished(self) -> list[httpx.Response]:
        return await asyncio.gather(*self.tasks)


async def until(condition: Any) -> None:
    await asyncio.to_thread(wait_until, condition)


async def test_lookups_pass_reports_that_wait(small: Stack) -> None:
    async with small.async_client() as client, Reports(small, client) as reports:
        reports.start(8)
        # Low may fill 0.7 of the four slots: two run, six wait here and not in the engine's queue.
        await until(lambda: held(small)["low"] == 6)
        assert sim(small, "small", "state")["in_flight"] == 2
        for number in range(10):
            body = small.chat_body(f"lookup {number}", max_tokens=4)
            answer = await client.post(CHAT, json=body, headers={"x-agent-id": "lookup"})
            assert answer.status_code == 200
        assert not any(task.done() for task in reports.tasks[2:])
        answers = await reports.finished()
    assert {answer.status_code for answer in answers} == {200}
    assert not any("x-recursant-fallback" in answer.headers for answer in answers)
    wait_until(lambda: small.inflight() == 0)
    assert held(small) == {"low": 0, "normal": 0, "high": 0, "critical": 0}


async def test_whoever_cannot_wait_is_told_at_once(small: Stack) -> None:
    async with small.async_client() as client, Reports(small, client) as reports:
        reports.start(3, tokens=800)
        await until(lambda: held(small)["low"] == 1)

        async def ask(agent: str, **fields: Any) -> httpx.Response:
            return await client.post(CHAT, json=small.chat_body("x", **fields), headers={"x-agent-id": agent})

        dropped = await ask("drop")
        assert error(dropped) == (429, "dropped")
        assert dropped.headers["retry-after"]
        late = await ask("hurry")
        assert error(late) == (504, "deadline_exceeded")
        for model in ("auto", QWEN):
            other = await ask("degrade", model=model)
            assert (other.status_code, other.json()["model"]) == (200, PHI)
            assert other.headers["x-recursant-fallback"] == "degrade_to_phi"
        assert small.service_metrics("extproc").value("recursant_fallbacks_total", strategy="degrade_to_phi") == 2
        await reports.finished()


async def test_a_held_client_that_leaves_gives_its_place_up(small: Stack) -> None:
    async with small.async_client() as client, Reports(small, client) as reports:
        reports.start(6)
        await until(lambda: held(small)["low"] == 4)
        for task in reports.tasks:
            task.cancel()
        await asyncio.gather(*reports.tasks, return_exceptions=True)
    wait_until(lambda: held(small)["low"] == 0 and small.inflight() == 0)
    wait_until(lambda: sim(small, "small", "state")["in_flight"] == 0)
    assert small.chat(agent="report").status_code == 200


def test_whoever_queues_is_served_by_the_worker_that_comes_back(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=CONFIG, args=["--worker-models", QWEN])
    victim = next(iter(stack.worker_pids))
    stack.kill(victim)
    # What extproc knows counts here, not what the API knows.
    wait_until(lambda: stack.service_metrics("extproc").value("recursant_workers", state="missing") == 1)
    answer = stack.chat(agent="patient")
    assert (answer.status_code, answer.headers["x-recursant-fallback"]) == (200, "queue_and_retry")


def test_past_the_water_mark_a_request_is_refused_with_what_would_fit(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=CONFIG, args=["--worker-models", PHI])
    stack.start_sim("--worker-id", "tight", "--model", QWEN, "--kv-blocks", "200", "--max-model-len", "3000")
    ready(stack, "tight")
    with stack.stream("x" * 6_000, agent="lookup", max_tokens=400, ignore_eos=True) as running:
        lines = running.iter_lines()
        next(lines)
        tight = next(worker for worker in stack.workers() if worker["id"] == "tight")
        assert tight["status"] == "ready"
        refused = wait_until(
            lambda: answer if (answer := stack.chat("y" * 8_000, agent="lookup")).status_code == 429 else None
        )
        assert error(refused) == (429, "kv_memory")
        assert "would fit" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"]
        assert stack.chat("short", agent="lookup", max_tokens=4).status_code == 200
    wait_until(lambda: stack.chat("y" * 8_000, agent="lookup").status_code == 200)


def test_the_class_reaches_the_worker_and_its_scheduler(small: Stack) -> None:
    def at_worker(request_id: str, agent: str, headers: dict[str, str]) -> tuple[str, int]:
        answer = small.chat(agent=agent, headers={"x-request-id": request_id, **headers}, max_tokens=200)
        assert answer.status_code == 200
        requests = sim(small, "small", "state/requests")["requests"]
        seen = next(request for request in requests if request["id"] == request_id)
        return dict(seen["headers"])["x-recursant-class"], seen["priority"]

    critical = at_worker("class-1", "live", {"x-real-time": "true"})
    normal = at_worker("class-2", "live", {})
    not_allowed = at_worker("class-3", "report", {"x-real-time": "true"})
    assert [critical[0], normal[0], not_allowed[0]] == ["critical", "normal", "low"]
    # vLLM: smaller = sooner.
    assert critical[1] < normal[1] < not_allowed[1]


async def test_a_batch_window_gathers(make_stack: MakeStack) -> None:
    stack = make_stack(workers=4, config=CONFIG, args=["--worker-models", QWEN])
    async with stack.async_client() as client:
        headers = {"x-agent-id": "batch"}
        answers = await asyncio.gather(
            *(client.post(CHAT, json=stack.chat_body(f"b {n}"), headers=headers) for n in range(6))
        )
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-recursant-worker"] for answer in answers}) == 1
    assert json.loads(answers[0].text)["model"] == QWEN
