"""What an extproc process shares with the others of its host: the counts, and the news that there may be room."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recursant.config.model import Config
from recursant.fleet.counts_file import ColumnsFullError, CountsFile
from recursant.fleet.shared_slots import SharedSlots

# How long what a killed process had in flight may still be counted.
REAP_SECONDS: Final = 0.2
# How long a place that another process gave back may stay unseen by whoever is held here.
LOOK_SECONDS: Final = 0.02
# Columns of the file for each worker that the configuration allows: some belong to workers that left and whose last
# requests still run.
_COLUMNS_PER_WORKER: Final = 2
_TELL_SECONDS: Final = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Share:
    """Which of the processes of its host this one is.

    Attributes:
        process: from 1 to `extproc.processes`.
        counts: the file that they count in.
    """

    process: int
    counts: Path


class Neighbours:
    """The other processes, as far as this one has to do with them.

    Args:
        config: how many there are, and how many workers.
        share: which of them this is.

    Raises:
        CountsFileError: the file cannot be used.
    """

    def __init__(self, config: Config, share: Share) -> None:
        self._file = CountsFile(
            share.counts,
            process=share.process,
            processes=config.extproc.processes,
            columns=_COLUMNS_PER_WORKER * config.limits.workers,
        )
        self.slots = SharedSlots(self._file)
        self._tell_again_s = 0.0

    def no_room(self, worker_id: str, error: ColumnsFullError) -> None:
        """Say that a worker cannot be counted and is left out; not for each of its beats."""
        now = time.monotonic()
        if now >= self._tell_again_s:
            self._tell_again_s = now + _TELL_SECONDS
            _log.error("worker %s gets no requests here: %s; see limits.workers", worker_id, error)

    @asynccontextmanager
    async def reaping(self, freed: Callable[[], None]) -> AsyncIterator[None]:
        """Clear up after those that were killed; at the end, leave the file.

        Args:
            freed: told when that made room.
        """

        async def reap() -> None:
            while True:
                await asyncio.sleep(REAP_SECONDS)
                if self._file.reap():
                    _log.warning("another process of this host has ended: what it had in flight is counted no more")
                    freed()

        task = asyncio.create_task(reap())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._file.close()


class NeighbourWatch:
    """Tells the desk that others gave places back. Looks only while somebody is held here.

    Args:
        released: how many places the others gave back, ever.
        held: is somebody held?
        freed: told that there may be room.
    """

    def __init__(self, released: Callable[[], int], held: Callable[[], bool], freed: Callable[[], None]) -> None:
        self._released = released
        self._held = held
        self._freed = freed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0

    def begin(self) -> None:
        """Somebody may be held from now on. May be called often."""
        if self._timer is None:
            self._seen = self._released()
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if not self._held():
            return
        released = self._released()
        if released != self._seen:
            self._seen = released
            self._freed()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
