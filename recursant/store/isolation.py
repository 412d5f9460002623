"""Isolations in Redis: a JSON value for each worker, which expires by itself. Only commands of Redis 7.0.

Clocks differ from host to host, so an end is never written as a time of day: what is left is the key's time to live.
"""

import contextlib
import json
import logging
import math
from collections.abc import Iterable
from typing import Any, Final, cast

from redis.asyncio import Redis

from recursant.fleet.evidence import MAX_TEXT_CHARS, Reason
from recursant.fleet.isolation import Isolation
from recursant.store.codec import MAX_ID_CHARS
from recursant.store.exchange import REDIS_ERRORS, TIMEOUT_S, bounded, connection_pool
from recursant.store.keys import ISOLATED, ISOLATION_OF
from recursant.store.quiet_log import QuietLog

# Isolations that are read; a fleet of ten thousand, all of it known to somebody.
MAX_ISOLATIONS: Final = 10_000
MAX_VALUE_BYTES: Final = 8_192

_log = logging.getLogger(__name__)


def encode(isolation: Isolation) -> bytes:
    """The value for Redis; what it has still to last is the key's to say."""
    fields: dict[str, Any] = {
        "incarnation": isolation.incarnation,
        "reason": isolation.reason.value,
        "text": isolation.text,
        "since_ms": isolation.since_ms,
        # How long the key lives on after the isolation itself is over.
        "trial_ms": round((isolation.gone_s - isolation.until_s) * 1_000),
        "level": isolation.level,
        "by": isolation.by,
        "released": isolation.released,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(worker_id: str, data: bytes, left_ms: int, now: float) -> Isolation:
    """The isolation in `data`, whose key lives for `left_ms` more.

    Raises:
        ValueError: it is none.
    """
    if len(data) > MAX_VALUE_BYTES:
        raise ValueError(f"it has {len(data)} bytes")
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    gone_s = now + left_ms / 1_000
    return Isolation(
        worker_id,
        _text(fields, "incarnation", MAX_ID_CHARS),
        Reason(_text(fields, "reason", MAX_ID_CHARS)),
        _text(fields, "text", MAX_TEXT_CHARS),
        _number(fields, "since_ms"),
        gone_s - _number(fields, "trial_ms") / 1_000,
        gone_s,
        _number(fields, "level"),
        _text(fields, "by", MAX_ID_CHARS),
        fields.get("released") is True,
    )


class IsolationStore:
    """Reads and writes the isolations. Connects when first used; no call takes longer than a second."""

    def __init__(self, url: str) -> None:
        """Take the URL of the server.

        Raises:
            ValueError: it is none.
        """
        self._pool = connection_pool(url, 2)
        self._redis: Redis = Redis(connection_pool=self._pool)
        self._malformed = QuietLog(_log)

    async def load(self, now: float) -> list[Isolation]:
        """Every isolation and release that has time left; what cannot be read is left out with a warning.

        Args:
            now: this process's monotonic clock, on which their ends are given.

        Raises:
            StoreError: they cannot be read.
        """
        async with bounded(TIMEOUT_S):
            return await self._load(now)

    async def write(self, isolations: Iterable[Isolation], now: float) -> None:
        """Write isolations for as long as they last.

        Raises:
            StoreError: some may not have arrived.
        """
        async with bounded(TIMEOUT_S), self._redis.pipeline(transaction=False) as pipe:
            for each in isolations:
                left_ms = math.ceil((each.gone_s - now) * 1_000)
                if left_ms > 0:
                    pipe.set(ISOLATION_OF + each.worker_id, encode(each), px=left_ms)
                    pipe.sadd(ISOLATED, each.worker_id)
            await pipe.execute()

    async def close(self) -> None:
        """Close the connections."""
        # A server that hangs is not waited for.
        with contextlib.suppress(*REDIS_ERRORS):
            await self._redis.aclose()
            await self._pool.aclose()

    async def _load(self, now: float) -> list[Isolation]:
        members = cast("set[bytes]", await self._redis.smembers(ISOLATED))
        if not members:
            return []
        ids = sorted(members)[:MAX_ISOLATIONS]
        async with self._redis.pipeline(transaction=False) as pipe:
            for worker_id in ids:
                pipe.get(ISOLATION_OF.encode() + worker_id)
                pipe.pttl(ISOLATION_OF.encode() + worker_id)
            answers = await pipe.execute()
        found: list[Isolation] = []
        over: list[bytes] = []
        for worker_id, data, left_ms in zip(ids, answers[::2], answers[1::2], strict=True):
            if data is None:
                over.append(worker_id)
                continue
            try:
                found.append(decode(worker_id.decode(), data, left_ms, now))
            except ValueError as error:
                self._malformed.warning("ignoring the isolation of %.200r in Redis: %.200s", worker_id, error)
        if over:
            # One that is written at this very moment is missed until its writer finds that and writes it again.
            await self._redis.srem(ISOLATED, *over)
        return found


def _text(fields: dict[str, Any], name: str, most: int) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"{name} is no text of at most {most} characters")
    return value


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is no whole number")
    return value
