"""The sidecar: what it says of the engine beside it, whatever becomes of that engine and of the control plane."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from http_kit import http_server
from redis_server import RedisServer, free_port
from test_scrape import Vllm

from recursant.cli.app import run
from recursant.store.workers import WorkerStore
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState
from recursant.worker.gpu import DeviceFacts, GpuFacts
from recursant.worker.settings import WorkerSettings
from recursant.worker.sidecar import Sidecar, SidecarOptions, address_of
from recursant.worker.sidecar_view import PATIENCE_S as LATE_PATIENCE_S
from recursant.worker.sidecar_view import SETTLE_S, SidecarView, Trouble

PATIENCE_S = 20.0
READY, WARMING, DRAINING = (
    WorkerPhase.WORKER_PHASE_READY,
    WorkerPhase.WORKER_PHASE_WARMING,
    WorkerPhase.WORKER_PHASE_DRAINING,
)


# --- what it says ---


def view() -> SidecarView:
    return SidecarView(WorkerState(id="w1", phase=WARMING))


def answer(running: int = 0, waiting: int = 0, phase: Any = READY) -> WorkerState:
    return WorkerState(id="w1", phase=phase, running_requests=running, waiting_requests=waiting)


def test_before_the_first_answer_it_warms() -> None:
    seen = view()
    assert seen.state(0.0).phase == WARMING
    seen.failed(Trouble.REFUSED, 1.0)
    assert seen.state(1.0).phase == WARMING
    assert seen.state(1.0).errors.other == 0
    seen.answered(answer(2, 1), 2.0)
    assert (seen.state(2.0).phase, seen.in_flight) == (READY, 3)


def test_a_server_that_is_gone_takes_nothing_at_once() -> None:
    seen = view()
    seen.answered(answer(2), 1.0)
    seen.failed(Trouble.REFUSED, 1.5)
    state = seen.state(1.5)
    assert (state.phase, state.running_requests) == (WARMING, 0)
    seen.answered(answer(), 2.0)
    assert seen.state(2.0).phase == READY


def test_a_server_that_is_late_is_busy_for_a_while() -> None:
    seen = view()
    seen.answered(answer(2), 1.0)
    seen.failed(Trouble.LATE, 3.0)
    assert seen.state(1.0 + LATE_PATIENCE_S).phase == READY
    assert seen.state(1.1 + LATE_PATIENCE_S).phase == WARMING


def test_a_dead_engine_is_evidence_once() -> None:
    seen = view()
    seen.answered(answer(2), 1.0)
    seen.failed(Trouble.WRONG, 1.5)
    seen.failed(Trouble.WRONG, 2.0)
    state = seen.state(2.0)
    assert (state.phase, state.errors.other) == (WARMING, 1)
    assert state.errors.last
    seen.answered(answer(), 3.0)
    assert (seen.state(3.0).phase, seen.state(3.0).errors.other) == (READY, 1)


def test_a_drain_is_over_when_the_engine_stays_idle() -> None:
    seen = view()
    seen.answered(answer(0), 0.0)
    assert not seen.is_drained(10.0)
    seen.drain(10.0)
    assert seen.state(10.0).phase == DRAINING
    seen.answered(answer(0), 10.5)
    # One that was on its way arrives.
    seen.answered(answer(1), 11.0)
    assert not seen.is_drained(10.5 + SETTLE_S)
    seen.answered(answer(0), 12.0)
    assert not seen.is_drained(12.0 + SETTLE_S / 2)
    assert seen.is_drained(12.0 + SETTLE_S)


def test_an_engine_that_is_gone_has_nothing_left() -> None:
    seen = view()
    seen.answered(answer(3), 0.0)
    seen.drain(1.0)
    seen.failed(Trouble.LATE, 1.5)
    assert not seen.is_drained(9.0)
    seen.failed(Trouble.REFUSED, 10.0)
    assert seen.is_drained(10.0 + SETTLE_S)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8101", ":8101"),
        ("http://localhost", ":80"),
        ("https://[::1]:8443/", ":8443"),
        ("http://gpu-7:8000", "gpu-7:8000"),
        ("http://[fd00::7]:8000", "[fd00::7]:8000"),
    ],
)
def test_where_others_dial_it(url: str, address: str) -> None:
    assert address_of(url) == address


# --- beside an engine ---


@contextlib.asynccontextmanager
async def beside(url: str, redis_url: str, **changes: Any) -> AsyncIterator[tuple[WorkerStore, asyncio.Event]]:
    """A running sidecar; leave the block, and it is told to stop."""
    given: dict[str, Any] = {"worker_id": "w1", "address": address_of(url), "engine_url": url, "redis_url": redis_url}
    settings = WorkerSettings(**given, interval_ms=20, **changes.pop("settings", {}))
    stop = asyncio.Event()
    sidecar = Sidecar(SidecarOptions(settings, **{"scrape_ms": 100, "drain_s": 0.5} | changes))
    task = asyncio.create_task(sidecar.run(stop))
    store = WorkerStore(redis_url)
    try:
        yield store, stop
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await task
        await store.close()


async def until(store: WorkerStore, wanted: Callable[[WorkerState], Any]) -> WorkerState:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(Exception):
                for state in await store.load():
                    if wanted(state):
                        return state
            await asyncio.sleep(0.02)


async def test_reports_what_it_scrapes_and_what_it_was_told(redis_server: RedisServer) -> None:
    vllm = Vllm()
    vllm.running = 3
    vllm.models = [{"id": "base", "max_model_len": 4_096}, {"id": "ad1", "parent": "base"}]
    gpu = GpuFacts((DeviceFacts(total_vram_mb=80_000, temperature_c=61.0),))
    async with (
        http_server(vllm.answer) as server,
        beside(
            server.url,
            redis_server.url,
            settings={"family": "qwen", "capacity_tokens": 128_000, "exclusive": True, "max_queue": 9},
            max_num_seqs=64,
            priority_scheduling=True,
            read_gpu=lambda: gpu,
        ) as (store, _),
    ):
        state = await until(store, lambda state: state.phase == READY)
        # The way to this Redis begins here.
        assert (state.id, state.address) == ("w1", f"127.0.0.1:{server.port}")
        assert [(model.name, model.family) for model in state.models] == [("base", "qwen")]
        assert list(state.lora_adapters) == ["ad1"]
        assert (state.running_requests, state.kv_cache_usage) == (3, 0.5)
        assert (state.capacity_tokens, state.exclusive, state.max_queue) == (128_000, True, 9)
        assert (state.max_num_seqs, state.priority_scheduling) == (64, True)
        assert (state.total_vram_mb, state.gpu_temperature_c) == (80_000, 61.0)
        assert not state.HasField("bandwidth_total_mb_s")
    # It was told to stop while requests ran: it waited for its bound, and left.
    assert await loaded(redis_server.url) == []


async def loaded(url: str) -> list[WorkerState]:
    store = WorkerStore(url)
    try:
        return await store.load()
    finally:
        await store.close()


async def test_starts_before_its_engine_and_outlives_it(redis_server: RedisServer) -> None:
    port = free_port()
    vllm = Vllm()
    async with beside(f"http://127.0.0.1:{port}", redis_server.url) as (store, _):
        await until(store, lambda state: state.phase == WARMING)
        async with http_server(vllm.answer, port=port):
            first = await until(store, lambda state: state.phase == READY)
        await until(store, lambda state: state.phase == WARMING)
        vllm.started_at += 60.0
        async with http_server(vllm.answer, port=port):
            second = await until(store, lambda state: state.phase == READY)
        # It is another process, and counted afresh.
        assert second.incarnation != first.incarnation


async def test_announces_a_drain_before_its_farewell(redis_server: RedisServer) -> None:
    vllm = Vllm()
    vllm.running = 1
    async with http_server(vllm.answer) as server:
        async with beside(server.url, redis_server.url, drain_s=PATIENCE_S) as (store, stop):
            await until(store, lambda state: state.phase == READY)
            stop.set()
            await until(store, lambda state: state.phase == DRAINING and state.running_requests == 1)
            vllm.running = 0
        assert await loaded(redis_server.url) == []


async def test_sleep_stops_the_routing(redis_server: RedisServer) -> None:
    vllm = Vllm()
    async with http_server(vllm.answer) as server, beside(server.url, redis_server.url) as (store, _):
        await until(store, lambda state: state.phase == READY)
        vllm.awake = 0.0
        await until(store, lambda state: state.phase == WARMING)
        vllm.awake = 1.0
        await until(store, lambda state: state.phase == READY)


async def test_goes_on_without_redis(redis_server: RedisServer) -> None:
    vllm = Vllm()
    redis_server.kill()
    async with http_server(vllm.answer) as server, beside(server.url, redis_server.url) as (store, _):
        async with asyncio.timeout(PATIENCE_S):
            while len(server.requests) < 6:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.02)
        redis_server.start()
        await until(store, lambda state: state.phase == READY)


async def test_where_the_models_want_a_key_they_can_be_named(redis_server: RedisServer) -> None:
    vllm = Vllm()
    vllm.instead["/v1/models"] = (401, b"{}")
    async with (
        http_server(vllm.answer) as server,
        beside(server.url, redis_server.url, models=("known",)) as (store, _),
    ):
        state = await until(store, lambda state: state.phase == READY)
        assert [model.name for model in state.models] == ["known"]


# --- its command line ---


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--redis-url, --api or --run-dir"),
        (["--redis-url", "http://x"], "RECURSANT_REDIS_URL: expected redis://"),
        (["--redis-url", "redis://127.0.0.1:1/0?db=many"], ""),
        (["--redis-url", "redis://127.0.0.1:1", "--url", "http://a_b c:1"], ""),
        (["--api", "x:1"], "RECURSANT_API: expected http://"),
        (["--redis-url", "redis://127.0.0.1:1", "--url", "127.0.0.1:8000"], "--url: expected http://"),
        (["--redis-url", "redis://127.0.0.1:1", "--capacity", "1e3"], "RECURSANT_CAPACITY_TOKENS: expected a whole"),
        (["--redis-url", "redis://127.0.0.1:1", "--advertise", "0.0.0.0:80"], "RECURSANT_WORKER_ADDRESS"),
        (["--redis-url", "redis://127.0.0.1:1", "--worker-id", "a b"], "RECURSANT_WORKER_ID"),
    ],
)
def test_says_what_is_wrong_with_its_options(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["worker", "sidecar", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_an_annotations_file_that_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "annotations"
    assert run(["worker", "sidecar", "--redis-url", "redis://127.0.0.1:1", "--annotations-file", str(missing)]) == 1
    assert str(missing) in capsys.readouterr().err
