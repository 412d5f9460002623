"""Hang-ups, faults on command and the end of a worker, over HTTP."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from redis_server import RedisServer
from sim_kit import MODEL, PATIENCE_S, Sim, events, running

from recursant.sim.options import SimOptions
from recursant.sim.service import ListenError, SimService, serve
from recursant.store.workers import WorkerStore
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState

LONG = {"max_tokens": 10_000, "ignore_eos": True}


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with running() as started:
        yield started


async def outcome(sim: Sim, request_id: str) -> str:
    """The outcome of a recorded request, when it has one."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for record in (await sim.client.get("/sim/state/requests")).json()["requests"]:
                if record["id"] == request_id and record["outcome"] != "running":
                    return str(record["outcome"])
            await asyncio.sleep(0.01)


async def test_a_client_that_leaves_a_stream_frees_everything_at_once(sim: Sim) -> None:
    body = {"model": MODEL, "prompt": "a" * 400, "stream": True, **LONG}
    async with sim.client.stream("POST", "/v1/completions", json=body, headers={"X-Request-Id": "left"}) as response:
        async for line in response.aiter_lines():
            assert line.startswith("data: ")
            break
        assert (await sim.state())["engine"]["running"] == 1
    await sim.until("running", 0)
    assert await outcome(sim, "left") == "aborted"
    stats = sim.worker.engine.stats()
    assert (stats.aborted, stats.finished, stats.blocks_free) == (1, 0, stats.blocks_total)
    # As measured with vLLM: aborts are not counted there.
    label = f'vllm:request_success_total{{engine="0",finished_reason="abort",model_name="{MODEL}"}}'
    assert await sim.metric(label) == 0


async def test_a_client_that_leaves_before_the_answer_frees_everything_too(sim: Sim) -> None:
    request = asyncio.create_task(sim.complete("a" * 400, n=3, **LONG))
    await sim.until("running", 3)
    request.cancel()
    await asyncio.wait([request])
    await sim.until("running", 0)
    assert sim.worker.engine.stats().aborted == 3
    assert sim.worker.in_flight == 0


@pytest.mark.parametrize(("level", "state"), [(1, "weights_offloaded"), (2, "discard_all")])
async def test_asleep_it_looks_healthy_and_lets_requests_hang(sim: Sim, level: int, state: str) -> None:
    assert (await sim.client.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await sim.client.post(f"/sleep?level={level}")).status_code == 200
    request = asyncio.create_task(sim.complete())
    await sim.until("waiting", 1)
    assert (await sim.client.get("/health")).status_code == 200
    assert (await sim.client.get("/is_sleeping")).json() == {"is_sleeping": True}
    # Only the metrics tell, and the reports.
    line = 'vllm:engine_sleep_state{engine="0",model_name="tiny-qwen",sleep_state='
    assert await sim.metric(f'{line}"awake"') == 0
    assert await sim.metric(f'{line}"{state}"') == 1
    assert (await sim.state())["phase"] == "warming"
    assert not request.done()
    assert (await sim.client.post("/wake_up")).status_code == 200
    assert (await request).is_success
    assert await sim.metric(f'{line}"awake"') == 1
    assert (await sim.state())["phase"] == "ready"


async def test_sleep_as_a_fault_ends_by_itself(sim: Sim) -> None:
    await sim.fault("sleep", duration_ms=50)
    assert (await sim.state())["phase"] == "warming"
    assert (await sim.complete()).is_success
    assert (await sim.client.post("/sleep?level=3")).status_code == 400


async def test_a_client_that_leaves_while_it_waits(sim: Sim) -> None:
    await sim.fault("freeze")
    request = asyncio.create_task(sim.complete())
    await sim.until("waiting", 1)
    request.cancel()
    await asyncio.wait([request])
    await sim.until("waiting", 0)


async def test_a_client_that_leaves_during_its_upload(sim: Sim) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", sim.service.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await sim.complete()).is_success
    # Only the second one was a request.
    assert (sim.worker.in_flight, sim.worker.recorder.total) == (0, 1)
    assert await reader.read() == b""


@pytest.mark.parametrize(
    ("kind", "phrase", "counter"),
    [("oom", "CUDA out of memory", "out_of_memory"), ("cuda_error", "CUDA error", "cuda")],
)
async def test_an_engine_error_meets_as_many_requests_as_told(sim: Sim, kind: str, phrase: str, counter: str) -> None:
    await sim.fault(kind, count=2)
    for _ in range(2):
        response = await sim.complete()
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "InternalServerError"
        assert phrase in response.json()["error"]["message"]
    assert (await sim.complete()).is_success
    errors = sim.worker.state().errors
    assert getattr(errors, counter) == 2
    assert errors.cuda + errors.out_of_memory + errors.other == 2
    assert phrase in errors.last


async def test_one_requests_failure_leaves_the_others_alone(sim: Sim) -> None:
    body = {"model": MODEL, "prompt": "a", "stream": True, "max_tokens": 100, "ignore_eos": True}
    async with sim.client.stream("POST", "/v1/completions", json=body) as stream:
        await sim.fault("oom", count=1)
        assert (await sim.complete()).status_code == 500
        text = "".join([part async for part in stream.aiter_text()])
    assert text.endswith("data: [DONE]\n\n")


async def test_an_error_inside_a_stream_comes_with_status_200(sim: Sim) -> None:
    for after in (0, 3):
        await sim.fault("error_in_stream", count=1, after_tokens=after)
        response = await sim.complete(stream=True, **LONG)
        assert response.status_code == 200
        *chunks, error, end = events(response.text)
        assert (error["error"]["code"], end) == (500, "[DONE]")
        assert "EngineCore" in error["error"]["message"]
        assert (len(chunks) > 0) == (after > 0)
    await sim.fault("error_in_stream", count=1)
    assert (await sim.complete()).status_code == 500
    assert sim.worker.state().errors.other == 3
    await sim.until("running", 0)


async def test_busy_is_503(sim: Sim) -> None:
    await sim.fault("busy", count=1)
    assert (await sim.complete()).status_code == 503
    assert (await sim.complete()).is_success


async def test_a_hanging_request_is_never_answered_and_ends_with_its_client(sim: Sim) -> None:
    await sim.fault("hang", count=1)
    request = asyncio.create_task(sim.complete())
    async with asyncio.timeout(PATIENCE_S):
        while sim.worker.in_flight == 0:  # noqa: ASYNC110 - set by the server
            await asyncio.sleep(0.01)
    assert (await sim.complete()).is_success
    assert (await sim.client.get("/health")).status_code == 200
    assert not request.done()
    request.cancel()
    await asyncio.wait([request])
    async with asyncio.timeout(PATIENCE_S):
        await sim.worker.idle()


async def test_a_frozen_engine_answers_nobody_until_it_thaws(sim: Sim) -> None:
    await sim.fault("freeze")
    request = asyncio.create_task(sim.complete())
    await sim.until("waiting", 1)
    steps = sim.worker.engine.stats().steps
    assert (await sim.client.get("/health")).status_code == 200
    assert sim.worker.engine.stats().steps == steps
    await sim.client.delete("/sim/faults")
    assert (await request).is_success


async def test_slow_stretches_the_steps(sim: Sim) -> None:
    await sim.fault("slow", factor=50)
    await sim.complete(max_tokens=3)
    # Three steps of at least 1 ms, fifty times as long.
    assert sim.worker.stats.latency.total >= 0.15
    (fault,) = (await sim.client.get("/sim/faults")).json()["faults"]
    assert (fault["kind"], fault["factor"]) == ("slow", 50)


async def test_unhealthy_is_only_about_health(sim: Sim) -> None:
    await sim.fault("unhealthy")
    assert (await sim.client.get("/health")).status_code == 503
    assert (await sim.complete()).is_success
    await sim.client.delete("/sim/faults")
    assert (await sim.client.get("/health")).status_code == 200


async def test_draining_is_as_vllm_after_sigterm(sim: Sim) -> None:
    body = {"model": MODEL, "prompt": "a", "stream": True, "max_tokens": 200, "ignore_eos": True}
    async with sim.client.stream("POST", "/v1/completions", json=body) as stream:
        await sim.fault("drain")
        refused = await sim.complete()
        assert refused.status_code == 500
        assert refused.json()["error"]["message"] == "cannot schedule new futures after shutdown"
        assert (await sim.client.get("/health")).status_code == 200
        text = "".join([part async for part in stream.aiter_text()])
    assert text.endswith("data: [DONE]\n\n")
    assert sim.worker.state().phase == WorkerPhase.WORKER_PHASE_DRAINING
    assert (await sim.state())["phase"] == "draining"


async def test_a_bad_fault_is_refused(sim: Sim) -> None:
    response = await sim.client.post("/sim/faults", json={"kind": "flood"})
    assert response.status_code == 400
    assert "oom" in response.json()["error"]["message"]


async def test_a_crash_is_called_after_its_answer() -> None:
    crashed = asyncio.Event()
    service = SimService(SimOptions(port=0, profile="tiny", drain_timeout_s=0.1), on_crash=crashed.set)
    async with service, httpx.AsyncClient(base_url=service.url) as client:
        assert (await client.post("/sim/faults", json={"kind": "crash"})).status_code == 202
        async with asyncio.timeout(PATIENCE_S):
            await crashed.wait()


async def test_a_crash_ends_the_process_in_the_middle_of_its_streams(tmp_path: Path) -> None:
    script = (
        "import asyncio\n"
        "from recursant.sim.options import SimOptions\n"
        "from recursant.sim.service import SimService\n"
        "async def main():\n"
        "    async with SimService(SimOptions(port=0, profile='tiny')) as service:\n"
        "        print(service.port, flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
            body = {"prompt": "a", "stream": True, **LONG}
            async with client.stream("POST", "/v1/completions", json=body) as stream:
                assert (await client.post("/sim/faults", json={"kind": "crash"})).status_code == 202
                with pytest.raises(httpx.HTTPError):
                    async for _ in stream.aiter_bytes():
                        pass
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 1
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()


async def test_a_port_in_use_is_said_clearly_and_nothing_starts(sim: Sim) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{sim.service.port}: the port is in use"):
        await SimService(SimOptions(port=sim.service.port)).start()


async def test_serve_runs_until_told_to_stop() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(SimOptions(port=port, profile="tiny"), stop))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client, asyncio.timeout(PATIENCE_S):
        while True:
            try:
                assert (await client.get("/health")).status_code == 200
                break
            except httpx.ConnectError:
                await asyncio.sleep(0.01)
    stop.set()
    await asyncio.wait_for(serving, PATIENCE_S)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_streams_that_do_not_end_in_time_are_cut() -> None:
    service = SimService(SimOptions(port=0, profile="tiny", drain_timeout_s=0.1))
    await service.start()
    body = {"prompt": "a", "stream": True, **LONG}
    async with (
        httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_S) as client,
        client.stream("POST", "/v1/completions", json=body) as stream,
    ):
        await service.stop()
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in stream.aiter_bytes():
                pass
    assert service.worker.engine.stats().running == 0


async def test_reports_go_to_redis_and_say_draining_before_anything_is_refused(redis_server: RedisServer) -> None:
    options = SimOptions(
        worker_id="w1",
        port=0,
        models=(MODEL,),
        profile="tiny",
        redis_url=redis_server.url,
        report_interval_ms=20,
        drain_grace_s=0.5,
        drain_timeout_s=PATIENCE_S,
    )
    store = WorkerStore(redis_server.url)
    service = SimService(options)
    await service.start()
    short = {"model": MODEL, "prompt": "a", "max_tokens": 1}
    try:
        state = await reported(store, WorkerPhase.WORKER_PHASE_READY)
        assert (state.id, state.address) == ("w1", f"127.0.0.1:{service.port}")
        assert state.report_interval_ms == 20
        assert state.incarnation
        async with httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_S) as client:
            body = {"model": MODEL, "prompt": "a", "stream": True, **LONG}
            async with client.stream("POST", "/v1/completions", json=body):
                stopping = asyncio.create_task(service.stop())
                await reported(store, WorkerPhase.WORKER_PHASE_DRAINING)
                # Who has not heard yet is still served; later nobody is, and what runs goes on.
                assert (await client.post("/v1/completions", json=short)).is_success
                async with asyncio.timeout(PATIENCE_S):
                    while (refused := await client.post("/v1/completions", json=short)).is_success:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                assert refused.json()["error"]["message"] == "cannot schedule new futures after shutdown"
                assert service.worker.engine.running == 1
        await asyncio.wait_for(stopping, PATIENCE_S)
        # Its last word took it out of the hash.
        assert await store.load() == []
    finally:
        await store.close()


async def reported(store: WorkerStore, phase: WorkerPhase) -> WorkerState:
    """The worker's entry, when it has that phase."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for state in await store.load():
                if state.phase == phase:
                    return state
            await asyncio.sleep(0.005)
