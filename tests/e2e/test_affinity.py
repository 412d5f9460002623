"""Sessions and prefixes through the whole product: who goes back where, who moves, and that the response says so."""

import contextlib
import time
from typing import Any

import httpx
import pytest
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

QWEN = "Qwen/Qwen2.5-7B-Instruct"
PHI = "microsoft/Phi-3-mini-4k-instruct"
CONFIG = """
agents:
  - {agent_id: chat-web, model_family: qwen, priority: 10}
  - {agent_id: reader, model_family: qwen, affinity: prefix}
  - {agent_id: free, model_family: qwen, affinity: none}
probes: {enabled: false}
# A busy machine must neither silence a worker nor let Envoy go on without a decision.
liveness: {min_silence_ms: 10000}
extproc: {message_timeout_ms: 5000}
"""
AFFINITY = "x-recursant-affinity"
# Sessions are told to the others, and kept, a twentieth of a second later.
TOLD_S = 0.5


@pytest.fixture
def stack(make_stack: MakeStack) -> Stack:
    """Four equal workers behind two extproc processes."""
    return make_stack(workers=4, config=CONFIG, args=["--extproc-processes", "2", "--worker-models", QWEN])


def ask(stack: Stack, session: str | None = None, agent: str | None = "chat-web", **more: Any) -> httpx.Response:
    headers = {} if session is None else {"x-session-id": session}
    answer = stack.chat(agent=agent, headers=headers, **more)
    assert answer.status_code == 200, answer.text
    return answer


def went(answer: httpx.Response) -> tuple[str, str | None]:
    """The worker, and what became of affinity."""
    return answer.headers["x-recursant-worker"], answer.headers.get(AFFINITY)


def known(stack: Stack) -> list[float]:
    """How many sessions each process knows."""
    return [stack.service_metrics(name).value("recursant_sessions") for name in stack.extproc_names]


def begin(stack: Stack, session: str) -> str:
    """A first request; its worker, when every process knows it."""
    before = max(known(stack))
    worker, said = went(ask(stack, session))
    assert said is None
    wait_until(lambda: all(count > before for count in known(stack)), what="every process knows the session")
    return worker


def test_a_session_stays_whichever_process_decides_and_without_one_nothing_changes(stack: Stack) -> None:
    worker = begin(stack, "one")
    # A client of its own for each: the connection decides which process is asked.
    answers = [went(ask(stack, "one")) for _ in range(12)]
    assert answers == [(worker, "kept")] * 12

    plain = [went(ask(stack)) for _ in range(24)]
    assert {said for _, said in plain} == {None}
    assert len({worker for worker, _ in plain}) > 1
    free = [went(ask(stack, "one", agent="free")) for _ in range(24)]
    assert {said for _, said in free} == {None}
    assert len({worker for worker, _ in free}) > 1
    # Whoever names no agent has sessions, too.
    first, _ = went(ask(stack, "two", agent=None, model=QWEN))
    time.sleep(TOLD_S)
    assert {went(ask(stack, "two", agent=None, model=QWEN)) for _ in range(6)} == {(first, "kept")}

    metrics = [stack.service_metrics(name) for name in stack.extproc_names]
    counted = sum(each.value("recursant_affinity_total", outcome="kept", agent="chat-web") for each in metrics)
    assert counted == 12
    # Redis knows it by a hash, not by its name.
    assert all(each.value("recursant_sessions_unshared_total") == 0 for each in metrics)


def test_the_beginning_of_a_prompt_leads_back(stack: Stack) -> None:
    document = "All happy families are alike. " * 200

    def read(question: str) -> tuple[str, str | None]:
        messages = [{"role": "system", "content": document}, {"role": "user", "content": question}]
        return went(ask(stack, agent="reader", messages=messages))

    seen: list[tuple[str, str | None]] = []

    def both_have_read() -> bool:
        seen.append(read(f"question {len(seen)}"))
        return all(stack.service_metrics(name).value("recursant_prefix_blocks") > 0 for name in stack.extproc_names)

    # Both processes learn for themselves, and Envoy draws which one it asks.
    wait_until(both_have_read, what="both processes have read the document")
    again = [read(f"another {number}") for number in range(8)]
    assert [said for _, said in again] == ["kept"] * 8
    assert {worker for worker, _ in again} <= {worker for worker, _ in seen}


def test_a_killed_worker_is_left_and_the_session_stays_with_the_next(stack: Stack) -> None:
    worker = begin(stack, "one")
    stack.kill(worker)
    other, said = went(ask(stack, "one"))
    assert other != worker
    assert said in ("moved:retry", "moved:missing", "moved:gone", "moved:isolated", "moved:warming")
    time.sleep(TOLD_S)
    assert {went(ask(stack, "one")) for _ in range(6)} == {(other, "kept")}


def test_a_restart_of_extproc_keeps_sessions(stack: Stack) -> None:
    homes = {f"session {number}": begin(stack, f"session {number}") for number in range(4)}
    time.sleep(TOLD_S)
    pids = {name: stack.kill(name) for name in stack.extproc_names}
    for name, pid in pids.items():
        stack.wait_restarted(name, pid)
    wait_until(lambda: all(count == 4 for count in known(stack)), what="the sessions are read again")
    # Requests go to both processes, and Envoy has left both out for a moment.
    wait_until(
        lambda: all("x-recursant-worker" in ask(stack).headers for _ in range(10)), what="both processes decide again"
    )
    for session, worker in homes.items():
        assert went(ask(stack, session)) == (worker, "kept")


def test_a_draining_worker_hands_its_sessions_on(stack: Stack) -> None:
    worker, other = begin(stack, "one"), begin(stack, "two")
    url = f"{stack.endpoints.api}/v1/workers/{worker}/drain"
    draining = httpx.post(url, json={"reason": "test"}, timeout=30, trust_env=False)
    assert draining.status_code < 300, draining.text
    for name in stack.extproc_names:
        wait_until(lambda name=name: stack.service_metrics(name).value("recursant_workers", state="draining") == 1)  # type: ignore[misc]
    there, said = went(ask(stack, "one"))
    assert (there != worker, said) == (True, "moved:draining")
    if other != worker:
        assert went(ask(stack, "two")) == (other, "kept")


@pytest.fixture
def small(make_stack: MakeStack) -> Stack:
    """Two workers that run two requests at once."""
    stack = make_stack(workers=1, config=CONFIG, args=["--worker-models", PHI])
    for name in ("small-1", "small-2"):
        stack.start_sim("--worker-id", name, "--model", QWEN, "--max-num-seqs", "2")
    for name in ("small-1", "small-2"):
        stack.wait_worker(name)
    wait_until(lambda: stack.chat(agent="chat-web", max_tokens=1).status_code == 200)
    return stack


def test_a_full_worker_is_left_and_the_response_says_so(small: Stack) -> None:
    worker = begin(small, "one")
    with contextlib.ExitStack() as running:
        moved = []
        for _ in range(4):
            # Long answers: both workers are full in the end.
            answer = running.enter_context(small.stream(headers={"x-session-id": "one"}, max_tokens=2_000))
            assert answer.status_code == 200
            moved.append(went(answer))
        workers = [each for each, _ in moved]
        assert workers.count("small-1") == workers.count("small-2") == 2
        said = {outcome for each, outcome in moved if each != worker} | {None}
        assert any(outcome in ("moved:busy", "moved:slots") for outcome in said)
    metrics = small.service_metrics("extproc").by("recursant_affinity_total", "outcome")
    assert sum(count for outcome, count in metrics.items() if outcome.startswith("moved:")) >= 1
