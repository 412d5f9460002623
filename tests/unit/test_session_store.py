"""Sessions in a real Redis: kept, told, read again; and nothing that somebody else writes there does any harm."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis_server import RedisServer

from extproc.session_sharing import MOST_WAITING, SessionSharing
from recursant.config.model import AffinityBounds
from recursant.routing.affinity import Affinity, Trail
from recursant.routing.affinity_tables import Place
from recursant.store.exchange import StoreError
from recursant.store.keys import SESSION_EVENTS, SESSIONS_OF
from recursant.store.sessions import MOST_SHARED, STRETCHES, SessionStore, decode, encode

TTL_S = 400.0
WAIT_S = 20.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    started = RedisServer(tmp_path).start()
    try:
        yield started
    finally:
        started.kill()


class Clock:
    """Unix time, to be set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def store_of(server: RedisServer, clock: Clock, sender: str = "me") -> AsyncIterator[SessionStore]:
    store = SessionStore(server.url, sender=sender, ttl_s=lambda: TTL_S, wall_clock=clock)
    try:
        yield store
    finally:
        await store.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what it looks at does not tell
            await asyncio.sleep(0.01)


def place(worker: str, tokens: int = 1) -> Place:
    return Place(worker, tokens, 0.0)


async def test_what_is_written_is_read_again_the_youngest_word_first(server: RedisServer) -> None:
    clock = Clock()
    async with store_of(server, clock) as store:
        await store.write({b"a": place("w1", 10), b"b": place("gpu host:8000", 20)})
        clock.now += TTL_S / 2
        await store.write({b"a": place("w2", 30)})
        found = await store.load(100, now=50.0)
        assert found == {
            b"a": Place("w2", 30, 50.0),
            b"b": Place("gpu host:8000", 20, 50.0 - TTL_S / 2),
        }
        assert list(await store.load(1, now=50.0)) == [b"a"]


async def test_what_is_older_than_its_time_is_gone(server: RedisServer) -> None:
    clock = Clock()
    async with store_of(server, clock) as store, Redis.from_url(server.url) as redis:
        await store.write({b"a": place("w1")})
        (key,) = await redis.keys(f"{SESSIONS_OF}*")
        assert 0 < await redis.ttl(key) <= TTL_S * (1 + 1 / STRETCHES) + 1
        clock.now += TTL_S * (1 + 2 / STRETCHES)
        assert await store.load(100, now=0.0) == {}


async def test_what_is_malformed_there_is_left_out(server: RedisServer) -> None:
    clock = Clock()
    async with store_of(server, clock) as store, Redis.from_url(server.url) as redis:
        await store.write({b"a": place("w1")})
        (key,) = await redis.keys(f"{SESSIONS_OF}*")
        for field, value in {"b": "no number w1", "c": "5 ", "d": "5", "e": "-1 w1", "f": "5 " + "w" * 1_000}.items():
            await redis.hset(key, field, value)
        assert list(await store.load(100, now=0.0)) == [b"a"]


async def test_a_stretch_that_is_full_takes_no_more_and_still_tells(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recursant.store.sessions.MOST_KEPT", 2)
    clock = Clock()
    async with store_of(server, clock) as store, store_of(server, clock, "other") as other:
        await store.write({b"a": place("w1"), b"b": place("w1")})
        async with Redis.from_url(server.url) as redis, contextlib.aclosing(other.follow()) as batches:
            heard = asyncio.ensure_future(anext(batches))
            async with asyncio.timeout(WAIT_S):
                while not (await redis.pubsub_numsub(SESSION_EVENTS))[0][1]:  # noqa: ASYNC110 - Redis does not tell
                    await asyncio.sleep(0.01)
            await store.write({b"c": place("w2")})
            async with asyncio.timeout(WAIT_S):
                assert list(await heard) == [b"c"]
        assert set(await store.load(100, now=0.0)) == {b"a", b"b"}
        clock.now += TTL_S
        await store.write({b"d": place("w1")})
        assert b"d" in await store.load(100, now=0.0)


async def test_a_redis_that_hangs_is_given_up(server: RedisServer) -> None:
    async with store_of(server, Clock()) as store:
        await store.write({b"a": place("w1")})
        server.pause()
        try:
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(StoreError):
                    await store.write({b"b": place("w1")})
                with pytest.raises(StoreError):
                    await store.load(100, now=0.0)
        finally:
            server.resume()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"a": 1}',
        b'["x", 5]',
        b'["x", [["zz", "w1", 1]]]',
        b'["x", [["00", "w1", -1]]]',
        b'["x", [["00", "", 1]]]',
        b'["x", [["00", "w1"]]]',
        b'["x", [["", "w1", 1]]]',
        json.dumps(["x", [["00", "w1", 1]] * (MOST_SHARED + 1)]).encode(),
    ],
)
def test_a_malformed_batch_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(data, 0.0)


def test_a_batch_comes_as_it_was_sent_but_for_the_time() -> None:
    sent = {b"\x00\xff": Place("w1", 7, 1.0), b"b": Place("wörker", 0, 2.0)}
    sender, found = decode(encode("me", sent), 9.0)
    assert (sender, found) == ("me", {b"\x00\xff": Place("w1", 7, 9.0), b"b": Place("wörker", 0, 9.0)})


async def test_gateways_agree_and_a_new_one_knows_what_was(server: RedisServer) -> None:
    clock = Clock()
    here, there = Affinity(AffinityBounds()), Affinity(AffinityBounds())
    async with asyncio.TaskGroup() as tasks:
        sharings = [
            SessionSharing(affinity, SessionStore(server.url, sender=name, ttl_s=lambda: TTL_S, wall_clock=clock), 100)
            for name, affinity in (("here", here), ("there", there))
        ]
        running = [tasks.create_task(each.run()) for each in sharings]
        async with Redis.from_url(server.url) as redis:
            async with asyncio.timeout(WAIT_S):
                while (await redis.pubsub_numsub(SESSION_EVENTS))[0][1] < 2:  # noqa: ASYNC110 - Redis does not tell
                    await asyncio.sleep(0.01)
            await redis.publish(SESSION_EVENTS, b"not a batch")
        here.placed(Trail(b"a"), "w1", 10, 0.0)
        await until(lambda: len(there.sessions) == 1)
        assert there.leaning(Trail(b"a"), 10, 1.0) is not None
        # What is still to be told at the end is told.
        here.placed(Trail(b"last"), "w2", 10, 0.0)
        for task in running:
            task.cancel()
    assert [each.unshared for each in sharings] == [0, 0]
    new = Affinity(AffinityBounds())
    store = SessionStore(server.url, sender="new", ttl_s=lambda: TTL_S, wall_clock=clock)
    await SessionSharing(new, store, 100).load()
    await store.close()
    assert {session for session, _ in new.sessions.items()} == {b"a", b"last"}


async def test_without_redis_nothing_waits_and_what_is_not_told_is_counted(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    affinity = Affinity(AffinityBounds())
    store = SessionStore(server.url, sender="me", ttl_s=lambda: TTL_S)
    sharing = SessionSharing(affinity, store, 100)
    await sharing.load()
    for number in range(MOST_WAITING + 5):
        affinity.placed(Trail(b"%d" % number), "w1", 1, 0.0)
    assert sharing.unshared == 5
    with pytest.raises(StoreError):
        await store.write({b"a": place("w1")})
    task = asyncio.create_task(sharing.run())
    await until(lambda: sharing.unshared > 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(affinity.sessions) == MOST_WAITING + 5
