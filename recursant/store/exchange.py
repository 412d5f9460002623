"""One exchange with Redis: bounded in time, with one kind of error, and never deaf to a cancellation."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from redis.exceptions import RedisError

# A Redis on the same network answers within a millisecond; one that needs this long is as good as away.
TIMEOUT_S: Final = 1.0
# TimeoutError is an OSError.
REDIS_ERRORS: Final = (RedisError, OSError)


class StoreError(Exception):
    """Redis cannot be reached, does not answer in time, or refuses."""


def keepalive(url: str) -> dict[str, bool]:
    """Options of a connection pool that notices a dead network; redis-py refuses them for a Unix socket."""
    return {} if url.startswith("unix:") else {"socket_keepalive": True}


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
