"""A worker's heartbeats, over both ways, whatever becomes of the control plane."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from http_kit import HttpServer, http_server
from redis_server import RedisServer, free_port

from recursant.store.codec import state_from_dict
from recursant.store.workers import Report, WorkerStore
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState
from recursant.worker.reporter import Reporter

PATIENCE_S = 20.0
FAST_MS = 20


def state(**changes: Any) -> WorkerState:
    fields: dict[str, Any] = {"id": "w1", "address": "127.0.0.1:8101", "phase": WorkerPhase.WORKER_PHASE_READY}
    return WorkerState(**(fields | changes))


@contextlib.asynccontextmanager
async def running(reporter: Reporter) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(reporter.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def store_of(server: RedisServer) -> AsyncIterator[WorkerStore]:
    store = WorkerStore(server.url)
    try:
        yield store
    finally:
        await store.close()


async def until_loaded(store: WorkerStore, wanted: Callable[[list[WorkerState]], Any]) -> list[WorkerState]:
    async with asyncio.timeout(PATIENCE_S):
        while not wanted(states := await store.load()):  # noqa: ASYNC110 - nor has Redis
            await asyncio.sleep(0.01)
        return states


# --- Redis ---


async def test_reports_to_redis_what_the_worker_says_now(redis_server: RedisServer) -> None:
    current = state(running_requests=1)
    async with (
        store_of(redis_server) as store,
        running(Reporter(lambda: current, redis_url=redis_server.url, interval_ms=FAST_MS)),
    ):
        first = (await until_loaded(store, bool))[0]
        assert first.running_requests == 1
        assert first.report_interval_ms == FAST_MS
        assert first.incarnation
        current.running_requests = 2
        later = (await until_loaded(store, lambda states: states[0].running_requests == 2))[0]
        assert later.sequence > first.sequence
        assert later.incarnation == first.incarnation
    assert not current.incarnation  # the caller's own state is left alone


async def test_sequence_rises_by_one(redis_server: RedisServer) -> None:
    sequences: list[int] = []
    async with (
        store_of(redis_server) as store,
        contextlib.aclosing(store.watch()) as events,
        running(Reporter(state, redis_url=redis_server.url, interval_ms=FAST_MS)),
    ):
        async for event in events:
            if isinstance(event, Report):
                sequences.append(event.state.sequence)
            if len(sequences) == 5:
                break
    assert sequences == list(range(sequences[0], sequences[0] + 5))


async def test_each_start_is_an_incarnation_of_its_own(redis_server: RedisServer) -> None:
    incarnations = set()
    async with store_of(redis_server) as store:
        for _ in range(2):
            async with running(Reporter(state, redis_url=redis_server.url, interval_ms=FAST_MS)):
                incarnations.add((await until_loaded(store, bool))[0].incarnation)
            await until_loaded(store, lambda states: not states)
    assert len(incarnations) == 2


async def test_says_farewell_when_cancelled(redis_server: RedisServer) -> None:
    async with store_of(redis_server) as store:
        async with running(Reporter(state, redis_url=redis_server.url)) as task:
            await until_loaded(store, bool)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await store.load() == []


async def test_ends_at_whatever_moment_it_is_cancelled(redis_server: RedisServer) -> None:
    for number in range(60):
        task = asyncio.create_task(Reporter(state, redis_url=redis_server.url, interval_ms=1).run())
        await asyncio.sleep(0.005 + number / 10_000)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
        assert done
        assert task.cancelled()


async def test_starts_before_redis(redis_server: RedisServer) -> None:
    redis_server.kill()
    async with running(Reporter(state, redis_url=redis_server.url, interval_ms=FAST_MS)) as task:
        await asyncio.sleep(0.2)
        assert not task.done()
        redis_server.start()
        async with store_of(redis_server) as store:
            await until_loaded(store, bool)


async def test_restores_everything_in_a_redis_that_came_back_empty(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="recursant.worker")
    async with running(Reporter(state, redis_url=redis_server.url, interval_ms=FAST_MS)):
        async with store_of(redis_server) as store:
            before = (await until_loaded(store, bool))[0]
        redis_server.kill()
        await until(lambda: caplog.records)
        await asyncio.sleep(0.3)  # for some more tries
        redis_server.start()
        async with store_of(redis_server) as store:
            after = (await until_loaded(store, bool))[0]
    assert after.incarnation == before.incarnation
    assert after.sequence > before.sequence
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]  # once each, not at every try


async def test_a_redis_that_hangs_does_not_hold_up_the_farewell(redis_server: RedisServer) -> None:
    async with (
        store_of(redis_server) as store,
        running(Reporter(state, redis_url=redis_server.url, interval_ms=FAST_MS)) as task,
    ):
        await until_loaded(store, bool)
        redis_server.pause()
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert task.cancelled()


async def test_a_state_that_cannot_be_reported_is_said_and_the_next_one_counts(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    current = state(token_rate=-1.0)
    async with (
        store_of(redis_server) as store,
        running(Reporter(lambda: current, redis_url=redis_server.url, interval_ms=FAST_MS)),
    ):
        await until(lambda: caplog.records)
        assert "token_rate" in caplog.text
        current.token_rate = 1.0
        await until_loaded(store, bool)


# --- HTTP ---


class Api:
    """The control API as far as workers see it: it knows those that registered."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.broken = False

    async def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        worker_id = json.loads(body)["id"]
        if self.broken:
            return 503, b"not now"
        if path == "/v1/worker/register":
            self.known.add(worker_id)
            return 200, b"{}"
        if path == "/v1/worker/heartbeat":
            return (200, b"{}") if worker_id in self.known else (404, b"{}")
        return 405, b""


def paths(server: HttpServer) -> list[str]:
    return [path for path, _ in server.requests]


async def test_registers_then_sends_heartbeats() -> None:
    async with http_server(Api().answer) as server:
        async with running(Reporter(state, api_url=server.url, interval_ms=FAST_MS)):
            await until(lambda: len(server.requests) >= 4)
        assert paths(server)[:2] == ["/v1/worker/register", "/v1/worker/heartbeat"]
        assert "/v1/worker/register" not in paths(server)[1:]
        states = [state_from_dict(json.loads(body)) for _, body in server.requests]
        assert [sent.sequence for sent in states] == list(range(1, len(states) + 1))
        # Envoy hears of the address before requests are sent there.
        assert states[0].phase == WorkerPhase.WORKER_PHASE_WARMING
        assert {sent.phase for sent in states[1:-1]} == {WorkerPhase.WORKER_PHASE_READY}
        assert states[-1].phase == WorkerPhase.WORKER_PHASE_STOPPED


async def test_registers_again_where_it_is_not_known_any_more() -> None:
    api = Api()
    async with (
        http_server(api.answer) as server,
        running(Reporter(state, api_url=server.url, interval_ms=FAST_MS)),
    ):
        await until(lambda: len(server.requests) >= 2)
        api.known.clear()
        seen = len(server.requests)
        await until(lambda: "/v1/worker/register" in paths(server)[seen:])
        await until(lambda: paths(server)[-1] == "/v1/worker/heartbeat" and api.known)


async def test_an_api_that_refuses_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    api = Api()
    api.broken = True
    async with (
        http_server(api.answer) as server,
        running(Reporter(state, api_url=server.url, interval_ms=FAST_MS)),
    ):
        await until(lambda: len(server.requests) >= 3)
        assert "/v1/worker/register answered 503: not now" in caplog.text
        api.broken = False
        await until(lambda: api.known)


async def test_an_api_that_hangs_does_not_hold_up_the_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recursant.worker.senders.TIMEOUT_S", 3_600.0)
    api = Api()

    async def answer(path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/v1/worker/heartbeat":
            await asyncio.sleep(3_600)
        return await api.answer(path, body)

    async with http_server(answer) as server, running(Reporter(state, api_url=server.url, interval_ms=FAST_MS)) as task:
        await until(lambda: len(server.requests) >= 2)
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert task.cancelled()


async def test_starts_before_the_api_and_outlives_it() -> None:
    port = free_port()
    api = Api()
    async with running(Reporter(state, api_url=f"http://127.0.0.1:{port}", interval_ms=FAST_MS)) as task:
        for _ in range(2):
            await asyncio.sleep(0.1)
            assert not task.done()
            async with http_server(api.answer, port=port) as server:
                await until(lambda server=server: len(server.requests) >= 2)


async def test_redis_is_preferred(redis_server: RedisServer) -> None:
    async with (
        http_server(Api().answer) as server,
        store_of(redis_server) as store,
        running(Reporter(state, redis_url=redis_server.url, api_url=server.url, interval_ms=FAST_MS)),
    ):
        await until_loaded(store, bool)
        assert server.requests == []


@pytest.mark.parametrize(
    "urls", [{}, {"redis_url": "nonsense"}, {"api_url": "127.0.0.1:8001"}, {"api_url": "http://"}, {"api_url": "a\0b"}]
)
def test_refuses_to_report_nowhere(urls: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"(?i)url"):
        Reporter(state, **urls)


async def test_a_worker_that_cannot_say_its_state_is_not_covered_up(redis_server: RedisServer) -> None:
    def broken() -> WorkerState:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Reporter(broken, redis_url=redis_server.url).run()
