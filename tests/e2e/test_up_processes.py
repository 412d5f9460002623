"""Several extproc processes: they share the requests, count together, and one of them may die."""

import asyncio
import statistics
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from harness.programs import recursant
from harness.stack import MakeStack, Stack

from recursant.names import AGENT_ID, SERVED_BY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PROCESSES = ("extproc-1", "extproc-2")
ARGS = ("--extproc-processes", "2", "--worker-models", "Qwen/Qwen2.5-7B-Instruct")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two processes over eight equal workers; tests that break nothing share it."""
    stack = Stack(tmp_path_factory.mktemp("processes"), workers=8, args=ARGS)
    try:
        yield stack.start()
    finally:
        stack.close()


async def burst(stack: Stack, requests: int, **fields: object) -> list[httpx.Response]:
    """So many requests at once, their answers read to the end."""
    body = Stack.chat_body(**fields)  # type: ignore[arg-type]
    async with stack.async_client() as client:
        posts = [
            client.post("/v1/chat/completions", json=body, headers={AGENT_ID: "chat-web"}) for _ in range(requests)
        ]
        return list(await asyncio.gather(*posts))


def served(stack: Stack) -> dict[str, float]:
    """Requests by process, as the control API shows them."""
    return stack.metrics().by("recursant_requests_total", "process")


def test_every_process_is_there_to_be_seen(shared: Stack) -> None:
    stack = shared
    assert set(PROCESSES) < set(stack.pids)
    assert len(stack.endpoints.extproc) == 2
    assert [name for name in stack.endpoints.metrics if name.startswith("extproc")] == list(PROCESSES)
    up = stack.metrics()
    assert [up.value("recursant_scrape_up", service="extproc", process=each) for each in "12"] == [1, 1]
    pids = [stack.pids[name] for name in PROCESSES]

    def both_follow() -> bool:
        lines = recursant("status", "--run-dir", str(stack.run_dir)).out.splitlines()
        return all(any(f"-{pid} " in line and "SYNCED" in line for line in lines) for pid in pids)

    # A process that found no xDS server at its start comes to it within seconds.
    stack.wait_until(both_follow, what="both processes follow the policies")
    assert recursant("doctor", "--run-dir", str(stack.run_dir)).exit_code == 0


def test_a_burst_is_shared_by_the_processes_and_spread_evenly_over_the_workers(shared: Stack) -> None:
    stack = shared
    before = served(stack)
    answers = asyncio.run(burst(stack, 200, max_tokens=64))
    assert {answer.status_code for answer in answers} == {200}
    by_worker = Counter(answer.headers[SERVED_BY] for answer in answers)
    assert len(by_worker) == 8
    assert max(by_worker.values()) <= 2 * statistics.mean(by_worker.values())
    after = served(stack)
    assert sum(after.values()) - sum(before.values()) == 200
    # Each took its part: Envoy gives a request to the process with the fewer of them.
    assert all(after[each] - before.get(each, 0) >= 20 for each in "12")
    stack.wait_until(lambda: stack.inflight() == 0, what="all counts are back at zero")


def test_each_process_sees_what_the_other_has_in_flight(shared: Stack) -> None:
    stack = shared
    # Two streams that go on for long: Envoy gives the second one to the process without a request.
    with stack.stream(max_tokens=8_000, ignore_eos=True) as one, stack.stream(max_tokens=8_000, ignore_eos=True) as two:
        workers = {one.headers[SERVED_BY], two.headers[SERVED_BY]}
        assert len(workers) == 2
        own = [stack.service_metrics(name).by("recursant_inflight_requests", "worker") for name in PROCESSES]
        assert sum(sum(each.values()) for each in own) == 2
        # A third goes to neither of these workers, whichever process decides.
        for _ in range(4):
            assert stack.chat(max_tokens=1).headers[SERVED_BY] not in workers
    stack.wait_until(lambda: stack.inflight() == 0, what="all counts are back at zero")


def test_the_log_and_explain_speak_for_all_processes(shared: Stack) -> None:
    stack = shared
    api = stack.endpoints.api

    def log(**parameters: str) -> dict[str, object]:
        answer = httpx.get(f"{api}/v1/decisions", params=parameters, timeout=60, trust_env=False)
        answer.raise_for_status()
        document: dict[str, object] = answer.json()
        return document

    stack.wait_settled()
    cursor = str(log()["cursor"])
    assert cursor.count(",") == 1
    # Refused decisions are always kept, by the process that refused.
    for number in range(12):
        refused = stack.chat(agent=None, model="no-such-model", headers={"x-request-id": f"refused-{number}"})
        assert refused.status_code == 404
    seen: list[str] = []

    def all_seen() -> bool:
        nonlocal cursor
        document = log(after=cursor)
        cursor = str(document["cursor"])
        decisions = document["decisions"]
        assert isinstance(decisions, list)
        seen.extend(each["request_id"] for each in decisions)
        return len(seen) >= 12

    stack.wait_until(all_seen, what="the log has the refused requests")
    assert sorted(seen) == sorted(f"refused-{number}" for number in range(12))
    newest = log(limit="5")["decisions"]
    assert isinstance(newest, list)
    assert [each["request_id"] for each in newest] == [f"refused-{number}" for number in range(7, 12)]
    explained = recursant("explain", "--agent", "chat-web", "--run-dir", str(stack.run_dir), "-o", "json")
    assert explained.exit_code == 0, explained.err


def test_a_killed_process_costs_no_request(make_stack: MakeStack) -> None:
    stack: Stack = make_stack(workers=4, args=ARGS)
    stop = asyncio.Event()

    async def client(answers: list[httpx.Response]) -> None:
        async with stack.async_client() as own:
            while not stop.is_set():
                body = Stack.chat_body(max_tokens=16)
                answers.append(await own.post("/v1/chat/completions", json=body, headers={AGENT_ID: "chat-web"}))

    async def load() -> list[httpx.Response]:
        answers: list[httpx.Response] = []
        clients = [asyncio.create_task(client(answers)) for _ in range(12)]
        await asyncio.sleep(1)
        old = stack.kill("extproc-1")
        await asyncio.to_thread(stack.wait_restarted, "extproc-1", old)
        await asyncio.sleep(3)
        stop.set()
        await asyncio.gather(*clients)
        return answers

    answers = asyncio.run(load())
    assert len(answers) > 100
    assert {answer.status_code for answer in answers} == {200}
    stack.wait_until(lambda: stack.inflight() == 0, what="all counts are back at zero")
    # The one that lived counts no more what the killed one had in flight.
    assert "is counted no more" in stack.log("extproc-2")
    # And the new one takes its part again.
    before = stack.service_metrics("extproc-1").value("recursant_requests_total")
    for _ in range(10):
        assert stack.chat(max_tokens=1).status_code == 200
    assert stack.service_metrics("extproc-1").value("recursant_requests_total") > before


def test_a_place_given_back_in_one_process_wakes_who_is_held_in_the_other(make_stack: MakeStack) -> None:
    config = "agents: [{agent_id: chat-web, model_family: qwen, timeout_ms: 60000}]"
    args = ["--extproc-processes", "2", "--worker-models", "microsoft/Phi-3-mini-4k-instruct"]
    stack: Stack = make_stack(workers=1, config=config, args=args)
    stack.start_sim("--worker-id", "only", "--model", "Qwen/Qwen2.5-7B-Instruct", "--max-num-seqs", "2")
    stack.wait_worker("only")
    stack.wait_until(lambda: stack.chat(max_tokens=1).status_code == 200, what="Envoy knows the worker")
    answers = asyncio.run(burst(stack, 24, max_tokens=32))
    assert {answer.status_code for answer in answers} == {200}
    stack.wait_until(lambda: stack.inflight() == 0, what="all counts are back at zero")
    depth = sum(stack.service_metrics(name).value("recursant_queue_depth") for name in PROCESSES)
    assert depth == 0
