"""Isolation shared between processes through a real Redis-compatible server, and without it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import redis
from fleet_kit import record
from redis_server import RedisServer

from recursant.config.model import Config
from recursant.fleet.evidence import Evidence, Reason
from recursant.fleet.isolation import Isolation, Phase
from recursant.fleet.ward import Ward
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.store.exchange import StoreError
from recursant.store.isolation import IsolationStore, decode, encode
from recursant.store.keys import ISOLATED, ISOLATION_OF

PATIENCE_S = 20.0
CUDA = "CUDA error: an illegal memory access was encountered"


class Process:
    """A ward with a fleet of four, as one service has it."""

    def __init__(self, url: str | None, by: str = "one", *, judges: bool = True, **rules: Any) -> None:
        config = Config.model_validate({"redis": {"url": url}, "isolation": rules})
        self.fleet: dict[str, WorkerRecord] = {f"w{n}": record(f"w{n}") for n in range(4)}
        self.told: list[set[str]] = []
        self.ward = Ward(config, by=by, records=lambda: self.fleet, tell=self.told.append, judges=judges)

    def fail(self, worker: str = "w0", times: int = 3, evidence: Evidence = Evidence.CUDA_ERROR) -> None:
        for _ in range(times):
            self.ward.witness(worker, evidence, text=CUDA)

    def isolated(self) -> set[str]:
        return {worker for worker, standing in self.ward.standings.items() if standing.phase is Phase.ISOLATED}


@contextlib.asynccontextmanager
async def running(*processes: Process) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(process.ward.run()) for process in processes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


def test_three_cuda_errors_take_a_worker_out_with_the_text_kept() -> None:
    one = Process(None)
    one.fail(times=2)
    assert one.ward.marked(one.fleet["w0"]).status is WorkerStatus.READY
    one.fail(times=1)
    marked = one.ward.marked(one.fleet["w0"])
    assert marked.status is WorkerStatus.ISOLATED
    assert marked.standing is not None
    assert marked.standing.isolation.text == f"3 CUDA errors in a row: {CUDA}"
    assert one.told == [{"w0"}]
    figures = one.ward.figures()
    assert (figures.decided["cuda"], figures.isolated, figures.spared) == (1, 1, 0)


def test_only_the_share_is_taken_out_and_the_rest_is_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    one = Process(None, max_share=0.5)
    for worker in one.fleet:
        one.fail(worker)
    assert len(one.isolated()) == 2
    assert one.ward.figures().spared == 2
    assert "ALARM" in caplog.text
    assert one.ward.marked(one.fleet["w3"]).status is WorkerStatus.READY


def test_who_only_follows_or_is_switched_off_judges_nobody() -> None:
    for process in (Process(None, judges=False), Process(None, enabled=False)):
        process.fail()
        assert process.isolated() == set()


def test_a_full_queue_is_not_taken_for_a_dead_worker() -> None:
    one = Process(None)
    one.fleet["w0"] = record("w0", running_requests=3)
    one.fail("w0", 20, Evidence.PASSED_OVER)
    one.fail("w1", 20, Evidence.PASSED_OVER)
    assert one.isolated() == {"w1"}


def test_a_worker_that_generates_is_not_taken_for_a_dead_one() -> None:
    one = Process(None)
    one.fleet["w0"] = record("w0", token_rate=20.0)
    for worker in ("w0", "w1"):
        one.fail(worker, 10, Evidence.NO_ANSWER)
    assert one.isolated() == {"w1"}


def test_evidence_about_nobody_is_nothing() -> None:
    one = Process(None)
    one.fail("stranger")
    assert one.isolated() == set()


async def test_every_process_learns_of_it_and_of_its_release(redis_server: RedisServer) -> None:
    one, other = Process(redis_server.url), Process(redis_server.url, "other", judges=False)
    async with running(one, other):
        one.fail()
        await until(lambda: other.isolated() == {"w0"})
        known = other.ward.standings["w0"].isolation
        assert (known.reason, known.by, known.text) == (Reason.CUDA, "one", f"3 CUDA errors in a row: {CUDA}")
        await other.ward.release("w0", by="somebody")
        await until(lambda: one.isolated() == set())
        await other.ward.isolate("w1", 60.0, "looks odd", by="somebody")
        await until(lambda: one.isolated() == {"w1"})


async def test_every_process_lets_a_drained_worker_finish(redis_server: RedisServer) -> None:
    one, other = Process(redis_server.url), Process(redis_server.url, "other", judges=False)
    other.fleet["w1"] = replace(other.fleet["w1"], static=True)
    async with running(one, other):
        await one.ward.drain("w0", "driver update", by="operator")
        assert one.ward.marked(one.fleet["w0"]).status is WorkerStatus.DRAINING
        await until(lambda: other.ward.marked(other.fleet["w0"]).status is WorkerStatus.DRAINING)
        assert other.ward.standings["w0"].isolation.text == "driver update"
        # It drains, which is another thing than to be isolated.
        assert (other.ward.figures().isolated, other.isolated()) == (0, set())
        # A restart ends it, for both; one that is scraped has to be released.
        await other.ward.drain("w1", "", by="operator")
        for process in (one, other):
            for worker in ("w0", "w1"):
                process.fleet[worker] = record(worker, incarnation="second")
        await until(lambda: one.ward.standings.keys() == other.ward.standings.keys() == {"w1"})
        await one.ward.release("w1", by="operator")
        await until(lambda: not other.ward.standings)


async def test_who_starts_later_knows_before_it_is_loaded(redis_server: RedisServer) -> None:
    one = Process(redis_server.url)
    async with running(one):
        one.fail()
        with redis.Redis.from_url(redis_server.url) as client:
            await until(lambda: client.exists(f"{ISOLATION_OF}w0"))
            value = json.loads(client.get(f"{ISOLATION_OF}w0"))  # type: ignore[arg-type]
            left_ms = client.pttl(f"{ISOLATION_OF}w0")
    assert (value["reason"], value["released"]) == ("cuda", False)
    # Ten minutes and a trial of one.
    assert 600_000 < left_ms <= 660_000  # type: ignore[operator]
    late = Process(redis_server.url, "late")
    async with running(late):
        await until(lambda: late.ward.loaded)
        assert late.isolated() == {"w0"}


async def test_redis_may_go_and_come_back_empty(redis_server: RedisServer) -> None:
    one, other = Process(redis_server.url), Process(redis_server.url, "other")
    async with running(one, other):
        one.fail("w0")
        await until(lambda: other.isolated() == {"w0"})
        redis_server.kill()
        one.fail("w1")
        assert one.isolated() == {"w0", "w1"}
        with pytest.raises(StoreError):
            await one.ward.release("w0", by="somebody")
        assert one.isolated() == {"w0", "w1"}
        redis_server.start()
        await until(lambda: other.isolated() == {"w0", "w1"})


async def test_a_ward_without_its_redis_is_loaded_all_the_same() -> None:
    one = Process("redis://127.0.0.1:1/0")
    async with running(one):
        await until(lambda: one.ward.loaded)


async def test_the_store_reads_what_it_wrote_and_leaves_rubbish_out(redis_server: RedisServer) -> None:
    store = IsolationStore(redis_server.url)
    value = Isolation("w/1", "a", Reason.OOM, "text", 5, 110.0, 170.0, 2, "extproc")
    with redis.Redis.from_url(redis_server.url) as client:
        await store.write([value], 100.0)
        client.set(f"{ISOLATION_OF}w2", b"{")
        client.sadd(ISOLATED, "w2", "w3")
        (found,) = await store.load(200.0)
        # What has no key is taken out of the index.
        assert client.sismember(ISOLATED, "w3") == 0
    assert found.since_ms == 5
    assert (found.worker_id, found.reason, found.level, found.by) == ("w/1", Reason.OOM, 2, "extproc")
    assert found.until_s == pytest.approx(210.0, abs=5.0)
    assert found.gone_s - found.until_s == pytest.approx(60.0)
    await store.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [("reason", "whim"), ("text", "x" * 501), ("since_ms", -1), ("level", True), ("by", None), ("trial_ms", 1.5)],
)
def test_a_value_is_taken_whole_or_not_at_all(field: str, value: object) -> None:
    fields = json.loads(encode(Isolation("w1", "a", Reason.OOM, "", 5, 110.0, 170.0)))
    assert decode("w1", json.dumps(fields).encode(), 1_000, 0.0).gone_s == 1.0
    with pytest.raises(ValueError):  # noqa: PT011 - each field has words of its own
        decode("w1", json.dumps(fields | {field: value}).encode(), 1_000, 0.0)
    with pytest.raises(ValueError, match="no JSON object"):
        decode("w1", b"[]", 1_000, 0.0)
