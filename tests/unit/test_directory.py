"""The fleet, live: real reporters, a real Redis-compatible server that dies and hangs, a directory that follows."""

import asyncio
import contextlib
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
from redis_server import RedisServer, free_port

from recursant.config.model import Config
from recursant.fleet.directory import FleetDirectory
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.store.codec import encode
from recursant.store.keys import WORKERS
from recursant.store.workers import WorkerStore
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState
from recursant.worker.reporter import Reporter

PATIENCE_S = 30.0
READY, MISSING, WARMING = WorkerStatus.READY, WorkerStatus.MISSING, WorkerStatus.WARMING


class Follower:
    """A directory, and what its subscribers were told."""

    def __init__(self, redis_url: str | None, **config: Any) -> None:
        self.directory = FleetDirectory(Config.model_validate({"redis": {"url": redis_url}} | config))
        self.mirror: dict[str, WorkerRecord] = {}
        # Worker id -> the statuses that it went through, one after the other; WARMING, with which each life begins,
        # is left out there and only there.
        self.history: dict[str, list[WorkerStatus]] = {}
        self.beats = 0
        self.directory.subscribe(self._on_record, self._on_gone)

    def _on_record(self, record: WorkerRecord) -> None:
        self.beats += 1
        self.mirror[record.worker_id] = record
        history = self.history.setdefault(record.worker_id, [])
        beginning = record.status is WARMING and history[-1:] != [READY]
        if history[-1:] != [record.status] and not beginning:
            history.append(record.status)

    def _on_gone(self, worker_id: str) -> None:
        del self.mirror[worker_id]

    def status(self, worker_id: str = "w1") -> WorkerStatus | None:
        record = self.directory.records.get(worker_id)
        return record.status if record else None

    def all_are(self, status: WorkerStatus, count: int) -> bool:
        return [record.status for record in self.directory.records.values()] == [status] * count

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - the directory has no event
                await asyncio.sleep(0.01)
        assert self.mirror == dict(self.directory.records)


@contextlib.asynccontextmanager
async def following(redis_url: str | None, **config: Any) -> AsyncIterator[Follower]:
    follower = Follower(redis_url, **config)
    task = asyncio.create_task(follower.directory.run())
    try:
        yield follower
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert task.cancelled()


class Crew:
    """Workers that report, until they are killed without a word."""

    def __init__(self, url: str, interval_ms: int) -> None:
        self._url = url
        self._interval_ms = interval_ms
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, *worker_ids: str, **changes: Any) -> None:
        for number, worker_id in enumerate(worker_ids):
            fields = {
                "address": f"10.0.{number // 250}.{number % 250 + 1}:8000",
                "phase": WorkerPhase.WORKER_PHASE_READY,
            }
            state = WorkerState(id=worker_id, **(fields | changes))
            reporter = Reporter(lambda state=state: state, redis_url=self._url, interval_ms=self._interval_ms)
            self._tasks[worker_id] = asyncio.create_task(reporter.run())

    async def kill(self, worker_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Reporter, "_say_farewell", lambda *_: asyncio.sleep(0))
            await self.stop(worker_id)

    async def stop(self, *worker_ids: str) -> None:
        tasks = [self._tasks.pop(worker_id) for worker_id in worker_ids or tuple(self._tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def crew(url: str, interval_ms: int = 200) -> AsyncIterator[Crew]:
    workers = Crew(url, interval_ms)
    try:
        yield workers
    finally:
        await workers.stop()


async def test_joins_falls_silent_comes_back_and_leaves(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = redis_server.url
    async with following(url) as fleet, crew(url) as workers:
        await fleet.until(lambda: fleet.directory.loaded)
        assert fleet.directory.redis_up
        workers.start("w1", "w2", "w3", "w4")
        await fleet.until(lambda: fleet.all_are(READY, 4))
        await workers.kill("w1", monkeypatch)
        await fleet.until(lambda: fleet.status("w1") is MISSING)
        workers.start("w1")
        await fleet.until(lambda: fleet.status("w1") is READY)
        await workers.stop("w2")
        await fleet.until(lambda: fleet.status("w2") is None)
        # Nothing else moved.
        assert fleet.history == {"w1": [READY, MISSING, READY], "w2": [READY], "w3": [READY], "w4": [READY]}


async def test_a_lone_worker_is_missed_too(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = redis_server.url
    async with following(url) as fleet, crew(url) as workers:
        workers.start("w1")
        await fleet.until(lambda: fleet.status() is READY)
        await workers.kill("w1", monkeypatch)
        await fleet.until(lambda: fleet.status() is MISSING)


async def test_every_beat_is_told(redis_server: RedisServer) -> None:
    url = redis_server.url
    async with following(url) as fleet, crew(url) as workers:
        workers.start("w1")
        await fleet.until(lambda: fleet.beats >= 5)
        sequence = fleet.mirror["w1"].state.sequence
        await fleet.until(lambda: fleet.mirror["w1"].state.sequence > sequence)


async def test_redis_killed_and_restarted_empty_takes_nobody_out(redis_server: RedisServer) -> None:
    url = redis_server.url
    names = [f"w{number}" for number in range(8)]
    async with following(url) as fleet, crew(url) as workers:
        workers.start(*names)
        await fleet.until(lambda: fleet.all_are(READY, 8))
        redis_server.kill()
        await fleet.until(lambda: not fleet.directory.redis_up)
        await asyncio.sleep(1.5)  # well beyond three beats
        redis_server.start()
        await fleet.until(lambda: fleet.directory.redis_up)
        seen = {name: fleet.mirror[name].state.sequence for name in names}
        await fleet.until(lambda: all(fleet.mirror[name].state.sequence > seen[name] for name in names))
        await asyncio.sleep(3.0)  # beyond the grace period
        assert fleet.history == {name: [READY] for name in names}
        # And it is all in Redis again.
        with redis.Redis.from_url(url) as direct:
            assert direct.hlen(WORKERS) == 8


async def test_redis_that_hangs_takes_nobody_out(redis_server: RedisServer) -> None:
    url = redis_server.url
    async with following(url) as fleet, crew(url) as workers:
        workers.start("w1")
        await fleet.until(lambda: fleet.status() is READY)
        for _ in range(2):
            redis_server.pause()
            await fleet.until(lambda: not fleet.directory.redis_up)
            redis_server.resume()
            await fleet.until(lambda: fleet.directory.redis_up)
        redis_server.pause()
        await asyncio.sleep(1.0)  # shorter than it takes to notice
        redis_server.resume()
        sequence = fleet.mirror["w1"].state.sequence
        await fleet.until(lambda: fleet.mirror["w1"].state.sequence > sequence + 10)
        assert fleet.history == {"w1": [READY]}


async def test_redis_absent_at_the_start(redis_server: RedisServer) -> None:
    redis_server.kill()
    static = [{"host": "10.0.0.1", "id": "static", "models": ["qwen"]}]
    async with following(redis_server.url, workers=static) as fleet, crew(redis_server.url) as workers:
        workers.start("w1")
        await fleet.until(lambda: fleet.directory.loaded)
        assert not fleet.directory.redis_up
        assert not fleet.directory.settled(time.monotonic() + 1e6)
        assert fleet.directory.snapshot_age_s(time.monotonic()) == math.inf
        # Nobody can be asked, so what is configured serves.
        assert fleet.status("static") is READY
        redis_server.start()
        await fleet.until(lambda: fleet.status("w1") is READY)
        assert fleet.directory.redis_up
        assert fleet.directory.settled(time.monotonic() + 2.0)
        assert fleet.directory.snapshot_age_s(time.monotonic()) < PATIENCE_S
        assert fleet.status("static") is READY
        # Nobody scrapes it.
        await fleet.until(lambda: fleet.status("static") is WARMING)


async def test_without_redis_there_are_the_configured_workers() -> None:
    async with following(None, workers=[{"host": "10.0.0.1", "id": "static"}]) as fleet:
        await fleet.until(lambda: fleet.directory.loaded)
        assert not fleet.directory.redis_up
        assert fleet.directory.settled(time.monotonic())
        assert fleet.status("static") is READY


async def test_malformed_entries_are_passed_over(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as direct:
        direct.hset(WORKERS, mapping={"a": b"\xff", "b": b"", "c": b"x" * 100_000, "d": "text"})
    async with following(redis_server.url) as fleet, crew(redis_server.url) as workers:
        workers.start("w1")
        await fleet.until(lambda: fleet.status("w1") is READY)
        assert set(fleet.mirror) == {"w1"}


async def test_a_restarted_reader_knows_the_fleet_at_once_and_finds_out_who_is_dead(redis_server: RedisServer) -> None:
    url = redis_server.url
    dead = WorkerState(
        id="dead",
        address="10.9.9.9:1",
        phase=WorkerPhase.WORKER_PHASE_READY,
        incarnation="a",
        sequence=7,
        report_interval_ms=200,
    )
    store = WorkerStore(url)
    await store.publish(dead)
    async with crew(url) as workers:
        workers.start("w1")
        async with asyncio.timeout(PATIENCE_S):
            while not any(one.id == "w1" and one.phase == dead.phase for one in await store.load()):  # noqa: ASYNC110 - Redis has no event
                await asyncio.sleep(0.01)
        async with following(url) as fleet:
            await fleet.until(lambda: fleet.directory.loaded)
            assert fleet.all_are(READY, 2)
            await fleet.until(lambda: fleet.status("dead") is MISSING)
            assert fleet.history["w1"] == [READY]
    await store.close()


async def test_the_living_find_room_among_thousands_of_dead_that_then_leave_redis(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recursant.fleet.registry.LOAD_TRUST_S", 2.0)

    def dead(number: int, interval_ms: int) -> bytes:
        return encode(
            WorkerState(
                id=f"dead{number}",
                address=f"10.9.{number >> 8}.{number & 255}:1",
                phase=WorkerPhase.WORKER_PHASE_READY,
                incarnation="a",
                sequence=7,
                report_interval_ms=interval_ms,
            )
        )

    url = redis_server.url
    with redis.Redis.from_url(url) as direct:
        direct.hset(WORKERS, mapping={f"dead{number}": dead(number, 3_600_000) for number in range(3_000)})
        limits = {"limits": {"workers": 1_000}, "liveness": {"forget_after_ms": 1_000}}
        async with following(url, **limits) as fleet, crew(url) as workers:
            await fleet.until(lambda: len(fleet.mirror) == 1_000)
            workers.start("w1")
            workers.start("w2")
            await fleet.until(lambda: fleet.status("w1") is fleet.status("w2") is READY)
            assert len(fleet.mirror) == 1_000
            with caplog.at_level(logging.INFO, logger="recursant.fleet.directory"):
                # They said that they report once an hour.
                await fleet.until(lambda: set(fleet.mirror) == {"w1", "w2"})
                await fleet.until(lambda: direct.hlen(WORKERS) <= 3_000 - 998 + 2)
            assert any(record.message.startswith("998 workers are gone") for record in caplog.records)


async def test_who_is_missing_for_long_is_taken_out_of_redis(redis_server: RedisServer) -> None:
    dead = WorkerState(
        id="dead",
        address="10.9.9.9:1",
        phase=WorkerPhase.WORKER_PHASE_READY,
        incarnation="a",
        sequence=7,
        report_interval_ms=200,
    )
    with redis.Redis.from_url(redis_server.url) as direct:
        direct.hset(WORKERS, "dead", encode(dead))
        async with following(redis_server.url, liveness={"forget_after_ms": 1_000}) as fleet:
            await fleet.until(lambda: fleet.history.get("dead") == [READY, MISSING])
            await fleet.until(lambda: not fleet.mirror)
            await fleet.until(lambda: not direct.hlen(WORKERS))


async def test_host_names_are_resolved_and_resolved_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recursant.fleet.resolve.REFRESH_S", 0.1)
    monkeypatch.setattr("recursant.fleet.resolve.RETRY_S", 0.1)
    book: dict[str, list[str] | int] = {"node": socket.EAI_NONAME}

    async def getaddrinfo(host: str, port: object, **options: Any) -> list[tuple[Any, ...]]:
        entry = book[host]
        if isinstance(entry, int):
            raise socket.gaierror(entry, "no luck")
        return [(socket.AF_INET, options["type"], 6, "", (address, 0)) for address in entry]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)

    def endpoint() -> str | None:
        return fleet.mirror["w1"].endpoint

    async with following(redis_server.url) as fleet, crew(redis_server.url) as workers:
        workers.start("w1", address="node:8000")
        await fleet.until(lambda: fleet.status() is WorkerStatus.UNRESOLVED)
        book["node"] = ["10.0.0.7", "10.0.0.6", "fd00::1"]
        await fleet.until(lambda: fleet.status() is READY)
        assert endpoint() == "10.0.0.6:8000"
        book["node"] = ["10.0.0.5", "10.0.0.6"]
        await asyncio.sleep(0.5)
        assert endpoint() == "10.0.0.6:8000"  # valid still
        book["node"] = socket.EAI_AGAIN  # the name server is away
        await asyncio.sleep(0.5)
        assert endpoint() == "10.0.0.6:8000"
        book["node"] = ["fd00::1"]
        await fleet.until(lambda: endpoint() == "[fd00::1]:8000")
        book["node"] = socket.EAI_NONAME
        await fleet.until(lambda: fleet.status() is WorkerStatus.UNRESOLVED)
        assert fleet.history["w1"] == [WorkerStatus.UNRESOLVED, READY, WorkerStatus.UNRESOLVED]


async def test_the_real_resolver_knows_this_machine(redis_server: RedisServer) -> None:
    async with following(redis_server.url, workers=[{"host": "localhost", "port": 8000, "id": "w1"}]) as fleet:
        await fleet.until(lambda: fleet.mirror["w1"].endpoint == "127.0.0.1:8000")


async def test_a_name_that_cannot_even_be_asked_for_stays_unresolved(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(redis_server.url) as fleet, crew(redis_server.url) as workers:
        workers.start("w1", address="x" * 64 + ":8000")  # RFC 1035: a label has 63 characters at most
        workers.start("w2", address="localhost:8000")
        await fleet.until(lambda: fleet.status("w2") is READY)
        await fleet.until(lambda: "cannot resolve" in caplog.text)
        assert fleet.status("w1") is WorkerStatus.UNRESOLVED


async def test_two_hundred_workers(redis_server: RedisServer) -> None:
    url = redis_server.url
    names = [f"w{number}" for number in range(200)]
    # All of them share this process: at five beats a second each, a slow machine would make some really late.
    async with following(url) as fleet, crew(url, interval_ms=1_000) as workers:
        workers.start(*names)
        await fleet.until(lambda: fleet.all_are(READY, 200))
        beats = fleet.beats
        await fleet.until(lambda: fleet.beats >= beats + 400)
        redis_server.restart_empty()
        seen = {name: fleet.mirror[name].state.sequence for name in names}
        await fleet.until(lambda: all(fleet.mirror[name].state.sequence > seen[name] + 2 for name in names))
        assert fleet.history == {name: [READY] for name in names}


async def test_the_number_of_workers_is_bounded(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    url = redis_server.url
    async with following(url, limits={"workers": 2}) as fleet, crew(url) as workers:
        workers.start("w1", "w2", "w3")
        await fleet.until(lambda: "limits.workers" in caplog.text)
        await fleet.until(lambda: fleet.all_are(READY, 2))


async def test_who_subscribes_later_is_told_of_everybody() -> None:
    directory = FleetDirectory(Config.model_validate({"workers": [{"host": "10.0.0.1", "id": "static"}]}))
    seen: list[str] = []
    directory.subscribe(lambda record: seen.append(record.worker_id), seen.remove)
    assert seen == ["static"]


def test_refuses_what_is_no_url_of_redis() -> None:
    config = Config()
    broken = config.model_copy(
        update={"redis": config.redis.model_copy(update={"url": f"http://127.0.0.1:{free_port()}"})}
    )
    with pytest.raises(ValueError, match="URL"):
        FleetDirectory(broken)
