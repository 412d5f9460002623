"""Workers whose device fails while their heartbeats go on, through the real gateway (SPEC F1, F2)."""

import contextlib
import inspect
from collections.abc import Callable

import httpx
import pytest
from harness.programs import recursant
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

from recursant.sim.errors import cuda_error, out_of_memory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

CONFIG = """
agents:
  - {agent_id: chat-web, model_family: qwen, priority: 10, timeout_ms: 2000}
isolation: {oom_ms: 3000, errors_ms: 3000, probe_ms: 3000, trial_ms: 2000}
"""
PROBING = CONFIG + "probes: {interval_s: 0.5, timeout_ms: 1000}\n"
QUIET = CONFIG + "probes: {enabled: false}\n"
MODEL = ["--worker-models", "Qwen/Qwen2.5-7B-Instruct"]


def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    wait_until(condition, within_s, what=inspect.getsource(condition).strip())


def statuses(stack: Stack) -> dict[str, str]:
    return {worker["id"]: worker["status"] for worker in stack.workers()}


def send_until_isolated(stack: Stack, worker: str) -> None:
    """Send requests until `worker` is out. Nobody sees its errors: another worker answers (docs/adr/0004)."""

    def one() -> bool:
        answer = stack.chat("a request")
        assert (answer.status_code, answer.headers["x-recursant-worker"] != worker) == (200, True)
        return statuses(stack)[worker] == "isolated"

    until(one)


def test_three_cuda_errors_take_a_worker_out_though_its_heart_beats(make_stack: MakeStack) -> None:
    stack = make_stack(workers=3, config=QUIET, args=MODEL)
    victim = next(iter(stack.worker_pids))
    stack.sim_fault(victim, kind="cuda_error", count=3)
    send_until_isolated(stack, victim)
    # It reports on, and gets nothing, neither from extproc nor from an Envoy on its own.
    until(lambda: next(w for w in stack.workers() if w["id"] == victim)["last_beat_age_s"] < 1.0)
    served = {stack.chat(f"after {n}").headers["x-recursant-worker"] for n in range(12)}
    assert served == set(stack.worker_pids) - {victim}
    address = stack.worker_urls[victim].removeprefix("http://")
    until(lambda: f"fleet::{address}::health_flags::healthy" not in stack.admin("/clusters"))
    assert "health_flags::healthy" in stack.admin("/clusters")
    # What was seen is kept, for every reader.
    assert stack.metrics().value("recursant_isolations_total", reason="cuda") >= 1
    assert stack.service_metrics("extproc").value("recursant_isolated_workers") == 1
    assert cuda_error().message in stack.log("extproc")
    # A new extproc knows it from Redis.
    pid = stack.kill("extproc")
    stack.wait_restarted("extproc", pid)
    until(lambda: "x-recursant-worker" in stack.chat().headers)
    assert victim not in {stack.chat(f"again {n}").headers["x-recursant-worker"] for n in range(8)}
    assert statuses(stack)[victim] == "isolated"
    # Redis comes back empty: who knows it writes it again.
    pid = stack.kill("redis")
    stack.wait_restarted("redis", pid)
    until(lambda: stack.service_metrics("extproc").value("recursant_redis_up") == 1)
    assert victim not in {stack.chat(f"no redis {n}").headers["x-recursant-worker"] for n in range(8)}
    until(lambda: statuses(stack)[victim] == "isolated")
    # A restart makes it a new worker.
    pid = stack.kill(victim)
    stack.wait_restarted(victim, pid)
    until(lambda: statuses(stack)[victim] == "ready")


def test_a_request_that_every_worker_fails_meets_two_of_them(make_stack: MakeStack) -> None:
    stack = make_stack(workers=3, config=QUIET, args=MODEL)
    until(lambda: list(statuses(stack).values()) == ["ready"] * 3)
    for worker in stack.worker_pids:
        stack.sim_fault(worker, kind="cuda_error", count=1)
    answer = stack.chat("poison")
    # The second one's words, as it said them.
    assert (answer.status_code, answer.content) == (500, cuda_error().encoded())
    errors = {worker["id"]: stack.sim_state(worker["id"])["faults"] for worker in stack.workers()}
    met = {worker for worker, faults in errors.items() if not faults}
    assert len(met) == 2
    assert answer.headers["x-recursant-worker"] in met


def test_errors_inside_streams_count_as_the_worker_reports_them(make_stack: MakeStack) -> None:
    stack = make_stack(workers=3, config=QUIET, args=MODEL)
    victim = next(iter(stack.worker_pids))
    stack.sim_fault(victim, kind="error_in_stream", count=100, after_tokens=2)

    def broken() -> bool:
        with stack.stream("a stream") as answer:
            assert answer.status_code == 200
            list(answer.iter_lines())
        return statuses(stack)[victim] == "isolated"

    until(broken)


def test_out_of_memory_costs_a_short_time_and_a_trial(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2, config=QUIET, args=MODEL)
    victim = next(iter(stack.worker_pids))
    stack.sim_fault(victim, kind="oom", count=1)
    send_until_isolated(stack, victim)
    # Requests go elsewhere.
    answers = [stack.chat(f"elsewhere {n}") for n in range(4)]
    assert {(answer.status_code, answer.headers["x-recursant-worker"]) for answer in answers} == {
        (200, next(worker for worker in stack.worker_pids if worker != victim))
    }
    # Back without a restart, through its trial.
    pid = stack.worker_pids[victim]
    until(lambda: statuses(stack)[victim] == "ready")
    until(lambda: stack.chat("back").headers["x-recursant-worker"] == victim)
    assert stack.worker_pids[victim] == pid


def test_evidence_never_takes_out_more_than_the_share(make_stack: MakeStack) -> None:
    stack = make_stack(workers=4, config=QUIET, args=MODEL)
    for worker in stack.worker_pids:
        stack.sim_fault(worker, kind="cuda_error", count=60)
    seen: list[int] = []

    def alarmed() -> bool:
        stack.chat("poison")
        seen.append(list(statuses(stack).values()).count("isolated"))
        return stack.service_metrics("extproc").value("recursant_isolation_alarm") > 0

    until(alarmed, within_s=60.0)
    for number in range(20):
        stack.chat(f"more {number}")
        seen.append(list(statuses(stack).values()).count("isolated"))
    assert max(seen) == 2
    assert "ALARM" in stack.log("extproc")


def test_a_clients_own_mistakes_isolate_nobody(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2, config=QUIET, args=MODEL)
    for _ in range(10):
        assert stack.chat("too much", max_tokens=10_000_000).status_code == 400
    assert set(statuses(stack).values()) == {"ready"}
    assert stack.metrics().value("recursant_isolations_total") == 0


def test_requests_that_get_no_answer_take_a_worker_out(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2, config=QUIET, args=MODEL)
    victim = next(iter(stack.worker_pids))
    stack.sim_fault(victim, kind="hang")
    # Clients with a little more patience than the policy's two seconds.
    impatient = stack.new_client(timeout=2.5)

    def isolated() -> bool:
        with contextlib.suppress(httpx.TimeoutException):
            impatient.post("/v1/chat/completions", json=stack.chat_body(), headers={"x-agent-id": "chat-web"})
        return statuses(stack)[victim] == "isolated"

    until(isolated, within_s=60.0)
    assert stack.metrics().value("recursant_isolations_total", reason="no_answers") >= 1


def test_probes_find_a_worker_that_hangs_before_any_client_does(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2, config=PROBING, args=MODEL)
    victim = next(iter(stack.worker_pids))
    until(lambda: all(stack.sim_state(worker)["requests"] for worker in stack.worker_pids))
    stack.sim_fault(victim, kind="hang", duration_ms=15_000)
    # What the probes before it generated may count as work for ten seconds.
    until(lambda: statuses(stack)[victim] == "isolated", within_s=60.0)
    assert stack.metrics().value("recursant_isolations_total", reason="probe") >= 1
    assert "no answer within 1 s" in stack.log("api")
    until(lambda: stack.service_metrics("extproc").value("recursant_workers", state="isolated") == 1)
    assert stack.chat("elsewhere").headers["x-recursant-worker"] != victim
    # It works again: a probe on trial finds that, too.
    until(lambda: statuses(stack)[victim] == "ready", within_s=60.0)
    # No probe ever counts as a client's request.
    assert stack.metrics().value("recursant_requests_total") == 1


def test_operators_take_workers_out_and_let_them_back(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2, config=QUIET, args=MODEL)
    victim, other = stack.worker_pids
    at = ("--run-dir", str(stack.run_dir))
    done = recursant("workers", "isolate", victim, "--for", "5m", "--reason", "fan is loud", *at)
    assert (done.exit_code, done.out.strip()) == (0, f"{victim} is isolated for 5m")
    until(lambda: stack.service_metrics("extproc").value("recursant_isolated_workers") == 1)
    assert {stack.chat(f"request {n}").headers["x-recursant-worker"] for n in range(6)} == {other}
    assert "fan is loud" in recursant("workers", "list", *at).out
    # It outlives a restart of the worker.
    pid = stack.kill(victim)
    stack.wait_restarted(victim, pid)
    until(lambda: statuses(stack)[victim] == "isolated")
    assert recursant("workers", "release", victim, *at).exit_code == 0
    until(lambda: stack.chat("back").headers["x-recursant-worker"] == victim)
    assert recursant("workers", "release", "nobody", *at).exit_code == 1


def test_streams_and_bodies_pass_as_they_were(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=QUIET, args=MODEL)
    (worker,) = stack.worker_pids
    with stack.stream("a stream", max_tokens=40) as answer:
        lines = [line for line in answer.iter_lines() if line]
    # Token by token, to its end: nothing gathers a stream of 200.
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 20
    stack.sim_fault(worker, kind="oom", count=1)
    failed = stack.chat("it has no memory")
    assert (failed.status_code, failed.content) == (500, out_of_memory().encoded())
    assert stack.wait_until(lambda: stack.inflight() == 0)
    # The last worker is never taken out.
    assert stack.chat("still there").status_code == 200
    assert stack.service_metrics("extproc").value("recursant_isolation_alarm") == 1
