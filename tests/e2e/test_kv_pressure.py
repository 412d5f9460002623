"""A burst that would overfill a worker's KV cache: held or refused, never left to the engine to preempt."""

import asyncio
from collections import Counter

import httpx
import pytest
from harness.metrics import Metrics
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

CHAT = "/v1/chat/completions"
QWEN = "Qwen/Qwen2.5-7B-Instruct"
PHI = "microsoft/Phi-3-mini-4k-instruct"
CONFIG = """
routing: {timeout_ms: 120000}
agents:
  - {agent_id: firm, model_family: qwen, class: high}
  - {agent_id: patient, model_family: qwen, class: high, on_memory_pressure: hold}
"""
# 2,560 tokens: four requests of 600. Three are below the water-mark.
KV_BLOCKS = 160
PROMPT_TOKENS = 400
ANSWER_TOKENS = 200
# More than twice what the cache holds, in two waves: the second comes when a beat knows of the first.
WAVE = 6
FIRST, SECOND = range(WAVE), range(WAVE, 2 * WAVE)


def body(number: int) -> dict[str, object]:
    # Four bytes a token in the simulated worker; another prompt from its first block on.
    content = f"{number:04d}" * (PROMPT_TOKENS - 20)
    return Stack.chat_body(content, max_tokens=ANSWER_TOKENS, ignore_eos=True)


@pytest.fixture(params=[1, 2], ids=["one process", "two processes"])
def tight(make_stack: MakeStack, request: pytest.FixtureRequest) -> Stack:
    """One worker for qwen, with a small KV cache."""
    arguments = ["--worker-models", PHI, "--extproc-processes", str(request.param)]
    stack = make_stack(workers=1, config=CONFIG, args=arguments)
    options = ("--worker-id", "tight", "--model", QWEN, "--kv-blocks", str(KV_BLOCKS), "--max-model-len", "2048")
    stack.start_sim(*options, "--max-num-seqs", "16")
    stack.wait_worker("tight")
    # Envoy knows it, too.
    wait_until(lambda: stack.chat(agent="firm", max_tokens=1).status_code == 200)
    return stack


def preemptions(stack: Stack) -> float:
    return Metrics(httpx.get(f"{url(stack)}/metrics", trust_env=False).text).value("vllm:num_preemptions_total")


def url(stack: Stack) -> str:
    return "http://" + next(str(each["endpoint"]) for each in stack.workers() if each["id"] == "tight")


def used(stack: Stack) -> float:
    """The share of its cache that the worker has reported."""
    return float(next(each for each in stack.workers() if each["id"] == "tight")["load"]["kv_cache_usage"] or 0)


async def two_waves(stack: Stack, agent: str) -> list[httpx.Response]:
    """The answers to two bursts, the second while the first is at work and known to be."""
    async with stack.async_client() as client:

        async def ask(number: int) -> httpx.Response:
            return await client.post(CHAT, json=body(number), headers={"x-agent-id": agent})

        asked = [asyncio.create_task(ask(number)) for number in FIRST]
        await asyncio.to_thread(wait_until, lambda: used(stack) > 0)
        asked += [asyncio.create_task(ask(number)) for number in SECOND]
        return await asyncio.gather(*asked)


async def test_whoever_may_wait_is_held(tight: Stack) -> None:
    answers = await two_waves(tight, "patient")
    assert [answer.status_code for answer in answers] == [200] * (2 * WAVE)
    assert {answer.json()["usage"]["completion_tokens"] for answer in answers} == {ANSWER_TOKENS}
    assert preemptions(tight) == 0
    wait_until(lambda: tight.inflight() == 0)


async def test_whoever_may_not_is_refused_and_told_what_would_fit(tight: Stack) -> None:
    answers = await two_waves(tight, "firm")
    counted = Counter(answer.status_code for answer in answers)
    assert set(counted) == {200, 429}
    # Some are let in while there is room, and others again when the first have ended.
    assert counted[200] >= 3
    for answer in answers:
        if answer.status_code == 429:
            error = answer.json()["error"]
            assert (error["code"], "would fit" in error["message"]) == ("kv_memory", True)
    assert preemptions(tight) == 0
    # Nothing stays reserved.
    wait_until(lambda: tight.inflight() == 0)
    assert tight.chat("y" * 4_000, agent="firm", max_tokens=800).status_code == 200


async def test_past_the_gateway_the_same_burst_makes_the_engine_preempt(tight: Stack) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=60, base_url=url(tight)) as client:
        bodies = [{**body(number), "model": QWEN} for number in (*FIRST, *SECOND)]
        answers = await asyncio.gather(*(client.post(CHAT, json=each) for each in bodies))
    assert {answer.status_code for answer in answers} == {200}
    assert preemptions(tight) > 0


async def test_clients_that_hang_up_give_back_what_was_reserved(tight: Stack) -> None:
    for _ in range(2):
        async with tight.async_client() as client:
            asked = [
                asyncio.create_task(client.post(CHAT, json=body(number), headers={"x-agent-id": "patient"}))
                for number in FIRST
            ]
            await asyncio.to_thread(wait_until, lambda: used(tight) > 0)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        wait_until(lambda: tight.inflight() == 0 and used(tight) == 0)
        # It takes what it took before, and the engine still has room for all of it.
        assert tight.chat("y" * 4_000, agent="firm", max_tokens=800).status_code == 200
    assert preemptions(tight) == 0
