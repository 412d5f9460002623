"""What an extproc process shares with the others of its host: the counts, and the queue."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from extproc.gateway import Gateway
from extproc.queue.board import Board
from extproc.queue.line import QueueLine
from recursant.config.model import Config
from recursant.fleet.counts_file import ColumnsFullError, CountsFile
from recursant.fleet.shared_slots import SharedSlots
from recursant.supervise.rundir import QUEUE_SUFFIX

# How long what a killed process had in flight may still be counted.
REAP_SECONDS: Final = 0.2
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
        SharedFileError: the file cannot be used.
    """

    def __init__(self, config: Config, share: Share) -> None:
        columns = _COLUMNS_PER_WORKER * config.limits.workers
        processes = config.extproc.processes
        self._file = CountsFile(share.counts, process=share.process, processes=processes, columns=columns)
        self.slots = SharedSlots(self._file)
        self._share = share
        self._queue = share.counts.with_name(share.counts.name + QUEUE_SUFFIX)
        self._board = Board(self._queue, process=share.process, processes=processes, columns=columns)
        self._tell_again_s = 0.0

    def no_room(self, worker_id: str, error: ColumnsFullError) -> None:
        """Say that a worker cannot be counted and is left out; not for each of its beats."""
        now = time.monotonic()
        if now >= self._tell_again_s:
            self._tell_again_s = now + _TELL_SECONDS
            _log.error("worker %s gets no requests here: %s; see limits.workers", worker_id, error)

    def line(self, gateway: Gateway) -> QueueLine:
        """The way to the queue of this host, for a gateway whose table has `slots`. To be called once, on the loop."""
        limits = (gateway.config.limits.held_requests, gateway.config.admission.ageing_s)
        freed = self.slots.released_anywhere
        return QueueLine(self._queue, self._share.process, self._board, gateway, limits, freed=freed)

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
