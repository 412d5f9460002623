"""Draining, sleeping, adapters, and the death of an engine, as vLLM really does them."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fleet_rig import Fleet
from harness.programs import Program, recursant
from load import Load
from vllm_rig import ADAPTER_DIR, MODEL, VllmServer, completion, say, wait_until

# A worker that was taken out for errors comes back by itself.
BACK_S = 150.0
ADAPTER = "qwen-adapter"
# On a machine that stands still an answer may be whole before its engine is killed.
ATTEMPTS = 3


@pytest.fixture(scope="module")
def spare(shared_fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """One more worker, which these tests may break."""
    env = {"RECURSANT_REDIS_URL": shared_fleet.stack.endpoints.redis, "RECURSANT_WORKER_ID": "spare"}
    server = VllmServer(
        tmp_path_factory.mktemp("spare"), "spare", "--num-gpu-blocks-override", "256", "--max-num-seqs", "4", env=env
    )
    try:
        server.start().wait_ready()
        shared_fleet.stack.wait_worker("spare", timeout=BACK_S)
        yield server
    finally:
        server.close()


def answers_by(fleet: Fleet, count: int) -> set[str]:
    """Who answers so many requests for what all serve; all of them must be answered."""
    found = set()
    for number in range(count):
        answer = fleet.ask("/v1/completions", completion(f"Request {number}", max_tokens=4))
        assert answer.status_code == 200, answer.text
        found.add(answer.headers["x-recursant-worker"])
    return found


def seen_meanwhile(fleet: Fleet, model: str, count: int = 50) -> list[tuple[int, str]]:
    """Status and error of so many requests, or of fewer, where the fleet has noticed that `spare` is dead."""
    seen = []
    for number in range(count):
        if number and not ready(fleet, "spare"):
            break
        answer = fleet.ask("/v1/completions", {**completion(f"Request {number}", max_tokens=4), "model": model})
        seen.append((answer.status_code, "" if answer.is_success else answer.json()["error"]["message"]))
    return seen


def ready(fleet: Fleet, worker_id: str) -> bool:
    return any(each["id"] == worker_id and each["status"] == "ready" for each in fleet.stack.workers())


def test_a_drained_worker_ends_what_it_has_and_gets_nothing_new(fleet: Fleet, spare: VllmServer) -> None:
    api = fleet.stack.endpoints.api
    here = spare.load()
    drain = ("workers", "drain", "spare", "--api", api, "--timeout", "60s")
    with Load(fleet.stack.endpoints.gateway) as load, ThreadPoolExecutor() as pool:
        with spare.stopped() as engine:
            call = load.start("long", {**completion(max_tokens=1_500), "model": spare.model}, {"x-agent-id": "any"})
            wait_until(lambda: spare.load() > here, what="the request has come")
            engine.run_until(lambda: spare.metrics().value("vllm:num_requests_running") == 1, what="the request runs")
            draining = pool.submit(recursant, *drain, timeout=90)
            wait_until(lambda: not ready(fleet, "spare"), what="it is drained")
            assert not draining.done()
        drained = draining.result()
        assert drained.exit_code == 0, drained.out + drained.err
        # The command waited for it.
        assert spare.metrics().value("vllm:num_requests_running") == 0
        load.wait()
    assert (call.status, call.error, call.tokens) == (200, "", 1_500)
    assert "spare" not in answers_by(fleet, 12)
    # vLLM itself would go on as ever: nothing but the routing knows.
    assert spare.client.get("/health").status_code == 200
    resumed = recursant("workers", "resume", "spare", "--api", api)
    assert resumed.exit_code == 0, resumed.err
    fleet.stack.wait_worker("spare")


def killed_within_a_stream(fleet: Fleet, spare: VllmServer) -> bool:
    """Kill the engine while a client has part of an answer. False where the answer was whole before."""
    with Load(fleet.stack.endpoints.gateway) as load:
        pid = spare.engine_pid()
        # Held, so that it has not ended before.
        with spare.stopped() as engine:
            call = load.start("cut", {**completion(max_tokens=1_900), "model": spare.model}, {"x-agent-id": "any"})
            engine.run_until(lambda: call.first > 0, what="the stream has begun")
            os.kill(pid, signal.SIGKILL)
        load.wait()
    # A client that has part of an answer hears that it is over.
    assert bool(call.error) is (call.tokens < 1_900), call
    return bool(call.error)


def test_a_killed_engine_costs_only_what_it_had(fleet: Fleet, spare: VllmServer) -> None:
    for _ in range(ATTEMPTS):
        if killed_within_a_stream(fleet, spare):
            break
        # Whoever looks may stand still for two seconds, while the engine does not.
        spare.kill()
        spare.start().wait_ready()
        fleet.stack.wait_worker("spare", timeout=BACK_S)
    else:
        pytest.fail("each answer was whole before its engine was killed")
    # Until the fleet has noticed, requests may still go there. Clients do not see it: another worker takes them.
    served = seen_meanwhile(fleet, MODEL)
    assert {status for status, _ in served} <= {200}, served
    # Where there is no other worker, they see what vLLM said, or that nobody is there, or has ever been.
    alone = seen_meanwhile(fleet, spare.model, count=1)
    assert {status for status, _ in alone} <= {500, 503, 404}, alone
    say(f"until the fleet had noticed: {len(served)} requests, all served; for this worker alone: {alone}")
    wait_until(lambda: not ready(fleet, "spare"), what="the fleet has noticed")
    assert "spare" not in answers_by(fleet, 12)
    # Most often it has ended with its engine by now. It was seen to wait for tasks of its own without end, too.
    spare.kill()
    spare.start().wait_ready()
    fleet.stack.wait_worker("spare", timeout=BACK_S)
    answer = fleet.ask("/v1/completions", {**completion(), "model": spare.model})
    assert (answer.status_code, answer.headers["x-recursant-worker"]) == (200, "spare")


def test_a_sleeping_worker_gets_no_requests(fleet: Fleet) -> None:
    server = fleet.priority
    server.client.post("/sleep", params={"level": 1}).raise_for_status()
    try:
        # It still looks healthy, and would let requests hang.
        assert server.client.get("/health").status_code == 200
        wait_until(lambda: fleet.worker(server)["status"] != "ready", what="the fleet has noticed")
        assert "priority" not in answers_by(fleet, 12)
    finally:
        server.client.post("/wake_up").raise_for_status()
    fleet.stack.wait_worker("priority")
    answer = fleet.ask("/v1/completions", {**completion(), "model": server.model})
    assert answer.status_code == 200


def test_a_paused_worker_gets_no_requests(fleet: Fleet) -> None:
    server = fleet.priority
    # What runs would be kept, and go on later.
    server.client.post("/pause", params={"mode": "keep"}).raise_for_status()
    try:
        assert server.client.get("/health").status_code == 200
        wait_until(lambda: fleet.worker(server)["status"] != "ready", what="the fleet has noticed")
        assert "priority" not in answers_by(fleet, 12)
    finally:
        server.client.post("/resume").raise_for_status()
    fleet.stack.wait_worker("priority")
    answer = fleet.ask("/v1/completions", {**completion(), "model": server.model})
    assert answer.status_code == 200


def test_a_loaded_adapter_is_a_model_of_the_fleet(fleet: Fleet) -> None:
    server = fleet.lora
    load = server.client.post("/v1/load_lora_adapter", json={"lora_name": ADAPTER, "lora_path": str(ADAPTER_DIR)})
    assert load.status_code == 200, load.text
    try:
        wait_until(lambda: ADAPTER in fleet.report(server).get("lora_adapters", ()), 60, what="the adapter is known")
        body = completion("Every request counts", max_tokens=12)
        answer = fleet.ask("/v1/completions", {**body, "model": ADAPTER})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == ADAPTER
        # The adapter really works on the answer.
        assert answer.json()["choices"][0]["text"] != fleet.ask("/v1/completions", body).json()["choices"][0]["text"]
    finally:
        server.client.post("/v1/unload_lora_adapter", json={"lora_name": ADAPTER}).raise_for_status()


def test_a_sidecar_brings_a_running_vllm_into_a_fleet(fleet: Fleet) -> None:
    """The vLLM knows nothing of it, and is scraped as another worker of the same fleet at the same time."""
    server = fleet.lora
    sidecar = Program(
        fleet.stack.directory,
        "sidecar",
        [
            *("worker", "sidecar", "--url", server.url, "--redis-url", fleet.stack.endpoints.redis),
            *("--worker-id", "beside", "--max-num-seqs", "8"),
        ],
    )
    try:
        fleet.stack.wait_worker("beside", timeout=60)
        report = next(each for each in fleet.stack.workers() if each["id"] == "beside")
        assert MODEL in {model["name"] for model in report["models"]}
        assert report["load"]["kv_cache_usage"] is not None
    finally:
        sidecar.end()
    wait_until(lambda: not ready(fleet, "beside"), what="it has said farewell")
