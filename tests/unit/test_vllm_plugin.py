"""The reporter inside vLLM: what it counts, what it declares, and that nothing of it ever reaches the engine."""

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from http_kit import http_server
from redis_server import RedisServer
from vllm_kit import MODEL, FinishReason, ModelConfig, finished, iteration, scheduler, vllm_config, vllm_installed

from recursant.names import PROBE_REQUEST_ID
from recursant.store.codec import check
from recursant.store.workers import WorkerStore
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState
from recursant.worker.settings import WorkerSettings
from recursant.worker.vllm_plugin.counting import Tally
from recursant.worker.vllm_plugin.declared import Declared, api_servers, read_declared
from recursant.worker.vllm_plugin.state import Standing, StateBuilder

PATIENCE_S = 20.0
READY, WARMING = WorkerPhase.WORKER_PHASE_READY, WorkerPhase.WORKER_PHASE_WARMING
SETTINGS = WorkerSettings("w1", "10.0.0.1:8000", "http://127.0.0.1:8000", redis_url="redis://localhost")


# --- counting ---


def test_counts_what_vllm_says() -> None:
    tally = Tally()
    tally.step(scheduler(4, 8, deferred=1, usage=0.25, queries=100, hits=40), iteration(generated=4, prompt=60))
    tally.step(
        scheduler(3, 7, usage=0.5, queries=10, hits=0),
        iteration(
            finished(FinishReason.STOP, prompt=12, queued=0.5),
            finished(FinishReason.ERROR, prompt=8, queued=1.5),
            generated=3,
            preempted=2,
        ),
    )
    counts = tally.counts()
    assert (counts.running, counts.waiting, counts.kv_cache_usage) == (3, 7, 0.5)
    assert (counts.generated_tokens, counts.prompt_tokens, counts.preemptions) == (7, 60, 2)
    assert (counts.prefix_queries, counts.prefix_hits) == (110, 40)
    assert counts.finished == {"stop": 1, "length": 0, "abort": 0, "error": 1, "repetition": 0, "other": 0}
    assert (counts.finished_requests, counts.queue_seconds) == (2, 2.0)
    assert (counts.asked, counts.asked_prompt_tokens, counts.asked_answer_tokens) == (2, 20, 2 * 5)


def test_probes_say_nothing_of_the_length_of_requests() -> None:
    tally = Tally()
    probe = finished(prompt=6, queued=0.5, request_id=f"cmpl-{PROBE_REQUEST_ID}-0a1b-0")
    tally.step(None, iteration(probe, finished(prompt=700, queued=1.5, request_id="cmpl-0a1b-0")))
    counts = tally.counts()
    assert (counts.finished["stop"], counts.queue_seconds) == (2, 2.0)
    assert (counts.asked, counts.asked_prompt_tokens, counts.asked_answer_tokens) == (1, 700, 5)
    state = build(tally)
    assert (state.finished_requests, state.finished_prompt_tokens, state.counters.finished_stop) == (1, 700, 2)


def test_requests_that_are_put_off_are_waiting() -> None:
    tally = Tally()
    tally.step(scheduler(1, 2, deferred=3), None)
    assert tally.counts().waiting == 5


def test_engines_of_one_server_add_up() -> None:
    tally = Tally()
    tally.step(scheduler(1, 2, usage=0.2, running_adapters={"b": 1}), None, 0)
    tally.step(scheduler(3, 4, usage=0.6, waiting_adapters={"a": 2, "b": 1}), None, 1)
    counts = tally.counts()
    assert (counts.running, counts.waiting) == (4, 6)
    assert counts.kv_cache_usage == pytest.approx(0.4)
    assert counts.adapters == ("a", "b")


def test_either_of_the_two_may_be_missing() -> None:
    tally = Tally()
    tally.step(None, None)
    tally.step(None, iteration(generated=2))
    counts = tally.counts()
    assert (counts.running, counts.generated_tokens, counts.kv_cache_usage, counts.prefix_hits) == (0, 2, None, None)


def test_earlier_versions_say_less() -> None:
    # vLLM 0.8: the former name, no prefix cache stats, no adapters, no preemptions.
    tally = Tally()
    tally.step(
        SimpleNamespace(num_running_reqs=2, num_waiting_reqs=1, gpu_cache_usage=0.75),
        SimpleNamespace(
            num_generation_tokens=3, num_prompt_tokens=9, finished_requests=[], time_per_output_tokens_iter=[0.1, 0.2]
        ),
    )
    counts = tally.counts()
    assert (counts.running, counts.waiting, counts.kv_cache_usage) == (2, 1, 0.75)
    assert (counts.generated_tokens, counts.prompt_tokens) == (3, 9)
    assert (counts.gap_seconds, counts.gaps) == (pytest.approx(0.3), 2)
    assert counts.prefix_queries is None


def test_objects_that_say_nothing_count_nothing() -> None:
    tally = Tally()
    tally.step(SimpleNamespace(), SimpleNamespace(finished_requests=[SimpleNamespace()]))
    assert tally.counts().finished["other"] == 1


@pytest.mark.parametrize(
    ("reason", "counted"),
    [
        (FinishReason.LENGTH, "length"),
        ("abort", "abort"),
        ("FinishReason.ERROR", "error"),
        (None, "other"),
        (7, "other"),
    ],
)
def test_why_requests_ended(reason: Any, counted: str) -> None:
    tally = Tally()
    tally.step(None, iteration(finished(reason)))
    assert {name for name, count in tally.counts().finished.items() if count} == {counted}


# --- what is declared ---


def test_reads_vllms_own_configuration() -> None:
    assert read_declared(vllm_config()) == Declared(
        models=(MODEL,),
        max_model_len=32_768,
        max_num_seqs=256,
        max_num_batched_tokens=8_192,
        kv_block_tokens=16,
        kv_blocks_total=1_000,
        # Qwen2.5-7B: keys and values, 28 layers, 4 heads of 128, two bytes each.
        kv_bytes_per_token=2 * 28 * 4 * 128 * 2,
        capacity_tokens=16_000,
        priority_scheduling=True,
        prefix_caching=True,
        devices=1,
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (vllm_config(cache_dtype="fp8_e4m3"), 2 * 28 * 4 * 128),
        (vllm_config(tensor=2), 2 * 28 * 4 * 128 * 2),
        # Eight devices share four heads: each head is there twice.
        (vllm_config(tensor=8), 2 * 28 * 8 * 128 * 2),
        (vllm_config(pipeline=2), 2 * 28 * 4 * 128 * 2),
        (vllm_config(model=ModelConfig(dtype="torch.float32")), 2 * 28 * 4 * 128 * 4),
        (vllm_config(model=ModelConfig(use_mla=True)), 28 * 4 * 128 * 2),
        (vllm_config(model=ModelConfig(is_hybrid=True)), None),
        (vllm_config(cache_dtype="nvfp4"), None),
    ],
)
def test_bytes_that_a_token_takes(config: Any, expected: int | None) -> None:
    assert read_declared(config).kv_bytes_per_token == expected


def test_an_earlier_version_does_not_say_what_its_cache_holds() -> None:
    config = vllm_config()
    del config.cache_config.kv_cache_size_tokens
    assert read_declared(config).capacity_tokens == 16 * 1_000


def test_several_engines_take_more_at_once() -> None:
    declared = read_declared(vllm_config(), engines=2)
    assert (declared.max_num_seqs, declared.capacity_tokens, declared.devices) == (512, 32_000, 2)
    # vLLM has added these up already.
    assert declared.kv_blocks_total == 1_000


def test_devices_that_other_servers_use_too_are_not_taken_for_its_own() -> None:
    config = vllm_config(tensor=2)
    config.parallel_config.data_parallel_size = 4
    assert read_declared(config, engines=4).devices == 8
    assert read_declared(config, engines=1).devices is None


@pytest.mark.parametrize("config", [None, SimpleNamespace(), vllm_config(model=SimpleNamespace()), object()])
def test_what_is_not_found_is_absent(config: Any) -> None:
    declared = read_declared(config)
    assert declared.models == ()
    assert declared.kv_bytes_per_token is None


def test_nonsense_is_absent() -> None:
    config = vllm_config(num_gpu_blocks=-1, block_size=True, enable_prefix_caching="yes", kv_cache_size_tokens=None)
    config.scheduler_config.policy = None
    declared = read_declared(config)
    assert declared.kv_blocks_total is None
    assert declared.kv_block_tokens is None
    assert declared.prefix_caching is None
    assert declared.priority_scheduling is None


def test_how_many_api_servers_share_the_engines() -> None:
    assert api_servers(vllm_config()) == 1
    assert api_servers(SimpleNamespace(parallel_config=SimpleNamespace(_api_process_count=4))) == 4
    assert api_servers(SimpleNamespace()) == 1


# --- the report ---


def build(tally: Tally, *, settings: WorkerSettings = SETTINGS, **changes: Any) -> WorkerState:
    given: dict[str, Any] = {
        "address": "10.0.0.1:8000",
        "counts": tally.counts(),
        "declared": read_declared(vllm_config()),
        "standing": Standing(serving=True),
        "gpu": None,
        "now": 1.0,
    }
    state = StateBuilder(settings, "vllm 0.32.0").build(**(given | changes))
    stamped = WorkerState(incarnation="a", sequence=1, report_interval_ms=200)
    stamped.MergeFrom(state)
    check(stamped)
    return state


def test_a_report_says_what_a_request_can_get() -> None:
    tally = Tally()
    tally.step(scheduler(2, 3, usage=0.25, queries=8, hits=2), iteration(finished(prompt=7), generated=1, prompt=7))
    state = build(tally)
    assert state.phase == READY
    assert (state.kv_blocks_total, state.kv_blocks_free, state.kv_block_tokens) == (1_000, 750, 16)
    assert state.free_vram_mb == 750 * 16 * 57_344 // 2**20
    assert state.capacity_tokens == 16_000
    assert [(model.name, model.max_model_len) for model in state.models] == [(MODEL, 32_768)]
    assert (state.finished_requests, state.finished_prompt_tokens, state.finished_answer_tokens) == (1, 7, 5)
    assert (state.counters.prefix_queries, state.counters.prefix_hits, state.counters.finished_stop) == (8, 2, 1)
    assert state.engine == "vllm 0.32.0"
    assert not state.HasField("total_vram_mb")


def test_what_an_operator_says_wins() -> None:
    settings = WorkerSettings(
        "w1", ":8000", "http://127.0.0.1:8000", family="qwen", exclusive=True, capacity_tokens=5_000, max_queue=12
    )
    state = build(Tally(), settings=settings)
    assert (state.capacity_tokens, state.max_queue, state.exclusive) == (5_000, 12, True)
    assert state.models[0].family == "qwen"


def test_what_is_not_known_is_absent() -> None:
    state = build(Tally(), declared=Declared())
    absent = ("kv_blocks_total", "kv_block_tokens", "free_vram_mb", "capacity_tokens", "max_num_seqs", "token_rate")
    assert not any(state.HasField(name) for name in absent)
    assert not state.models


def test_a_worker_asleep_or_not_serving_takes_nothing() -> None:
    tally = Tally()
    assert build(tally, standing=Standing(serving=False)).phase == WARMING
    tally.slept(asleep=True)
    assert build(tally).phase == WARMING
    tally.slept(asleep=False)
    assert build(tally).phase == READY


def test_failed_requests_and_a_dead_engine_are_evidence() -> None:
    tally = Tally()
    tally.step(None, iteration(finished(FinishReason.ERROR)))
    assert build(tally).errors.other == 1
    state = build(tally, standing=Standing(serving=False, deaths=1))
    assert state.errors.other == 2
    assert "dead" in state.errors.last


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    tally = Tally()
    builder = StateBuilder(SETTINGS, "vllm")
    for second in range(21):
        state = builder.build(
            address="10.0.0.1:8000",
            counts=tally.counts(),
            declared=Declared(),
            standing=Standing(serving=True),
            gpu=None,
            now=float(second),
        )
        # 30 tokens a second for ten seconds, then 50.
        tally.step(None, iteration(finished(queued=0.2), generated=30 if second < 10 else 50))
    assert state.token_rate == pytest.approx(50)
    assert state.queue_wait_ms == pytest.approx(200)


def test_a_worker_with_little_to_do_is_not_taken_for_a_slow_one() -> None:
    tally = Tally()
    builder = StateBuilder(SETTINGS, "vllm")
    states = []
    for second in range(11):
        states.append(
            builder.build(
                address="10.0.0.1:8000",
                counts=tally.counts(),
                declared=Declared(),
                standing=Standing(serving=True),
                gpu=None,
                now=float(second),
            )
        )
        if second == 0:
            # One short answer, a token every 20 ms, in ten seconds.
            tally.step(None, iteration(generated=10, gaps=(0.02,) * 9))
    assert states[-1].token_rate == pytest.approx(1.0)
    assert states[-1].peak_token_rate == pytest.approx(50.0)
    assert not states[0].HasField("peak_token_rate")


def test_the_models_are_those_that_the_server_lists() -> None:
    # vLLM's configuration has the first of several --served-model-name only.
    state = build(Tally(), standing=Standing(serving=True, models=("first", "second")))
    assert [(model.name, model.max_model_len) for model in state.models] == [("first", 32_768), ("second", 32_768)]


def test_the_adapters_are_those_that_the_server_lists() -> None:
    tally = Tally()
    tally.step(scheduler(running_adapters={"busy": 1}), None)
    assert list(build(tally).lora_adapters) == ["busy"]
    state = build(tally, standing=Standing(serving=True, adapters=("busy", "idle")))
    assert list(state.lora_adapters) == ["busy", "idle"]


# --- inside vLLM ---


@pytest.fixture
def plugin() -> Iterator[Any]:
    """The module of the plugin, with a stand-in for vLLM."""
    with vllm_installed():
        (entry,) = entry_points(group="vllm.stat_logger_plugins", name="recursant")
        entry.load()
        import recursant.worker.vllm_plugin.plugin as module

        yield module


class Engine:
    """The HTTP server of a vLLM."""

    def __init__(self) -> None:
        self.health = 200
        self.paused = False
        self.adapters = ["ad1"]

    async def answer(self, path: str, _body: bytes) -> tuple[int, bytes]:
        if path == "/health":
            return self.health, b""
        if path == "/is_paused":
            return 200, json.dumps({"is_paused": self.paused}).encode()
        entries = [{"id": MODEL, "parent": None}, *({"id": name, "parent": MODEL} for name in self.adapters)]
        return 200, json.dumps({"object": "list", "data": entries}).encode()


@contextlib.asynccontextmanager
async def loaded(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, engine_url: str, config: Any = None, **environment: str
) -> AsyncIterator[Any]:
    """The stat logger as vLLM makes it."""
    given = {
        "RECURSANT_WORKER_ID": "w1",
        "RECURSANT_WORKER_ADDRESS": "127.0.0.1:8101",
        "RECURSANT_ENGINE_URL": engine_url,
        "RECURSANT_REPORT_INTERVAL_MS": "20",
    }
    for name, value in (given | environment).items():
        monkeypatch.setenv(name, value)
    logger = plugin.RecursantStatLogger(config or vllm_config(), [0])
    try:
        yield logger
    finally:
        if logger.reporter is not None:
            await asyncio.to_thread(logger.reporter.stop)
            await asyncio.to_thread(logger.gpu.stop)


async def until_reported(url: str, wanted: Callable[[WorkerState], Any]) -> WorkerState:
    store = WorkerStore(url)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(Exception):
                    for state in await store.load():
                        if wanted(state):
                            return state
                await asyncio.sleep(0.02)
    finally:
        await store.close()


async def test_reports_idle_busy_asleep_and_says_farewell(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    engine, url = Engine(), redis_server.url
    async with http_server(engine.answer) as server:
        async with loaded(plugin, monkeypatch, server.url, RECURSANT_REDIS_URL=url) as logger:
            # Nothing was ever recorded.
            idle = await until_reported(url, lambda state: state.phase == READY and state.lora_adapters)
            assert (idle.id, idle.address, idle.running_requests) == ("w1", "127.0.0.1:8101", 0)
            assert idle.engine == "vllm 0.32.0"
            later = await until_reported(url, lambda state: state.sequence > idle.sequence + 2)
            assert later.incarnation == idle.incarnation
            logger.record(
                scheduler_stats=scheduler(4, 8, usage=0.5),
                iteration_stats=iteration(generated=4),
                mm_cache_stats=None,
                engine_idx=0,
            )
            busy = await until_reported(url, lambda state: state.waiting_requests == 8)
            assert (busy.running_requests, busy.kv_cache_usage) == (4, 0.5)
            # vLLM 0.32's first argument is 1 when it sleeps, despite its name.
            logger.record_sleep_state(1, 1)
            await until_reported(url, lambda state: state.phase == WARMING)
            logger.record_sleep_state(0, 0)
            await until_reported(url, lambda state: state.phase == READY)
            # Only its KV cache was given away.
            logger.record_sleep_state(1, 0)
            await until_reported(url, lambda state: state.phase == WARMING)
            logger.record_sleep_state(0, 0)
            await until_reported(url, lambda state: state.phase == READY)
            # No logger hears of a pause.
            engine.paused = True
            await until_reported(url, lambda state: state.phase == WARMING)
            engine.paused = False
            await until_reported(url, lambda state: state.phase == READY)
            logger.record_admission_rejection("max_num_queued_reqs")
            await until_reported(url, lambda state: state.counters.rejected == 1)
            # Its engine dies: the server says so for a moment.
            engine.health = 503
            dead = await until_reported(url, lambda state: state.phase == WARMING)
            assert dead.errors.other == 1
        store = WorkerStore(url)
        assert await store.load() == []
        await store.close()


async def test_reports_to_the_control_api_where_there_is_no_redis(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[dict[str, Any]] = []

    async def api(_path: str, body: bytes) -> tuple[int, bytes]:
        reports.append(json.loads(body))
        return 200, b"{}"

    async with (
        http_server(Engine().answer) as engine,
        http_server(api) as control,
        loaded(plugin, monkeypatch, engine.url, RECURSANT_API=control.url, RECURSANT_WORKER_ADDRESS=":8101"),
    ):
        async with asyncio.timeout(PATIENCE_S):
            while not reports or reports[-1]["phase"] != "ready":  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.02)
    # The API fills in the host that it comes from.
    assert reports[-1]["address"] == ":8101"
    assert reports[-1]["phase"] == "stopped"


class Broken:
    """A stat object of a version that nobody has seen yet."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} here")


class Unclear:
    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


async def test_no_exception_reaches_the_engine(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = redis_server.url
    async with (
        http_server(Engine().answer) as server,
        loaded(plugin, monkeypatch, server.url, RECURSANT_REDIS_URL=url) as logger,
    ):
        for _ in range(3):
            logger.record(Broken(), Broken())
            logger.record(scheduler_stats=object(), iteration_stats=SimpleNamespace(num_generation_tokens="many"))
            logger.record_sleep_state(Unclear(), None)
        logger.record()
        logger.log_engine_initialized()
        logger.log()
        assert logger.failures == 9
        assert len([each for each in caplog.records if each.levelno >= logging.ERROR]) == 1
        # And it still counts what it understands.
        logger.record(scheduler(2, 0), None)
        await until_reported(url, lambda state: state.running_requests == 2)


async def test_redis_away_costs_the_engine_nothing(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    url = redis_server.url
    redis_server.kill()
    async with (
        http_server(Engine().answer) as server,
        loaded(plugin, monkeypatch, server.url, RECURSANT_REDIS_URL=url) as logger,
    ):
        for _ in range(100):
            logger.record(scheduler(1, 0), iteration(generated=1))
        redis_server.start()
        state = await until_reported(url, lambda state: state.running_requests == 1)
        assert state.counters.generated_tokens == 100
        redis_server.pause()
        logger.record(scheduler(5, 0), iteration(generated=1))
        redis_server.resume()
        await until_reported(url, lambda state: state.running_requests == 5)
        assert logger.failures == 0


async def test_its_looks_stay_out_of_vllms_access_log(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    access = logging.getLogger("uvicorn.access")
    caplog.set_level(logging.INFO, logger="uvicorn.access")

    def lines() -> int:
        return sum(record.name == access.name for record in caplog.records)

    def log(address: str, path: str) -> None:
        access.info('%s - "%s %s HTTP/%s" %d', address, "GET", path, "1.1", 200)

    async with http_server(Engine().answer) as server:
        async with loaded(plugin, monkeypatch, server.url, RECURSANT_REDIS_URL=redis_server.url) as logger:
            await until_reported(redis_server.url, lambda state: state.phase == READY)
            # As uvicorn writes it, of whoever asks.
            (ours,) = logger.reporter._look.addresses
            log(ours, "/health")
            log(ours, "/v1/models")
            assert lines() == 0
            log("127.0.0.1:1", "/health")
            log(ours, "/v1/completions")
            access.info("something else")
            assert lines() == 3
        log(ours, "/health")
        assert lines() == 4


async def test_the_block_count_may_come_later(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    config = vllm_config(num_gpu_blocks=None, kv_cache_size_tokens=None)
    async with (
        http_server(Engine().answer) as server,
        loaded(plugin, monkeypatch, server.url, config, RECURSANT_REDIS_URL=redis_server.url),
    ):
        state = await until_reported(redis_server.url, bool)
        assert not state.HasField("capacity_tokens")
        config.cache_config.num_gpu_blocks = 50
        await until_reported(redis_server.url, lambda state: state.capacity_tokens == 800)


async def test_a_reporter_that_fails_starts_afresh(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    monkeypatch.setattr("recursant.worker.vllm_plugin.thread.RESTART_S", 0.05)
    async with (
        http_server(Engine().answer) as server,
        loaded(plugin, monkeypatch, server.url, RECURSANT_REDIS_URL=redis_server.url) as logger,
    ):
        first = await until_reported(redis_server.url, bool)
        failed = threading.Event()

        def broken() -> None:
            failed.set()
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(logger.reporter, "_read_gpu", broken)
            assert await asyncio.to_thread(failed.wait, PATIENCE_S)
        later = await until_reported(redis_server.url, lambda state: state.incarnation != first.incarnation)
        assert later.id == "w1"


def no_thread() -> bool:
    return not any(thread.name == "recursant-reporter" for thread in threading.enumerate())


def test_told_nowhere_to_report_it_does_nothing(plugin: Any) -> None:
    logger = plugin.RecursantStatLogger(vllm_config(), [0])
    logger.record(scheduler(1, 0), iteration())
    assert logger.reporter is None
    assert logger.failures == 0
    assert no_thread()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RECURSANT_REDIS_URL", "nonsense"),
        ("RECURSANT_WORKER_ADDRESS", "0.0.0.0:80"),
        ("RECURSANT_CAPACITY_TOKENS", "much"),
        ("RECURSANT_ANNOTATIONS_FILE", "/nowhere"),
    ],
)
def test_what_it_was_told_wrong_is_said_and_vllm_starts(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str
) -> None:
    monkeypatch.setenv("RECURSANT_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv(variable, value)
    logger = plugin.RecursantStatLogger(vllm_config(), [0])
    assert logger.reporter is None
    assert caplog.records
    logger.record(scheduler(), iteration())
    assert no_thread()


def test_several_api_servers_are_the_sidecars_business(
    plugin: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RECURSANT_REDIS_URL", "redis://127.0.0.1:1/0")
    config = vllm_config()
    config.parallel_config._api_process_count = 2
    assert plugin.RecursantStatLogger(config, [0]).reporter is None
    assert "sidecar" in caplog.text


async def test_a_process_that_exits_says_farewell(redis_server: RedisServer) -> None:
    script = """
import sys
from vllm_kit import iteration, scheduler, vllm_config, vllm_installed
with vllm_installed():
    from recursant.worker.vllm_plugin.plugin import RecursantStatLogger
logger = RecursantStatLogger(vllm_config(), [0])
logger.record(scheduler(2, 0), iteration())
sys.stdin.read()
"""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "RECURSANT_REDIS_URL": redis_server.url,
        "RECURSANT_REPORT_INTERVAL_MS": "20",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    state = await until_reported(redis_server.url, lambda state: state.running_requests == 2)
    # The way to this Redis begins here, and vLLM's port is what it listens on unless told otherwise.
    assert state.address == "127.0.0.1:8000"
    async with asyncio.timeout(PATIENCE_S):
        _, errors = await process.communicate(b"")
    assert (process.returncode, errors) == (0, b"")
    store = WorkerStore(redis_server.url)
    assert await store.load() == []
    await store.close()


def test_it_brings_nothing_heavy_into_vllms_process() -> None:
    script = """
import sys
from vllm_kit import vllm_installed
with vllm_installed():
    import recursant.worker.vllm_plugin.plugin
heavy = {"fastapi", "grpc", "hpack", "numpy", "pydantic", "typer", "uvicorn", "uvloop", "xds", "yaml"}
print(sorted(heavy & sys.modules.keys()))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
