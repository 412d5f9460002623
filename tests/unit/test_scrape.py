"""Configured workers, scraped over HTTP from an imitation of vLLM, into a real Redis-compatible server."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from http_kit import HttpServer, http_server
from redis_server import RedisServer, free_port

from recursant.config.model import Config
from recursant.fleet.families import FamilyResolver
from recursant.store.workers import WorkerStore
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState
from recursant.worker.scrape import MAX_BODY_BYTES, ScrapeTarget, StaticScraper

PATIENCE_S = 20.0
READY, WARMING = WorkerPhase.WORKER_PHASE_READY, WorkerPhase.WORKER_PHASE_WARMING
UNREACHABLE = WorkerPhase.WORKER_PHASE_UNREACHABLE


class Vllm:
    """What a vLLM answers; the test turns its knobs."""

    def __init__(self) -> None:
        self.started_at = 1_000.0
        self.running = 0
        self.tokens = 0.0
        self.queue = (0.0, 0.0)
        self.awake = 1.0
        self.models: list[dict[str, Any]] = [{"id": "Qwen/Qwen2.5-7B", "parent": None, "max_model_len": 2_048}]
        # Path -> the answer instead of the usual one.
        self.instead: dict[str, tuple[int, bytes]] = {}
        self.hangs = False

    async def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self.hangs:
            await asyncio.sleep(3_600)
        if path in self.instead:
            return self.instead[path]
        match path:
            case "/health":
                return 200, b""
            case "/v1/models":
                return 200, json.dumps({"object": "list", "data": self.models}).encode()
            case "/metrics":
                text = f"""\
process_start_time_seconds {self.started_at}
vllm:num_requests_running{{engine="0"}} {self.running}
vllm:num_requests_waiting{{engine="0"}} 0.0
vllm:kv_cache_usage_perc{{engine="0"}} 0.5
vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {self.awake}
vllm:generation_tokens_total{{engine="0"}} {self.tokens}
vllm:request_queue_time_seconds_sum{{engine="0"}} {self.queue[0]}
vllm:request_queue_time_seconds_count{{engine="0"}} {self.queue[1]}
"""
                return 200, text.encode()
            case _:
                return 404, b"{}"


@contextlib.asynccontextmanager
async def a_target(
    vllm: Vllm, **worker: Any
) -> AsyncIterator[tuple[Callable[[], "asyncio.Future[WorkerState | None]"], HttpServer]]:
    """A target on a server of its own, and how to scrape it."""
    async with http_server(vllm.answer) as server, httpx.AsyncClient(timeout=None) as client:  # noqa: S113 - it is under test
        config = Config.model_validate(
            {
                "workers": [{"host": "127.0.0.1", "port": server.port} | worker],
                "agents": [{"agent_id": "chat", "model_family": "qwen"}],
            }
        )
        target = ScrapeTarget(config.workers[0], FamilyResolver.from_config(config))
        yield (lambda: asyncio.ensure_future(target.scrape(client))), server


def expect(state: WorkerState | None) -> WorkerState:
    assert state is not None
    return state


# --- one worker ---


async def test_a_scrape_is_a_report() -> None:
    vllm = Vllm()
    vllm.running = 7
    async with a_target(vllm, exclusive=True, capacity_tokens=128_000, scrape_interval_ms=700) as (scrape, server):
        state = expect(await scrape())
    assert state.id == state.address == f"127.0.0.1:{server.port}"
    assert state.phase == READY
    assert state.report_interval_ms == 700
    assert state.sequence == 1
    assert state.running_requests == 7
    assert state.kv_cache_usage == 0.5
    assert state.exclusive
    assert state.capacity_tokens == 128_000
    assert state.engine == "vllm"
    assert [(model.name, model.max_model_len) for model in state.models] == [("Qwen/Qwen2.5-7B", 2_048)]
    assert not state.HasField("token_rate")  # one reading makes no rate
    assert not state.HasField("free_vram_mb")


async def test_rates_come_with_the_second_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 50.0
    monkeypatch.setattr("recursant.worker.scrape.time", SimpleNamespace(monotonic=lambda: now))
    vllm = Vllm()
    vllm.tokens, vllm.queue = 1_000.0, (3.0, 10.0)
    async with a_target(vllm) as (scrape, _):
        expect(await scrape())
        now = 54.0
        vllm.tokens, vllm.queue = 1_800.0, (4.0, 14.0)
        state = expect(await scrape())
        assert state.token_rate == 200.0
        assert state.queue_wait_ms == 250.0
        now = 70.0
        state = expect(await scrape())
        assert not state.HasField("token_rate")  # the last reading before is too old
        now = 71.0
        state = expect(await scrape())
        assert state.token_rate == 0.0
        assert not state.HasField("queue_wait_ms")  # nobody left the queue


async def test_models_are_discovered_and_adapters_told_apart() -> None:
    vllm = Vllm()
    vllm.models.append({"id": "sql", "parent": "Qwen/Qwen2.5-7B"})
    async with a_target(vllm, models=["phi"]) as (scrape, _):
        state = expect(await scrape())
    # What it lists, not what the configuration thinks; the registry finds the family by the name.
    assert [model.name for model in state.models] == ["Qwen/Qwen2.5-7B"]
    assert list(state.lora_adapters) == ["sql"]


async def test_a_model_with_a_name_of_its_own_has_the_declared_family() -> None:
    vllm = Vllm()
    vllm.models = [{"id": "tiny"}]
    async with a_target(vllm, models=["phi"]) as (scrape, _):
        assert [(model.name, model.family) for model in expect(await scrape()).models] == [("tiny", "phi")]


async def test_models_are_asked_for_now_and_then_and_after_a_failure_and_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 50.0
    monkeypatch.setattr("recursant.worker.scrape.time", SimpleNamespace(monotonic=lambda: now))
    vllm = Vllm()
    async with a_target(vllm) as (scrape, server):

        def asked() -> int:
            return [path for path, _ in server.requests].count("/v1/models")

        await scrape()
        await scrape()
        assert asked() == 1
        now += 30.0
        await scrape()
        assert asked() == 2
        vllm.instead["/health"] = (503, b"")
        assert await scrape() is None
        del vllm.instead["/health"]
        await scrape()
        assert asked() == 3
        vllm.started_at += 60.0
        await scrape()
        assert asked() == 4


async def test_a_restart_of_the_worker_is_a_new_incarnation() -> None:
    vllm = Vllm()
    async with a_target(vllm) as (scrape, _):
        first, second = expect(await scrape()), expect(await scrape())
        assert second.incarnation == first.incarnation
        assert second.sequence > first.sequence
        vllm.started_at += 60.0
        third = expect(await scrape())
        assert third.incarnation != first.incarnation


async def test_a_restart_of_the_scraper_is_a_new_incarnation() -> None:
    vllm = Vllm()
    incarnations = set()
    for _ in range(2):
        async with a_target(vllm) as (scrape, _server):
            incarnations.add(expect(await scrape()).incarnation)
    assert len(incarnations) == 2


async def test_a_sleeping_worker_takes_nothing() -> None:
    vllm = Vllm()
    vllm.awake = 0.0
    async with a_target(vllm) as (scrape, _):
        assert expect(await scrape()).phase == WARMING
        vllm.awake = 1.0
        assert expect(await scrape()).phase == READY


async def test_a_paused_worker_takes_nothing() -> None:
    vllm = Vllm()
    async with a_target(vllm) as (scrape, server):

        def asked() -> int:
            return [path for path, _ in server.requests].count("/is_paused")

        # Outside development mode there is no such route: it is asked once.
        assert expect(await scrape()).phase == READY
        assert expect(await scrape()).phase == READY
        assert asked() == 1
        vllm.started_at += 60.0
        vllm.instead["/is_paused"] = (200, b'{"is_paused": true}')
        assert expect(await scrape()).phase == WARMING
        vllm.instead["/is_paused"] = (200, b'{"is_paused": false}')
        assert expect(await scrape()).phase == READY


async def test_where_the_metrics_do_not_tell_of_sleep_its_own_route_may() -> None:
    vllm = Vllm()
    vllm.awake = -1.0  # what is below zero is passed over
    async with a_target(vllm) as (scrape, server):

        def asked() -> int:
            return [path for path, _ in server.requests].count("/is_sleeping")

        # Most have no such route: they are asked once.
        assert expect(await scrape()).phase == READY
        assert expect(await scrape()).phase == READY
        assert asked() == 1
        vllm.started_at += 60.0
        vllm.instead["/is_sleeping"] = (200, b'{"is_sleeping": true}')
        assert expect(await scrape()).phase == WARMING
        vllm.instead["/is_sleeping"] = (200, b'{"is_sleeping": false}')
        assert expect(await scrape()).phase == READY
        for nonsense in (b"[", b"[" * 100_000, b"7"):
            vllm.instead["/is_sleeping"] = (200, nonsense)
            assert expect(await scrape()).phase == READY


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/health", (503, b"")),
        ("/health", (302, b"")),
        ("/metrics", (404, b"")),
        ("/metrics", (200, b"hello")),
        ("/metrics", (200, b"\xff\xfe")),
        ("/metrics", (200, b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n" + b"#" * MAX_BODY_BYTES)),
        ("/metrics", (200, b"vllm:num_requests_running 1e30\nvllm:num_requests_waiting 0\n")),
        ("/v1/models", (500, b"")),
        ("/v1/models", (200, b"{")),
        ("/v1/models", (200, b"[]")),
        ("/v1/models", (200, b"[" * 100_000)),
        ("/v1/models", (200, b'{"data": [{"id": "\\ud800"}]}')),
        ("/v1/models", (401, b"")),
    ],
)
async def test_an_answer_that_is_wrong_is_no_beat(path: str, answer: tuple[int, bytes]) -> None:
    vllm = Vllm()
    vllm.instead[path] = answer
    async with a_target(vllm) as (scrape, _):
        assert await scrape() is None
        del vllm.instead[path]
        expect(await scrape())


async def test_a_worker_that_hangs_is_given_up_in_time() -> None:
    vllm = Vllm()
    vllm.hangs = True
    async with a_target(vllm, scrape_interval_ms=100) as (scrape, _):
        async with asyncio.timeout(PATIENCE_S):
            assert await scrape() is None
        vllm.hangs = False
        expect(await scrape())


@pytest.mark.parametrize("status", [401, 403])
async def test_where_the_list_is_behind_a_key_the_declared_models_count(status: int) -> None:
    vllm = Vllm()
    vllm.instead["/v1/models"] = (status, b"")
    async with a_target(vllm, models=[{"name": "tiny", "family": "phi"}]) as (scrape, _):
        assert [(model.name, model.family) for model in expect(await scrape()).models] == [("tiny", "phi")]


# --- all of them ---


@contextlib.asynccontextmanager
async def scraping(redis_url: str, *workers: dict[str, Any]) -> AsyncIterator[WorkerStore]:
    store = WorkerStore(redis_url)
    config = Config.model_validate({"workers": workers})
    task = asyncio.create_task(StaticScraper(config, store).run())
    try:
        yield store
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await store.close()


async def until_loaded(store: WorkerStore, wanted: Callable[[dict[str, WorkerState]], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not wanted({state.id: state for state in await store.load()}):  # noqa: ASYNC110 - Redis has no event
            await asyncio.sleep(0.02)


async def test_scrapes_again_and_again(redis_server: RedisServer) -> None:
    vllm = Vllm()
    async with http_server(vllm.answer) as server:
        worker = {"host": "127.0.0.1", "port": server.port, "id": "w1", "scrape_interval_ms": 100}
        async with scraping(redis_server.url, worker) as store:
            await until_loaded(store, lambda states: "w1" in states and states["w1"].sequence >= 3)
            vllm.running = 9
            await until_loaded(store, lambda states: states["w1"].running_requests == 9)


async def test_one_that_is_away_or_hangs_holds_up_none(redis_server: RedisServer) -> None:
    vllm, hanging = Vllm(), Vllm()
    hanging.hangs = True
    async with http_server(vllm.answer) as server, http_server(hanging.answer) as hung:
        workers = [
            {"host": "127.0.0.1", "port": port, "id": name, "scrape_interval_ms": 100}
            for name, port in (("away", free_port()), ("hangs", hung.port), ("works", server.port))
        ]
        async with scraping(redis_server.url, *workers) as store:
            await until_loaded(store, lambda states: "works" in states and states["works"].sequence >= 5)
            assert {state.id for state in await store.load()} == {"works"}
            hanging.hangs = False
            await until_loaded(store, lambda states: "hangs" in states)


async def test_one_that_stops_to_answer_is_said_to_be_unreachable_until_it_answers(redis_server: RedisServer) -> None:
    vllm = Vllm()
    vllm.running = 4
    async with http_server(vllm.answer) as server:
        worker = {"host": "127.0.0.1", "port": server.port, "id": "w1", "scrape_interval_ms": 100}
        async with scraping(redis_server.url, worker) as store:
            await until_loaded(store, lambda states: "w1" in states and states["w1"].phase == READY)
            [before] = await store.load()
            vllm.instead["/health"] = (500, b"")
            await until_loaded(store, lambda states: states["w1"].phase == UNREACHABLE)
            [away] = await store.load()
            # As it was last seen, a later report of the same process.
            assert (before.scraped, away.scraped) == (True, True)
            assert (away.incarnation, away.models[0].name) == (before.incarnation, "Qwen/Qwen2.5-7B")
            assert away.sequence > before.sequence
            assert away.running_requests == 4
            vllm.instead.clear()
            await until_loaded(store, lambda states: states["w1"].phase == READY)


@pytest.mark.parametrize("models", [[], ["Qwen/Qwen2.5-7B"]])
async def test_of_one_that_never_answered_it_is_said_only_where_its_models_are_known(
    redis_server: RedisServer, models: list[str]
) -> None:
    vllm = Vllm()
    async with http_server(vllm.answer) as server:
        workers = [
            {"host": "127.0.0.1", "port": free_port(), "id": "dead", "scrape_interval_ms": 100, "models": models},
            {"host": "127.0.0.1", "port": server.port, "id": "works", "scrape_interval_ms": 100},
        ]
        async with scraping(redis_server.url, *workers) as store:
            await until_loaded(store, lambda states: "works" in states and states["works"].sequence >= 8)
            phases = {state.id: state.phase for state in await store.load()}
            assert phases.get("dead") == (UNREACHABLE if models else None)


async def test_goes_on_without_redis(redis_server: RedisServer) -> None:
    vllm = Vllm()
    async with http_server(vllm.answer) as server:
        worker = {"host": "127.0.0.1", "port": server.port, "id": "w1", "scrape_interval_ms": 100}
        redis_server.kill()
        async with scraping(redis_server.url, worker) as store:
            async with asyncio.timeout(PATIENCE_S):
                while len(server.requests) < 10:  # noqa: ASYNC110 - the server tells nobody
                    await asyncio.sleep(0.02)
            redis_server.start()
            await until_loaded(store, lambda states: "w1" in states)


async def test_a_worker_that_says_nonsense_is_not_published(redis_server: RedisServer) -> None:
    vllm = Vllm()
    vllm.models = [{"id": "a,b"}]
    async with http_server(vllm.answer) as server:
        worker = {"host": "127.0.0.1", "port": server.port, "id": "w1", "scrape_interval_ms": 100}
        async with scraping(redis_server.url, worker) as store:
            async with asyncio.timeout(PATIENCE_S):
                while len(server.requests) < 10:  # noqa: ASYNC110 - the server tells nobody
                    await asyncio.sleep(0.02)
            assert await store.load() == []
            vllm.models = [{"id": "tiny"}]
            vllm.started_at += 1
            await until_loaded(store, lambda states: "w1" in states)


async def test_without_configured_workers_there_is_nothing_to_do(redis_server: RedisServer) -> None:
    store = WorkerStore(redis_server.url)
    await StaticScraper(Config(), store).run()
    await store.close()
