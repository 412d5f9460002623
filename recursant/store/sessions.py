"""Where sessions were sent, in Redis, so that gateways agree and a restart keeps it (SPEC D1). Commands of Redis 7.0.

Written behind, in batches; lossy, and nobody ever waits for it. A session's entry is in the hash of the stretch of time
in which it was written, so whole hashes expire and nothing has to be cleaned up.
"""

import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from itertools import islice
from typing import Any, Final, cast

from redis.asyncio import Redis

from recursant.routing.affinity_tables import Place
from recursant.store.codec import MAX_ID_CHARS
from recursant.store.exchange import REDIS_ERRORS, TIMEOUT_S, StoreError, bounded, connection_pool
from recursant.store.keys import SESSION_EVENTS, SESSIONS_OF
from recursant.store.quiet_log import QuietLog

# Sessions go to the others together, this late. Seconds.
SHARE_S: Final = 0.05
# Sessions of one batch: to read one holds nobody up.
MOST_SHARED: Final = 200
# Sessions of one stretch that are kept: what is beyond is told, and not kept.
MOST_KEPT: Final = 250_000
# Stretches of time that the life of a session is divided into.
STRETCHES: Final = 4
# For all that is known, at the start.
LOAD_TIMEOUT_S: Final = 2.0
# A batch is no larger than this, whoever sends it.
MAX_BATCH_BYTES: Final = 1 << 18
_SCAN_COUNT: Final = 200
_MOST_SESSION_BYTES: Final = 32
_MOST_TOKEN_DIGITS: Final = 12

_log = logging.getLogger(__name__)

Places = dict[bytes, Place]


def encode(sender: str, places: Mapping[bytes, Place]) -> bytes:
    """A batch: who says it, and [session, worker, tokens] of each."""
    rows = [[session.hex(), place.worker_id, place.tokens] for session, place in places.items()]
    return json.dumps([sender, rows], separators=(",", ":")).encode()


def decode(data: bytes, now: float) -> tuple[str, Places]:
    """Who says it, and where sessions were sent.

    Args:
        data: a batch.
        now: this process's monotonic clock: what a batch tells happened just now, as clocks differ from host to host.

    Raises:
        ValueError: it is none.
    """
    if len(data) > MAX_BATCH_BYTES:
        raise ValueError(f"it has {len(data)} bytes")
    content: Any = json.loads(data)
    if not isinstance(content, list) or len(content) != 2 or not isinstance(content[0], str):
        raise ValueError("it is no batch of sessions")
    sender, rows = content
    if not isinstance(rows, list) or len(rows) > MOST_SHARED:
        raise ValueError(f"it is no list of at most {MOST_SHARED} sessions")
    return sender, dict(_entry(row, now) for row in rows)


def _entry(row: object, at_s: float) -> tuple[bytes, Place]:
    match row:
        case [str(session), str(worker_id), int(tokens)] if (
            0 < len(session) <= 2 * _MOST_SESSION_BYTES and 0 < len(worker_id) <= MAX_ID_CHARS and tokens >= 0
        ):
            return bytes.fromhex(session), Place(worker_id, tokens, at_s)
        case _:
            raise ValueError("a session must be [hex, worker id, tokens]")


class SessionStore:
    """Reads, writes and follows sessions. Connects when first used; no call takes longer than its bound."""

    def __init__(
        self, url: str, *, sender: str, ttl_s: Callable[[], float], wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Take the URL of the server.

        Args:
            url: of Redis.
            sender: names this process; its own batches come back to it, and are left out.
            ttl_s: how long a session is kept.
            wall_clock: Unix seconds. Hosts whose clocks differ by minutes keep sessions that much longer or shorter.

        Raises:
            ValueError: it is no URL of Redis.
        """
        self._pool = connection_pool(url, 3)
        self._redis: Redis = Redis(connection_pool=self._pool)
        self._sender = sender
        self._ttl_s = ttl_s
        self._wall_clock = wall_clock
        # The stretch that takes no more.
        self._full = ""
        self._malformed = QuietLog(_log)

    async def write(self, places: Mapping[bytes, Place]) -> None:
        """Write and tell a batch, of at most `MOST_SHARED` sessions.

        Raises:
            StoreError: it may not have arrived.
        """
        stretch_s = self._ttl_s() / STRETCHES
        key = f"{SESSIONS_OF}{int(self._wall_clock() / stretch_s)}"
        fields = {session: f"{place.tokens} {place.worker_id}" for session, place in places.items()}
        async with bounded(TIMEOUT_S), self._redis.pipeline(transaction=False) as pipe:
            pipe.publish(SESSION_EVENTS, encode(self._sender, places))
            if key != self._full:
                pipe.hset(key, mapping=cast("dict[Any, Any]", fields))
                pipe.expire(key, int(self._ttl_s() + stretch_s) + 1)
                pipe.hlen(key)
            kept = (await pipe.execute())[-1]
        if key != self._full and kept >= MOST_KEPT:
            self._full = key

    async def load(self, most: int, now: float) -> Places:
        """What is kept, the youngest first, of at most `most` sessions; what cannot be read is left out with a warning.

        Args:
            most: sessions.
            now: this process's monotonic clock, by which the places' ages are reckoned.

        Raises:
            StoreError: it cannot be read.
        """
        stretch_s = self._ttl_s() / STRETCHES
        number = int(self._wall_clock() / stretch_s)
        found: Places = {}
        async with bounded(LOAD_TIMEOUT_S):
            for age in range(STRETCHES + 1):
                cursor = 0
                while len(found) < most:
                    cursor, entries = await self._redis.hscan(
                        f"{SESSIONS_OF}{number - age}", cursor=cursor, count=_SCAN_COUNT
                    )
                    self._take(found, cast("dict[bytes, bytes]", entries), now - age * stretch_s, most)
                    if cursor == 0:
                        break
        return found

    async def follow(self) -> AsyncGenerator[Places, None]:
        """What the others tell, batch by batch.

        Raises:
            StoreError: the server is away.
        """
        pubsub = self._redis.pubsub()
        try:
            async with bounded(TIMEOUT_S):
                await pubsub.subscribe(SESSION_EVENTS)
            while True:
                # A server that is away says so by a closed connection; the workers' store notices one that hangs.
                try:
                    message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=None)
                except REDIS_ERRORS as error:
                    raise StoreError(str(error)) from error
                if message is None:
                    continue
                try:
                    sender, places = decode(cast("bytes", message["data"]), time.monotonic())
                except ValueError as error:
                    self._malformed.warning("ignoring a malformed batch of sessions in Redis: %.200s", error)
                    continue
                if sender != self._sender:
                    yield places
        finally:
            with contextlib.suppress(*REDIS_ERRORS):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """Close the connections."""
        # A server that hangs is not waited for.
        with contextlib.suppress(*REDIS_ERRORS):
            await self._redis.aclose()
            await self._pool.aclose()

    def _take(self, found: Places, entries: Mapping[bytes, bytes], at_s: float, most: int) -> None:
        for session, value in islice(entries.items(), most - len(found)):
            tokens, _, worker_id = value.decode("utf-8", "replace").partition(" ")
            if not tokens.isdecimal() or not 0 < len(worker_id) <= MAX_ID_CHARS or len(tokens) > _MOST_TOKEN_DIGITS:
                self._malformed.warning("ignoring a malformed session in Redis: %.100r", value)
            elif session not in found:
                found[session] = Place(worker_id, int(tokens), at_s)
