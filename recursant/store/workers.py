"""The workers' reports in Redis: written, loaded, followed. Only commands of Redis 7.0.

Every wait is bounded: nobody hangs here because Redis does.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from recursant.store.backoff import Backoff
from recursant.store.codec import decode, encode
from recursant.store.exchange import (
    REDIS_ERRORS,
    TIMEOUT_S,
    StoreError,
    bounded,
    cancellations_so_far,
    connection_pool,
    raise_if_cancelled_since,
    reason_of,
)
from recursant.store.keys import WORKER_EVENTS, WORKERS
from recursant.store.quiet_log import QuietLog
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState

__all__ = [
    "TIMEOUT_S",
    "Alive",
    "LinkDown",
    "LinkUp",
    "Report",
    "Snapshot",
    "StoreError",
    "StoreEvent",
    "WorkerStore",
]

# For the whole hash, which may be megabytes.
LOAD_TIMEOUT_S: Final = 5.0
# Connections for commands.
MAX_CONNECTIONS: Final = 16
# The channel is asked for a sign of life when it was quiet for this long: well within the 600 ms of silence that
# make a worker missing, so that a hung server is never taken for a silent worker.
PING_AFTER_S: Final = 0.1
# Quiet for this long in spite of that: the link is down.
DEAD_AFTER_S: Final = 2.0
# The hash is read again after this long, plus up to as much by chance: whatever a lost message changed heals then.
RELOAD_AFTER_S: Final = 5.0
RECONNECT_FIRST_S: Final = 0.1
# Below the grace period of liveness, so that readers and workers are back before anybody is judged.
RECONNECT_LONGEST_S: Final = 1.0

# Reports that one load takes, as many as `limits.workers` can allow; a live worker that is not among them is heard all
# the same.
MAX_LOADED: Final = 100_000

# Reports asked for at once, and decoded before others get their turn.
_LOAD_COUNT: Final = 1_000
_LOAD_SLICE: Final = 100
_STOPPED: Final = WorkerPhase.WORKER_PHASE_STOPPED
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The store answers and is followed; a `Snapshot` comes next."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The store is away. What is known stays; `LinkUp` comes when it is back."""

    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Last reports of workers: of all in the store when it comes after `LinkUp`, of some of them later."""

    states: list[WorkerState]


@dataclass(frozen=True, slots=True)
class Report:
    """One report, as it was published."""

    state: WorkerState


@dataclass(frozen=True, slots=True)
class Alive:
    """The store answered although no worker had anything to say."""


StoreEvent = LinkUp | LinkDown | Snapshot | Report | Alive


class WorkerStore:
    """What the product does with workers in Redis. Connects when first used."""

    def __init__(self, url: str) -> None:
        """Take the URL of the server: `redis://`, `rediss://` or `unix://`.

        Raises:
            ValueError: it is none.
        """
        self._pool = connection_pool(url, MAX_CONNECTIONS)
        self._redis: Redis = Redis(connection_pool=self._pool)
        self._malformed = QuietLog(_log)

    async def publish(self, state: WorkerState) -> None:
        """Write a report and tell the readers, in one round trip. STOPPED takes the worker out of the hash.

        Raises:
            StoreError: it may not have arrived.
            ValueError: the report is not valid; names the field.
        """
        data = encode(state)
        async with bounded(TIMEOUT_S), self._redis.pipeline(transaction=False) as pipe:
            if state.phase == _STOPPED:
                pipe.hdel(WORKERS, state.id)
            else:
                pipe.hset(WORKERS, state.id, data)
            pipe.publish(WORKER_EVENTS, data)
            # Its own error text would repeat the whole command.
            results = await pipe.execute(raise_on_error=False)
        for result in results:
            if isinstance(result, Exception):
                raise StoreError(reason_of(result))

    async def load(self) -> list[WorkerState]:
        """The last report of every worker, `MAX_LOADED` at most; what cannot be read is left out with a warning.

        Raises:
            StoreError: the hash cannot be read.
        """
        states: dict[str, WorkerState] = {}
        cursor = 0
        async with bounded(LOAD_TIMEOUT_S):
            while True:
                cursor, piece = await self._piece(cursor)
                # The server may give an entry twice while the hash grows.
                states.update((state.id, state) for state in piece)
                if cursor == 0 or self._is_enough(len(states)):
                    return list(states.values())

    async def _piece(self, cursor: int) -> tuple[int, list[WorkerState]]:
        """The reports from `cursor` on, and where to go on: 0 at the end. Holds up neither the server nor us for long.

        Raises:
            StoreError: they cannot be read.
        """
        async with bounded(TIMEOUT_S):
            cursor, entries = cast(
                "tuple[int, dict[bytes, bytes]]", await self._redis.hscan(WORKERS, cursor, count=_LOAD_COUNT)
            )
        states: list[WorkerState] = []
        for number, (worker_id, data) in enumerate(entries.items()):
            if number % _LOAD_SLICE == 0:
                await asyncio.sleep(0)
            state = self._decode(data)
            if state is None:
                continue
            if state.id.encode() != worker_id:
                self._malformed.warning(
                    "ignoring the report under %.200r: it says to be of %.200r", worker_id, state.id
                )
            else:
                states.append(state)
        return cursor, states

    def _is_enough(self, loaded: int) -> bool:
        if loaded < MAX_LOADED:
            return False
        self._malformed.warning("reading only %d of the workers' reports in Redis", loaded)
        return True

    async def forget(self, *worker_ids: str) -> None:
        """Take workers that are gone for good out of the hash. One that lives is back there with its next report.

        Raises:
            StoreError: they may still be there.
        """
        async with bounded(TIMEOUT_S):
            await self._redis.hdel(WORKERS, *worker_ids)

    async def watch(self) -> AsyncGenerator[StoreEvent, None]:
        """Follow the workers for ever, over every loss of the server.

        Begins with `LinkUp` or `LinkDown`. Close it (`contextlib.aclosing`) when done.
        """
        backoff = Backoff(RECONNECT_FIRST_S, RECONNECT_LONGEST_S)
        told_down = False
        cancellations = cancellations_so_far()
        while True:
            raise_if_cancelled_since(cancellations)
            pubsub = self._redis.pubsub()
            try:
                await self._subscribe(pubsub)
                # After the subscription, so that nothing falls between the two.
                states = await self.load()
                backoff.reset()
                told_down = False
                yield LinkUp()
                yield Snapshot(states)
                pace = _Pace(time.monotonic())
                # Where reading the hash again goes on, and how many of its reports came so far; 0 while it is not read.
                cursor = loaded = 0
                while True:
                    message = await pubsub.get_message(timeout=0.0 if cursor else PING_AFTER_S)
                    raise_if_cancelled_since(cancellations)
                    now = time.monotonic()
                    if message is not None:
                        pace.heard(now)
                        yield self._event(message)
                    if pace.ping_due(now):
                        await pubsub.ping()
                    # Piece by piece, so that beats are heard meanwhile.
                    if cursor or pace.reload_due(now):
                        cursor, states = await self._piece(cursor)
                        loaded = loaded + len(states) if cursor else 0
                        if self._is_enough(loaded):
                            cursor = loaded = 0
                        yield Snapshot(states)
            except (StoreError, *REDIS_ERRORS) as error:
                if not told_down:
                    told_down = True
                    yield LinkDown(reason_of(error))
            finally:
                with contextlib.suppress(*REDIS_ERRORS):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(backoff.next())

    async def close(self) -> None:
        """Close all connections."""
        # A server that hangs is not waited for.
        with contextlib.suppress(*REDIS_ERRORS):
            await self._redis.aclose()
            await self._pool.aclose()

    async def _subscribe(self, pubsub: PubSub) -> None:
        async with bounded(TIMEOUT_S):
            await pubsub.subscribe(WORKER_EVENTS)
            await pubsub.get_message(timeout=None)  # its confirmation

    def _event(self, message: dict[str, Any]) -> StoreEvent:
        if message["type"] != "message":
            return Alive()
        state = self._decode(message["data"])
        return Alive() if state is None else Report(state)

    def _decode(self, data: bytes) -> WorkerState | None:
        try:
            return decode(data)
        except ValueError as error:
            self._malformed.warning("ignoring a malformed report in Redis: %.300s", error)
            return None


class _Pace:
    """When one connection is to be asked for a sign of life, given up, or the hash read again."""

    def __init__(self, now: float) -> None:
        self._heard = now
        self._pinged = now
        self._reload_at = now
        self._plan_reload(now)

    def heard(self, now: float) -> None:
        self._heard = now

    def ping_due(self, now: float) -> bool:
        """Is it time to ask?

        Raises:
            StoreError: the server was asked, and silent for too long.
        """
        if now - self._heard >= DEAD_AFTER_S:
            raise StoreError(f"no answer for {DEAD_AFTER_S:g} s")
        if now - max(self._heard, self._pinged) < PING_AFTER_S:
            return False
        self._pinged = now
        return True

    def reload_due(self, now: float) -> bool:
        if now < self._reload_at:
            return False
        self._plan_reload(now)
        return True

    def _plan_reload(self, now: float) -> None:
        self._reload_at = now + RELOAD_AFTER_S * random.uniform(1.0, 2.0)
