"""Workers that drain, sleep and stop, through the real gateway: routing stops first, and no request is lost."""

import inspect
import signal
import threading
from collections.abc import Callable

import httpx
import pytest
from harness.programs import Program, recursant
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until
from redis_server import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

CONFIG = """
agents:
  - {agent_id: chat-web, model_family: qwen, priority: 10, timeout_ms: 20000}
probes: {enabled: false}
"""
NAME = "Qwen/Qwen2.5-7B-Instruct"
MODEL = ["--worker-models", NAME]
# What only the vLLM beside a sidecar serves: who asks for it is served there, or nowhere.
ITS_OWN = "org/Qwen-beside"


def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    wait_until(condition, within_s, what=inspect.getsource(condition).strip())


def status(stack: Stack, worker: str) -> str:
    return next((each["status"] for each in stack.workers() if each["id"] == worker), "gone")


def served(stack: Stack, times: int = 6) -> set[str]:
    """Who serves so many requests."""
    return {stack.chat(f"request {n}").headers["x-recursant-worker"] for n in range(times)}


def is_used(stack: Stack) -> bool:
    """Does the gateway send requests to the vLLM beside the sidecar?"""
    answer = stack.chat(model=ITS_OWN)
    return answer.status_code == 200 and answer.headers["x-recursant-worker"] == "gpu-7"


class LongStream:
    """A stream in a thread that has begun and stays where it is: its worker's engine stands still until `end`."""

    def __init__(self, stack: Stack, *, model: str = "auto", url: str | None = None) -> None:
        self.worker = ""
        self.lines: list[str] = []
        self._body = stack.chat_body("a long one", model=model, stream=True, max_tokens=300, ignore_eos=True)
        self._begun = threading.Event()
        self._client = stack.new_client()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._begun.wait(20)
        self._faults = f"{url or stack.worker_urls[self.worker]}/sim/faults"
        httpx.post(self._faults, json={"kind": "freeze"}, trust_env=False).raise_for_status()
        assert self.running

    def _run(self) -> None:
        with self._client.stream(
            "POST", "/v1/chat/completions", json=self._body, headers={"x-agent-id": "chat-web"}
        ) as answer:
            self.worker = answer.headers["x-recursant-worker"]
            for line in answer.iter_lines():
                self.lines.append(line)
                self._begun.set()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> bool:
        """Let it end: did it end whole?"""
        httpx.delete(self._faults, trust_env=False).raise_for_status()
        self._thread.join(60)
        return not self._thread.is_alive() and "data: [DONE]" in self.lines


def test_a_drained_worker_finishes_what_it_has_and_gets_nothing_new(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2, config=CONFIG, args=MODEL)
    stream = LongStream(stack)
    victim = stream.worker
    (other,) = set(stack.worker_pids) - {victim}
    at = ("--run-dir", str(stack.run_dir))
    draining = stack.start_program("workers", "drain", victim, "--reason", "driver update", *at)
    until(lambda: status(stack, victim) == "draining")
    until(lambda: stack.service_metrics("extproc").value("recursant_workers", state="draining") == 1)
    # Its stream goes on, everything new goes elsewhere, and whoever asks is told why.
    assert stream.running
    assert draining.process.poll() is None
    assert served(stack) == {other}
    assert "driver update" in recursant("workers", "list", *at).out
    assert stream.end()
    assert (draining.wait(60), draining.errors) == (0, "")
    said = draining.output.splitlines()
    assert said[0].startswith(f"{victim}: 1 running, 0 waiting")
    assert said[-1] == f"{victim}: nothing runs there any more: it is safe to stop"
    # A new extproc knows of it, too.
    pid = stack.kill("extproc")
    stack.wait_restarted("extproc", pid)
    until(lambda: "x-recursant-worker" in stack.chat().headers)
    assert served(stack) == {other}
    # It stops, comes back as another process, and takes requests by itself.
    pid = stack.kill(victim, signal.SIGTERM)
    stack.wait_restarted(victim, pid)
    until(lambda: status(stack, victim) == "ready")
    until(lambda: victim in served(stack, 2))


def test_a_drain_can_be_taken_back_and_does_not_wait_for_ever(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2, config=CONFIG, args=MODEL)
    stream = LongStream(stack)
    at = ("--run-dir", str(stack.run_dir))
    done = recursant("workers", "drain", stream.worker, "--timeout", "0.5s", *at)
    assert done.exit_code == 1
    assert "not done within 0.5 s: 1 running, 0 waiting, 1 of the gateway's" in done.err
    assert status(stack, stream.worker) == "draining"
    assert recursant("workers", "undrain", stream.worker, *at).exit_code == 0
    until(lambda: status(stack, stream.worker) == "ready")
    assert stream.end()
    until(lambda: stream.worker in served(stack, 2))
    assert recursant("workers", "drain", "nobody", *at).exit_code == 1


def test_a_worker_asleep_gets_nothing(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2, config=CONFIG, args=MODEL)
    sleeper, other = stack.worker_pids
    url = stack.worker_urls[sleeper]
    httpx.post(f"{url}/sleep?level=1", trust_env=False).raise_for_status()
    until(lambda: status(stack, sleeper) == "warming")
    until(lambda: stack.service_metrics("extproc").value("recursant_workers", state="warming") == 1)
    assert served(stack) == {other}
    assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
    httpx.post(f"{url}/wake_up", trust_env=False).raise_for_status()
    until(lambda: sleeper in served(stack, 2))


class Beside:
    """A simulated vLLM that reports nothing, and a sidecar beside it."""

    def __init__(self, stack: Stack, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.engine: Program = stack.start_program("sim", "--port", str(self.port), "--model", f"{NAME},{ITS_OWN}")
        self.sidecar: Program = stack.start_program(
            *("worker", "sidecar", "--url", self.url, "--run-dir", str(stack.run_dir), "--worker-id", "gpu-7"), *options
        )


def test_a_sidecar_brings_a_vllm_into_the_fleet(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=CONFIG, args=MODEL)
    beside = Beside(stack, "--capacity", "64000", "--max-num-seqs", "8", "--drain-timeout", "60")
    until(lambda: status(stack, "gpu-7") == "ready")
    until(lambda: is_used(stack))
    detail = httpx.get(f"{stack.endpoints.api}/v1/workers/gpu-7", trust_env=False).json()
    assert detail["endpoint"] == f"127.0.0.1:{beside.port}"
    assert [model["name"] for model in detail["models"]] == [NAME, ITS_OWN]
    assert (detail["report"]["capacity_tokens"], detail["report"]["max_num_seqs"]) == (64_000, 8)
    # Without a GPU nothing is said of one.
    assert "gpu_temperature_c" not in detail["report"]
    # The load is what the engine has.
    stream = LongStream(stack, model=ITS_OWN, url=beside.url)
    until(lambda: any(w["id"] == "gpu-7" and w["load"]["running_requests"] == 1 for w in stack.workers()))
    assert stream.end()
    # Asleep it gets nothing; awake it does.
    httpx.post(f"{beside.url}/sleep", trust_env=False).raise_for_status()
    until(lambda: status(stack, "gpu-7") == "warming")
    until(lambda: stack.service_metrics("extproc").value("recursant_workers", state="warming") == 1)
    assert "gpu-7" not in served(stack)
    httpx.post(f"{beside.url}/wake_up", trust_env=False).raise_for_status()
    until(lambda: is_used(stack))
    # Its engine ends hard: nothing goes there any more, and no request fails.
    beside.engine.send(signal.SIGKILL)
    until(lambda: status(stack, "gpu-7") == "warming")
    assert {stack.chat(f"after {n}").status_code for n in range(6)} == {200}


def test_a_sidecar_sees_errors_inside_streams_and_a_dead_engine(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2, config=CONFIG, args=MODEL)
    beside = Beside(stack)
    until(lambda: status(stack, "gpu-7") == "ready")
    faults = f"{beside.url}/sim/faults"
    httpx.post(faults, json={"kind": "error_in_stream", "after_tokens": 2}, trust_env=False).raise_for_status()

    def broken() -> bool:
        with stack.stream("a stream", model=ITS_OWN) as answer:
            list(answer.iter_lines())
        return status(stack, "gpu-7") == "isolated"

    until(broken, within_s=60.0)
    assert stack.metrics().value("recursant_isolations_total", reason="errors") >= 1
    # A dead engine is no readier for being isolated.
    httpx.delete(faults, trust_env=False).raise_for_status()
    httpx.post(faults, json={"kind": "unhealthy"}, trust_env=False).raise_for_status()
    until(lambda: status(stack, "gpu-7") == "warming")


def test_a_sidecar_that_is_stopped_stops_the_routing_first(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=CONFIG, args=MODEL)
    beside = Beside(stack, "--drain-timeout", "60")
    until(lambda: status(stack, "gpu-7") == "ready")
    stream = LongStream(stack, model=ITS_OWN, url=beside.url)
    assert stream.worker == "gpu-7"
    beside.sidecar.send(signal.SIGTERM)
    until(lambda: status(stack, "gpu-7") == "draining")
    until(lambda: stack.service_metrics("extproc").value("recursant_workers", state="draining") == 1)
    assert "gpu-7" not in served(stack)
    # It waits for what runs there, and then it is safe to stop the engine.
    assert beside.sidecar.process.poll() is None
    assert stream.end()
    assert beside.sidecar.wait(60) == 0
    assert "drained: it is safe to stop the engine" in beside.sidecar.errors
    until(lambda: status(stack, "gpu-7") == "gone")


def test_a_vllm_that_is_stopped_after_its_sidecar_loses_nothing(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=CONFIG, args=MODEL)
    beside = Beside(stack)
    until(lambda: is_used(stack))
    answers: list[int] = []
    stop = threading.Event()

    def load() -> None:
        client = stack.new_client()
        while not stop.is_set():
            body = stack.chat_body("under load", max_tokens=4)
            answers.append(
                client.post("/v1/chat/completions", json=body, headers={"x-agent-id": "chat-web"}).status_code
            )

    loading = [threading.Thread(target=load) for _ in range(3)]
    for thread in loading:
        thread.start()
    try:
        assert beside.sidecar.end() == 0
        # From here on this vLLM answers new requests with 500.
        httpx.post(f"{beside.url}/sim/faults", json={"kind": "drain"}, trust_env=False).raise_for_status()
        seen = len(answers)
        until(lambda: len(answers) > seen + 20)
    finally:
        stop.set()
        for thread in loading:
            thread.join(30)
    assert set(answers) == {200}
