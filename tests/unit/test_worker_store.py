"""The workers' reports in a real Redis-compatible server: written, loaded, followed, through every kind of loss."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest
import redis
from redis_server import RedisServer, free_port
from registry_kit import report

from recursant.store.codec import encode
from recursant.store.keys import WORKER_EVENTS, WORKERS
from recursant.store.workers import Alive, LinkDown, LinkUp, Report, Snapshot, StoreError, StoreEvent, WorkerStore
from recursant.v1.worker_state_pb2 import WorkerPhase

# Nothing here takes that long; a test that hangs should not take for ever.
PATIENCE_S = 20.0


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[WorkerStore]:
    store = WorkerStore(redis_server.url)
    try:
        yield store
    finally:
        await store.close()


class Watcher:
    """Collects what a store's `watch` brings."""

    def __init__(self, events: AsyncGenerator[StoreEvent, None]) -> None:
        self.seen: list[StoreEvent] = []
        self._events = events
        self._changed = asyncio.Event()

    async def run(self) -> None:
        async with contextlib.aclosing(self._events) as events:
            async for event in events:
                self.seen.append(event)
                self._changed.set()

    async def until(self, wanted: Callable[[StoreEvent], bool]) -> StoreEvent:
        """The next event that is wanted; it and those before it are taken away."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for number, event in enumerate(self.seen):
                    if wanted(event):
                        del self.seen[: number + 1]
                        return event
                self.seen.clear()
                self._changed.clear()
                await self._changed.wait()

    async def until_a(self, kind: type[Any]) -> Any:
        return await self.until(lambda event: isinstance(event, kind))


@contextlib.asynccontextmanager
async def watching(store: WorkerStore) -> AsyncIterator[Watcher]:
    watcher = Watcher(store.watch())
    task = asyncio.create_task(watcher.run())
    try:
        yield watcher
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def client(server: RedisServer) -> "redis.Redis":
    return redis.Redis.from_url(server.url)


# --- writing and loading ---


async def test_a_published_report_can_be_loaded(store: WorkerStore, redis_server: RedisServer) -> None:
    await store.publish(report("w1", 1))
    await store.publish(report("w1", 2))
    await store.publish(report("w2", 7))
    assert sorted(await store.load(), key=lambda state: state.id) == [report("w1", 2), report("w2", 7)]
    with client(redis_server) as direct:
        assert direct.hget(WORKERS, "w1") == encode(report("w1", 2))


async def test_a_farewell_takes_the_worker_out(store: WorkerStore) -> None:
    await store.publish(report("w1"))
    await store.publish(report("w1", 2, phase=WorkerPhase.WORKER_PHASE_STOPPED))
    assert await store.load() == []


async def test_forgets(store: WorkerStore) -> None:
    await store.publish(report("w1"))
    await store.publish(report("w2"))
    await store.publish(report("w3"))
    await store.forget("w1", "w3")
    await store.forget("nobody")
    assert await store.load() == [report("w2")]


async def test_a_hash_of_any_length_is_read_in_pieces_and_up_to_a_bound(
    store: WorkerStore, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with client(redis_server) as direct:
        direct.hset(WORKERS, mapping={f"w{number}": encode(report(f"w{number}")) for number in range(5_000)})
    assert {state.id for state in await store.load()} == {f"w{number}" for number in range(5_000)}
    assert caplog.records == []
    monkeypatch.setattr("recursant.store.workers.MAX_LOADED", 2_000)
    loaded = await store.load()
    # Pieces come whole, and the server may make them somewhat longer than asked for.
    assert 2_000 <= len(loaded) < 4_000
    assert "reading only" in caplog.text


async def test_an_invalid_report_is_not_published(store: WorkerStore) -> None:
    with pytest.raises(ValueError, match="address"):
        await store.publish(report(address="nowhere"))
    assert await store.load() == []


async def test_what_cannot_be_read_is_left_out(
    store: WorkerStore, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    await store.publish(report("w1"))
    with client(redis_server) as direct:
        direct.hset(WORKERS, "rubbish", b"\xff\xfe rubbish")
        direct.hset(WORKERS, "empty", b"")
        direct.hset(WORKERS, "huge", b"\x0a" * 1_000_000)
        direct.hset(WORKERS, "another", encode(report("w9")))
        direct.hset(WORKERS, b"\xff", encode(report("w8")))
    with caplog.at_level(logging.WARNING):
        assert await store.load() == [report("w1")]
        assert await store.load() == [report("w1")]
    assert len(caplog.records) == 1  # bounded, however many there are


async def test_a_key_of_another_kind_is_an_error_not_a_crash(store: WorkerStore, redis_server: RedisServer) -> None:
    with client(redis_server) as direct:
        direct.set(WORKERS, "a string")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await store.load()
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await store.publish(report())


async def test_a_full_server_is_an_error_and_readers_hear_all_the_same(
    store: WorkerStore, redis_server: RedisServer
) -> None:
    with client(redis_server) as direct:
        direct.config_set("maxmemory", "1")
    async with watching(store) as watcher:
        await watcher.until_a(Snapshot)
        with pytest.raises(StoreError, match="maxmemory") as caught:
            await store.publish(report())
        assert "Qwen" not in str(caught.value)
        assert await watcher.until_a(Report) == Report(report())


async def test_nobody_there_is_an_error_at_once() -> None:
    store = WorkerStore(f"redis://127.0.0.1:{free_port()}")
    with pytest.raises(StoreError):
        await store.publish(report())
    with pytest.raises(StoreError):
        await store.load()
    await store.close()


async def test_a_server_that_hangs_holds_nobody_up(store: WorkerStore, redis_server: RedisServer) -> None:
    await store.publish(report())
    redis_server.pause()
    began = time.monotonic()
    outcomes = await asyncio.gather(
        *(store.publish(report(f"w{number}")) for number in range(100)), return_exceptions=True
    )
    # One timeout, not a hundred behind each other.
    assert time.monotonic() - began < PATIENCE_S
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    redis_server.resume()
    await store.publish(report("w1", 2))
    assert report("w1", 2) in await store.load()


@pytest.mark.parametrize("url", ["", "localhost:6379", "http://localhost"])
def test_refuses_what_is_no_url_of_redis(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        WorkerStore(url)


# --- following ---


async def test_follows_reports_and_farewells(store: WorkerStore) -> None:
    await store.publish(report("w1"))
    async with watching(store) as watcher:
        assert await watcher.until_a(LinkUp) == LinkUp()
        assert await watcher.until_a(Snapshot) == Snapshot([report("w1")])
        await store.publish(report("w1", 2))
        assert await watcher.until_a(Report) == Report(report("w1", 2))
        farewell = report("w1", 3, phase=WorkerPhase.WORKER_PHASE_STOPPED)
        await store.publish(farewell)
        assert await watcher.until_a(Report) == Report(farewell)


async def test_a_quiet_channel_still_shows_that_the_link_lives(store: WorkerStore) -> None:
    async with watching(store) as watcher:
        await watcher.until_a(Snapshot)
        assert await watcher.until_a(Alive) == Alive()
        assert await watcher.until_a(Alive) == Alive()


async def test_rubbish_on_the_channel_is_passed_over(store: WorkerStore, redis_server: RedisServer) -> None:
    async with watching(store) as watcher:
        await watcher.until_a(Snapshot)
        with client(redis_server) as direct:
            direct.publish(WORKER_EVENTS, b"\xff\xfe rubbish")
            direct.publish(WORKER_EVENTS, b"")
        await store.publish(report())
        assert await watcher.until_a(Report) == Report(report())
        assert not any(isinstance(event, LinkDown) for event in watcher.seen)


async def test_the_hash_is_read_again_now_and_then(
    store: WorkerStore, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recursant.store.workers.RELOAD_AFTER_S", 0.1)
    async with watching(store) as watcher:
        assert await watcher.until_a(Snapshot) == Snapshot([])
        with client(redis_server) as direct:
            direct.hset(WORKERS, "w1", encode(report("w1")))  # the message was lost
        assert await watcher.until(lambda event: event == Snapshot([report("w1")]))


async def test_a_server_that_is_killed_and_comes_back_empty(store: WorkerStore, redis_server: RedisServer) -> None:
    await store.publish(report("w1"))
    async with watching(store) as watcher:
        await watcher.until_a(Snapshot)
        for sequence in (2, 3):
            redis_server.kill()
            down = await watcher.until_a(LinkDown)
            assert down.reason
            redis_server.start()
            await watcher.until_a(LinkUp)
            assert await watcher.until_a(Snapshot) == Snapshot([])
            await store.publish(report("w1", sequence))
            assert await watcher.until_a(Report) == Report(report("w1", sequence))


async def test_a_server_that_comes_later(redis_server: RedisServer) -> None:
    redis_server.kill()
    store = WorkerStore(redis_server.url)
    async with watching(store) as watcher:
        await watcher.until_a(LinkDown)
        await asyncio.sleep(0.5)
        assert watcher.seen == []  # said once, however often it is tried
        redis_server.start()
        await watcher.until_a(LinkUp)
        assert await watcher.until_a(Snapshot) == Snapshot([])
    await store.close()


async def test_a_server_that_hangs_is_noticed_and_found_again(
    store: WorkerStore, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recursant.store.workers.RELOAD_AFTER_S", 3_600.0)
    async with watching(store) as watcher:
        await watcher.until_a(Snapshot)
        redis_server.pause()
        await watcher.until_a(LinkDown)
        redis_server.resume()
        await watcher.until_a(LinkUp)
        await watcher.until_a(Snapshot)
        await store.publish(report("w1"))
        assert await watcher.until_a(Report) == Report(report("w1"))


async def test_a_server_that_hangs_from_the_start(redis_server: RedisServer) -> None:
    redis_server.pause()
    store = WorkerStore(redis_server.url)
    async with watching(store) as watcher:
        await watcher.until_a(LinkDown)
        redis_server.resume()
        await watcher.until_a(LinkUp)
    await store.close()


async def test_connections_that_the_server_cuts_are_given_back(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recursant.store.workers.MAX_CONNECTIONS", 2)
    store = WorkerStore(redis_server.url)
    async with watching(store) as watcher:
        for sequence in (1, 2, 3):
            await watcher.until_a(LinkUp)
            await store.publish(report("w1", sequence))
            assert await watcher.until_a(Report) == Report(report("w1", sequence))
            with client(redis_server) as direct:
                direct.client_kill_filter(_type="pubsub")
            await watcher.until_a(LinkDown)
    await store.close()


async def test_stops_watching_in_any_state(store: WorkerStore, redis_server: RedisServer) -> None:
    async with watching(store) as watcher:
        await watcher.until_a(Snapshot)
    async with watching(store) as watcher:
        await watcher.until_a(Snapshot)
        redis_server.pause()
    redis_server.kill()
    async with watching(store) as watcher:
        await watcher.until_a(LinkDown)
