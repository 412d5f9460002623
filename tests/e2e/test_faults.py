"""What dies, and what nobody notices. Each test has a product of its own."""

import asyncio
import contextlib
import inspect
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx
import pytest
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

CHAT = "/v1/chat/completions"
WHISPER = "openai/whisper-large-v3"
QWEN = "Qwen/Qwen2.5-7B-Instruct"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@dataclass
class Load:
    """Requests that run until told to stop, and what became of them."""

    ok: int = 0
    # The response had begun when it broke: nobody can repair that.
    broken: int = 0
    failed: list[str] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    without_extproc: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.asynccontextmanager
async def load(stack: Stack, *, clients: int = 8, agent: str = "chat-web", max_tokens: int = 24) -> AsyncIterator[Load]:
    seen = Load()

    async def client_loop(client: httpx.AsyncClient, number: int) -> None:
        turn = 0
        while not seen.stop.is_set():
            turn += 1
            body = stack.chat_body(f"client {number} turn {turn}", max_tokens=max_tokens, stream=True)
            try:
                async with client.stream(
                    "POST", "/v1/chat/completions", json=body, headers={"x-agent-id": agent}
                ) as answer:
                    if answer.status_code != 200:
                        seen.failed.append(f"{answer.status_code} {(await answer.aread())[:200]!r}")
                        continue
                    if "x-recursant-worker" in answer.headers:
                        seen.served[answer.headers["x-recursant-worker"]] += 1
                    else:
                        seen.without_extproc += 1
                    try:
                        last = [line async for line in answer.aiter_lines() if line][-1:]
                    except httpx.HTTPError:
                        seen.broken += 1
                        continue
                    if last == ["data: [DONE]"]:
                        seen.ok += 1
                    else:
                        seen.broken += 1
            except httpx.HTTPError as error:
                seen.failed.append(repr(error))

    async with stack.async_client() as client:
        loops = [asyncio.create_task(client_loop(client, number)) for number in range(clients)]
        try:
            yield seen
        finally:
            seen.stop.set()
            await asyncio.gather(*loops)


async def until(condition: Callable[[], object], *, within_s: float = 30.0) -> None:
    """Wait for a condition while the load goes on; the bound is against hanging."""
    await asyncio.to_thread(wait_until, condition, within_s, what=inspect.getsource(condition).strip())


def status_of(stack: Stack, worker: str) -> str:
    return next((found["status"] for found in stack.workers() if found["id"] == worker), "gone")


async def test_a_worker_killed_under_load_fails_no_request_that_had_not_begun(make_stack: MakeStack) -> None:
    stack = make_stack(workers=4)
    async with load(stack) as seen:
        await until(lambda: seen.ok >= 40)
        victim = max(seen.served, key=lambda worker: seen.served[worker])
        pid = stack.kill(victim)
        await until(lambda: status_of(stack, victim) in ("missing", "gone"), within_s=10)
        seen.served.clear()
        done = seen.ok
        await until(lambda: seen.ok >= done + 40 or stack.pids.get(victim) not in (None, pid))
        await asyncio.to_thread(stack.wait_restarted, victim, pid)
        await until(lambda: status_of(stack, victim) == "ready")
        seen.served.clear()
        await until(lambda: seen.served[victim] > 0)
    assert seen.failed == []
    assert stack.wait_until(lambda: stack.inflight() == 0) is True


async def test_a_killed_worker_is_out_within_its_three_beats(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2)
    victim = next(iter(stack.worker_pids))
    pid = stack.kill(victim)
    await until(lambda: status_of(stack, victim) == "missing", within_s=5)
    if stack.pids.get(victim) in (None, pid):  # while it is still away
        served = {stack.chat().headers["x-recursant-worker"] for _ in range(6)}
        assert victim not in served
    await asyncio.to_thread(stack.wait_restarted, victim, pid)
    await until(lambda: status_of(stack, victim) == "ready")


async def test_extproc_killed_streams_go_on_and_envoy_routes_by_itself(make_stack: MakeStack) -> None:
    config = """
agents:
  - {agent_id: chat-web, model_family: qwen, priority: 10}
  - {agent_id: voice, model_family: whisper}
"""
    stack = make_stack(workers=3, config=config, args=["--worker-models", "Qwen/Qwen2.5-7B-Instruct"])
    assert stack.chat(agent="voice").status_code in (404, 503)
    async with stack.async_client() as client:
        body = stack.chat_body("a long stream", max_tokens=400, ignore_eos=True, stream=True)
        async with client.stream(
            "POST", "/v1/chat/completions", json=body, headers={"x-agent-id": "chat-web"}
        ) as running:
            lines = running.aiter_lines()
            await anext(lines)
            pid = stack.kill("extproc")
            answers = [await asyncio.to_thread(stack.chat, f"without {n}") for n in range(3)]
            voice = await asyncio.to_thread(lambda: stack.chat(agent="voice"))
            rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    for answer in answers:
        assert (answer.status_code, answer.json()["model"]) == (200, "Qwen/Qwen2.5-7B-Instruct")
    assert voice.status_code == 503
    assert voice.json()["error"]["code"]
    without = sum("x-recursant-worker" not in answer.headers for answer in answers)
    assert without > 0
    await until(lambda: stack.metrics().value("recursant_extproc_fail_open_total") >= without)
    await asyncio.to_thread(stack.wait_restarted, "extproc", pid)
    await until(lambda: "x-recursant-worker" in stack.chat().headers)


async def test_extproc_killed_under_load_fails_nothing(make_stack: MakeStack) -> None:
    stack = make_stack(workers=3)
    async with load(stack) as seen:
        await until(lambda: seen.ok >= 20)
        pid = stack.kill("extproc")
        await until(lambda: seen.without_extproc > 0)
        await asyncio.to_thread(stack.wait_restarted, "extproc", pid)
        seen.served.clear()
        await until(lambda: sum(seen.served.values()) >= 20)
    assert seen.failed == []
    assert seen.broken == 0
    assert stack.wait_until(lambda: stack.inflight() == 0) is True


async def test_redis_killed_and_restarted_empty_fails_nothing(make_stack: MakeStack) -> None:
    stack = make_stack(workers=3)
    async with load(stack) as seen:
        await until(lambda: seen.ok >= 20)
        pid = stack.kill("redis")
        await asyncio.to_thread(stack.wait_restarted, "redis", pid)
        done = seen.ok
        await until(lambda: seen.ok >= done + 40)
        await until(lambda: stack.service_metrics("extproc").value("recursant_redis_up") == 1)
        await until(lambda: {found["status"] for found in stack.workers()} == {"ready"})
    assert seen.failed == []
    assert seen.broken == 0


async def test_extproc_and_redis_killed_together_fail_nothing(make_stack: MakeStack) -> None:
    """extproc comes back to a Redis that lost all: of whom it has not heard, Envoy still knows."""
    config = "agents: [{agent_id: chat-web, model_family: qwen}]"
    stack = make_stack(workers=1, config=config, args=["--worker-models", WHISPER])
    workers = {f"slow-{number}" for number in range(3)}
    for worker in workers:
        # So seldom that extproc is there before their next report.
        stack.start_sim("--worker-id", worker, "--model", QWEN, "--report-interval-ms", "1500")
    await until(lambda: all(status_of(stack, worker) == "ready" for worker in workers))
    async with load(stack) as seen:
        await until(lambda: seen.ok >= 20)
        for _ in range(2):
            redis, extproc = stack.kill("redis"), stack.kill("extproc")
            await asyncio.to_thread(stack.wait_restarted, "redis", redis)
            await asyncio.to_thread(stack.wait_restarted, "extproc", extproc)
            seen.served.clear()
            await until(lambda: set(seen.served) == workers)
    assert seen.failed == []
    assert seen.broken == 0
    assert stack.wait_until(lambda: stack.inflight() == 0) is True


async def test_a_scraped_worker_serves_while_nobody_scrapes_and_not_when_it_is_away(make_stack: MakeStack) -> None:
    """The control API hangs for longer than the three scrapes that make a worker missing."""
    fleet = make_stack(workers=1)
    [url], [victim] = fleet.worker_urls.values(), fleet.worker_pids
    worker = url.removeprefix("http://")
    stack = make_stack(workers=None, args=["--worker-urls", url])
    async with load(stack, clients=2) as seen:
        await until(lambda: seen.ok >= 5)
        stack.kill("api", signal.SIGSTOP)
        try:
            await asyncio.sleep(5.0)
            done = seen.ok
            await until(lambda: seen.ok >= done + 10)
        finally:
            stack.kill("api", signal.SIGCONT)
    assert (seen.failed, seen.broken) == ([], 0)
    pid = fleet.kill(victim, signal.SIGSTOP)
    try:
        await until(lambda: status_of(stack, worker) == "missing", within_s=20)
    finally:
        os.kill(pid, signal.SIGCONT)
    await until(lambda: status_of(stack, worker) == "ready", within_s=20)


async def test_xds_killed_changes_nothing_for_requests(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2)
    async with load(stack, clients=4) as seen:
        await until(lambda: seen.ok >= 10)
        pid = stack.kill("xds")
        await asyncio.to_thread(stack.wait_restarted, "xds", pid)
        done = seen.ok
        await until(lambda: seen.ok >= done + 20)
    assert (seen.failed, seen.broken) == ([], 0)


async def test_a_burst_spreads_evenly(make_stack: MakeStack) -> None:
    stack = make_stack(workers=8)
    async with stack.async_client() as client:
        headers = {"x-agent-id": "chat-web"}
        answers = await asyncio.gather(
            *(
                client.post("/v1/chat/completions", json=stack.chat_body(f"burst {n}"), headers=headers)
                for n in range(200)
            )
        )
    assert {answer.status_code for answer in answers} == {200}
    served = Counter(answer.headers["x-recursant-worker"] for answer in answers)
    assert len(served) == 8
    assert max(served.values()) <= 2 * 200 / 8
    assert stack.wait_until(lambda: stack.inflight() == 0) is True
    counted = stack.service_metrics("extproc").by("recursant_requests_total", "worker")
    assert sum(counted.values()) >= 200


def test_a_worker_that_joins_serves(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1)
    stack.start_sim("--worker-id", "late", "--model", WHISPER)
    stack.wait_until(lambda: status_of(stack, "late") == "ready")
    answer = stack.wait_until(
        lambda: (
            answer if (answer := stack.chat(agent=None, model="openai/whisper-large-v3")).status_code == 200 else None
        )
    )
    assert answer.headers["x-recursant-worker"] == "late"
    models = stack.wait_until(
        lambda: found if "openai/whisper-large-v3" in (found := stack.client.get("/v1/models").text) else None
    )
    assert models
