"""Exchanges with Redis: bounded in time, with one kind of error, and never deaf to a cancellation."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

# A Redis on the same network answers within a millisecond; one that needs this long is as good as away.
TIMEOUT_S: Final = 1.0
# TimeoutError is an OSError.
REDIS_ERRORS: Final = (RedisError, OSError)


class StoreError(Exception):
    """Redis cannot be reached, does not answer in time, or refuses."""


def connection_pool(url: str, most: int) -> BlockingConnectionPool:
    """Connections for commands, at most `most`; more callers than that wait for one, no longer than `TIMEOUT_S`.

    Raises:
        ValueError: `url` is none of Redis.
    """
    # redis-py refuses TCP's keep-alive, which notices a dead network, for a Unix socket.
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    return BlockingConnectionPool.from_url(
        url,
        max_connections=most,
        timeout=TIMEOUT_S,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        **keepalive,
        protocol=2,
        # Callers decide about trying again: they know what is still worth sending.
        retry=Retry(NoBackoff(), 0),
    )


@contextlib.asynccontextmanager
async def bounded(seconds: float) -> AsyncIterator[None]:
    """An exchange with Redis that takes at most this long; everything that goes wrong is a StoreError."""
    before = cancellations_so_far()
    try:
        async with asyncio.timeout(seconds):
            yield
    except REDIS_ERRORS as error:
        raise StoreError(reason_of(error)) from error
    raise_if_cancelled_since(before)


def cancellations_so_far() -> int:
    """How often somebody has asked the current task to end."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def raise_if_cancelled_since(cancellations: int) -> None:
    """Make up for `asyncio.wait_for`, in which redis-py sends.

    Before Python 3.12 it swallows a cancellation that comes just as it ends (cpython#86296), and loops would never end.
    """
    if cancellations_so_far() > cancellations:
        raise asyncio.CancelledError


def reason_of(error: Exception) -> str:
    """Why it failed, in words."""
    return str(error) or type(error).__name__
