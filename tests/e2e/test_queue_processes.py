"""One queue for several extproc processes: its order, its owner killed, a process that hangs. All through Envoy."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

import httpx
import pytest
from harness.stack import MakeStack, Stack

from recursant.names import AGENT_ID, SERVED_BY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PROCESSES = ("extproc-1", "extproc-2")
# Another family, so that nobody but the worker of each test serves ours.
ARGS = ("--extproc-processes", "2", "--worker-models", "microsoft/Phi-3-mini-4k-instruct")
CONFIG = """
admission: {ageing_ms: 600000}
agents:
  - {agent_id: low, model_family: qwen, class: low, timeout_ms: 90000}
  - {agent_id: one, model_family: qwen, class: normal, timeout_ms: 90000}
  - {agent_id: two, model_family: qwen, class: normal, timeout_ms: 90000}
  - {agent_id: critical, model_family: qwen, class: critical, timeout_ms: 90000}
"""
OWNS = "this process owns the queue"


def with_one_slot(make_stack: MakeStack) -> Stack:
    """Two processes over a worker that runs one request at a time."""
    stack: Stack = make_stack(workers=1, config=CONFIG, args=ARGS)
    stack.start_sim("--worker-id", "only", "--model", "Qwen/Qwen2.5-7B-Instruct", "--max-num-seqs", "1")
    stack.wait_worker("only", timeout=60)
    stack.wait_until(lambda: stack.chat(agent="one", max_tokens=1).status_code == 200, what="Envoy knows the worker")
    stack.wait_until(lambda: stack.inflight() == 0, what="the worker is free")
    return stack


def depth(stack: Stack, name: str) -> float:
    return stack.service_metrics(name).value("recursant_queue_depth")


def owner(stack: Stack) -> str:
    [name] = [name for name in PROCESSES if OWNS in stack.log(name)]
    return name


Post = Callable[[str], Awaitable[httpx.Response]]


async def queued_up(
    stack: Stack, agents: Sequence[str], then: Callable[[], Awaitable[None]]
) -> tuple[list[str], list[httpx.Response]]:
    """Requests that come one after another while the worker is taken; what happens `then`, and the place is free.

    Returns:
        The agents in the order of their answers, and the answers in the order of the requests.
    """
    finished: list[str] = []
    async with stack.async_client() as client:

        async def post(agent: str) -> httpx.Response:
            body = Stack.chat_body(max_tokens=4)
            answer = await client.post("/v1/chat/completions", json=body, headers={AGENT_ID: agent})
            finished.append(agent)
            return answer

        long = Stack.chat_body(max_tokens=8_000, ignore_eos=True, stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=long, headers={AGENT_ID: "critical"}) as blocker:
            assert blocker.headers[SERVED_BY] == "only"
            tasks: list[asyncio.Task[httpx.Response]] = []
            for agent in agents:
                tasks.append(asyncio.create_task(post(agent)))
                await asyncio.to_thread(
                    stack.wait_until,
                    lambda: sum(depth(stack, name) for name in PROCESSES) == len(tasks),
                    what=f"{len(tasks)} requests are held",
                )
            await then()
        answers = await asyncio.gather(*tasks)
    return finished, answers


def test_the_order_is_one_over_all_processes(make_stack: MakeStack) -> None:
    stack = with_one_slot(make_stack)
    held: list[float] = []

    async def look() -> None:
        held.extend([await asyncio.to_thread(depth, stack, name) for name in PROCESSES])

    agents = ["low", "one", "one", "one", "two", "critical", "low", "critical"]
    finished, answers = asyncio.run(queued_up(stack, agents, look))
    # Envoy gave some to each; the order does not depend on which.
    assert sum(held) == len(agents)
    assert min(held) > 0
    assert {answer.status_code for answer in answers} == {200}
    assert finished == ["critical", "critical", "one", "two", "one", "one", "low", "low"]
    stack.wait_until(lambda: stack.inflight() == 0, what="all counts are back at zero")


def test_whoever_waits_in_another_process_outlives_the_owner(make_stack: MakeStack) -> None:
    stack = with_one_slot(make_stack)
    killed = owner(stack)
    [other] = set(PROCESSES) - {killed}
    waiting: list[float] = []

    async def kill() -> None:
        waiting.append(await asyncio.to_thread(depth, stack, other))
        stack.kill(killed)
        await asyncio.to_thread(
            stack.wait_until,
            lambda: f"{int(waiting[0])} requests wait on here" in stack.log(other),
            what="it took over",
        )

    _, answers = asyncio.run(queued_up(stack, ["one"] * 6, kill))
    assert 0 < waiting[0] < 6
    # Those that the killed one held went to the worker without us, which has a queue of its own.
    assert {answer.status_code for answer in answers} == {200}
    assert sum(SERVED_BY in answer.headers for answer in answers) == waiting[0]
    stack.wait_until(lambda: stack.inflight() == 0, what="all counts are back at zero")
    assert depth(stack, other) == 0


def test_a_process_that_hangs_is_left_out_and_comes_back(make_stack: MakeStack) -> None:
    stack: Stack = make_stack(workers=2, args=("--extproc-processes", "2"))
    hung = owner(stack)
    [other] = set(PROCESSES) - {hung}

    def left_out() -> bool:
        flags = [
            line for line in stack.admin("/clusters").splitlines() if "extproc::" in line and "health_flags" in line
        ]
        return any("/failed_active_hc" in line for line in flags)

    assert stack.chat(max_tokens=1).status_code == 200
    assert not left_out()
    pid = stack.kill(hung, signal.SIGSTOP)
    stack.wait_until(left_out, what="Envoy leaves it out")
    stack.wait_until(lambda: OWNS in stack.log(other), what="the other one owns the queue")
    before = stack.service_metrics(other).value("recursant_requests_total")
    answers = [stack.chat(max_tokens=1) for _ in range(20)]
    assert {answer.status_code for answer in answers} == {200}
    # All of them were decided, by the one that moves.
    assert all(SERVED_BY in answer.headers for answer in answers)
    assert stack.service_metrics(other).value("recursant_requests_total") - before == 20
    assert stack.pids[hung] == pid
    stack.kill(hung, signal.SIGCONT)
    stack.wait_until(lambda: not left_out(), what="Envoy takes it in again")
    stack.wait_until(lambda: "another process owns the queue" in stack.log(hung), what="it sees that it hung")
    before = stack.service_metrics(hung).value("recursant_requests_total")

    def decides() -> bool:
        assert stack.chat(max_tokens=1).status_code == 200
        return stack.service_metrics(hung).value("recursant_requests_total") > before

    stack.wait_until(decides, what="it takes its part again")
    stack.wait_until(lambda: stack.inflight() == 0, what="all counts are back at zero")
