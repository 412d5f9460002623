"""Sessions between gateways: told in batches, heard as they come, read again after a restart. Nobody waits for it."""

import asyncio
import contextlib
import time
from collections import OrderedDict
from itertools import islice
from typing import Final

from recursant.routing.affinity import Affinity
from recursant.routing.affinity_tables import Place
from recursant.store.backoff import Backoff
from recursant.store.exchange import StoreError
from recursant.store.sessions import MOST_SHARED, SHARE_S, SessionStore

# Sessions that wait to be told; beyond that the oldest ones never are.
MOST_WAITING: Final = 8_192
RECONNECT_FIRST_S: Final = 0.1
RECONNECT_LONGEST_S: Final = 5.0


class SessionSharing:
    """Keeps one process's sessions in step with those of the others.

    Args:
        affinity: what this process remembers.
        store: where the others are heard.
        most: sessions that are read at the start.
    """

    def __init__(self, affinity: Affinity, store: SessionStore, most: int) -> None:
        self._affinity = affinity
        self._store = store
        self._most = most
        self._waiting: OrderedDict[bytes, Place] = OrderedDict()
        self.unshared = 0
        affinity.on_placed = self._placed

    async def load(self) -> None:
        """Read what is kept, if the store answers in time."""
        with contextlib.suppress(StoreError):
            found = await self._store.load(self._most, time.monotonic())
            # The youngest come first there, and belong last here.
            for session, place in reversed(found.items()):
                self._affinity.heard(session, place)

    async def run(self) -> None:
        """Tell and hear until cancelled; what is still to be told then is told."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tell())
                tasks.create_task(self._hear())
        finally:
            await self._tell_batch()
            await self._store.close()

    def _placed(self, session: bytes, place: Place) -> None:
        waiting = self._waiting
        waiting[session] = place
        if len(waiting) > MOST_WAITING:
            waiting.popitem(last=False)
            self.unshared += 1

    async def _tell(self) -> None:
        backoff = Backoff(RECONNECT_FIRST_S, RECONNECT_LONGEST_S)
        while True:
            # What more than a batch is left goes on at once.
            await asyncio.sleep(0 if len(self._waiting) > MOST_SHARED else SHARE_S)
            if not self._waiting:
                continue
            if await self._tell_batch():
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next())

    async def _tell_batch(self) -> bool:
        """Tell one batch; one that did not arrive is lost, as those who must know hear of the next turn."""
        batch = dict(islice(self._waiting.items(), MOST_SHARED))
        if not batch:
            return True
        for session in batch:
            del self._waiting[session]
        try:
            await self._store.write(batch)
        except StoreError:
            self.unshared += len(batch)
            return False
        return True

    async def _hear(self) -> None:
        backoff = Backoff(RECONNECT_FIRST_S, RECONNECT_LONGEST_S)
        while True:
            with contextlib.suppress(StoreError):
                async with contextlib.aclosing(self._store.follow()) as batches:
                    async for places in batches:
                        backoff.reset()
                        for session, place in places.items():
                            self._affinity.heard(session, place)
            await asyncio.sleep(backoff.next())
