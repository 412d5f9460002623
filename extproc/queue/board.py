"""What every process of a host can see at once about the queue: who owns it, and for which workers somebody waits.

A small file, mapped by all of them. Each writes its own row alone; an aligned number of eight bytes is written in one
piece on the platforms we run on. Only who owns the queue is settled under a lock. A process holds another lock for as
long as it lives, and writes the time several times a second: so the others tell a dead one from one that hangs.
"""

import time
from pathlib import Path
from typing import Final

from recursant.fleet import record_locks
from recursant.fleet.shared_file import COMMON_LOCK, HEADER_BYTES, SharedFile

# A process that has not written the time for so long hangs: another one owns the queue from then on.
HUNG_SECONDS: Final = 1.0

_MAGIC: Final = b"RCNTQUE1"
_NUMBER_BYTES: Final = 8
# How often the common lock, which settles who owns the queue, is tried.
_OWNER_TRIES: Final = 20
_OWNER_TRY_SECONDS: Final = 0.0005


class Board:
    """One process's part in the file, from construction until `close`.

    Args:
        path: the same for all; made by the first of them. On a file system of this machine.
        process: which of them this is, from 1.
        processes: how many there may be.
        columns: workers that can be told apart; who makes the file decides.

    Raises:
        SharedFileError: the file is of another number of processes, cannot be opened, or this process runs already.
    """

    def __init__(self, path: Path, *, process: int, processes: int, columns: int) -> None:
        self._file = SharedFile(
            path,
            magic=_MAGIC,
            purpose="the shared queue",
            process=process,
            processes=processes,
            width=-(-columns // 8),
            size=_size,
        )
        self._process = process
        self._processes = processes
        self._mask_bytes = self._file.width
        numbers = memoryview(self._file.map)[HEADER_BYTES : HEADER_BYTES + _numbers_bytes(processes)]
        self._owner = numbers[:_NUMBER_BYTES].cast("q")
        at = _NUMBER_BYTES
        self._waiting = numbers[at : at + processes * _NUMBER_BYTES].cast("q")
        self._times = numbers[at + processes * _NUMBER_BYTES :].cast("d")
        self._masks = memoryview(self._file.map)[HEADER_BYTES + _numbers_bytes(processes) :]
        self._nobody = bytes(processes * _NUMBER_BYTES)
        self.post(0, 0)

    # --- whether somebody waits ---

    def quiet(self) -> bool:
        """Nobody waits, in any process. This is what the hot path asks."""
        return self._waiting.tobytes() == self._nobody

    def waited_for(self, columns: int) -> bool:
        """Does somebody wait for one of these workers?

        Args:
            columns: a bit for each worker, by its column.
        """
        for row, waiting in enumerate(self._waiting):
            if waiting and columns & int.from_bytes(self._mask_of(row), "little"):
                return True
        return False

    def waiting(self) -> int:
        """How many wait, as their owner says."""
        return sum(self._waiting)

    def post(self, waiting: int, columns: int) -> None:
        """Say how many wait with us as the owner, and for which workers: a bit for each column.

        Bits that the file has no room for stand for all workers.
        """
        size = self._mask_bytes
        mask = (columns if columns.bit_length() <= 8 * size else -1) & ((1 << 8 * size) - 1)
        self._mask_of(self._process - 1)[:] = mask.to_bytes(size, "little")
        self._waiting[self._process - 1] = waiting

    # --- who owns the queue ---

    def knows(self, process: int) -> bool:
        """Is there a process of this number, other than this one?"""
        return 1 <= process <= self._processes and process != self._process

    @property
    def owner(self) -> int:
        """The process that owns the queue; 0 for none."""
        return self._owner[0]

    @property
    def owned(self) -> bool:
        """Is it this one?"""
        return self._owner[0] == self._process

    def touch(self, now: float) -> None:
        """This process does not hang."""
        self._times[self._process - 1] = now

    def hanging(self, now: float) -> list[int]:
        """The processes that have not written the time for a while, and those that are not there at all."""
        return [row + 1 for row, at in enumerate(self._times) if now - at > HUNG_SECONDS]

    def settle(self, now: float) -> int:
        """The owner from now on: who is it already, while it lives and does not hang; else this process."""
        if not self._serves(self._owner[0], now) and self._take_owner_lock():
            try:
                if not self._serves(self._owner[0], now):
                    self.touch(now)
                    self._clear_others()
                    self._owner[0] = self._process
            finally:
                record_locks.give_back(self._file.fd, COMMON_LOCK)
        return self._owner[0]

    def resign(self) -> None:
        """Own the queue no more."""
        with self._file.locked():
            self.post(0, 0)
            if self.owned:
                self._owner[0] = 0

    def close(self) -> None:
        """Leave nothing behind. Harmless twice."""
        if self._file.fd < 0:
            return
        self.resign()
        self._file.close()

    # --- inside ---

    def _take_owner_lock(self) -> bool:
        """Take it, or give up soon: whoever has it may hang, and the next tick is another chance."""
        for _ in range(_OWNER_TRIES):
            if record_locks.take(self._file.fd, COMMON_LOCK):
                return True
            time.sleep(_OWNER_TRY_SECONDS)
        return False

    def _serves(self, process: int, now: float) -> bool:
        if process == 0 or process == self._process:
            return process != 0
        return record_locks.taken_elsewhere(self._file.fd, process) and process not in self.hanging(now)

    def _clear_others(self) -> None:
        """Only an owner posts, and there is none: what is left is of one that died, or hangs and posts afresh."""
        for row in range(self._processes):
            if row != self._process - 1:
                self._waiting[row] = 0

    def _mask_of(self, row: int) -> memoryview:
        return self._masks[row * self._mask_bytes : (row + 1) * self._mask_bytes]


def _numbers_bytes(processes: int) -> int:
    """The owner; of each process how many wait, and its time."""
    return _NUMBER_BYTES * (1 + 2 * processes)


def _size(processes: int, mask_bytes: int) -> int:
    return HEADER_BYTES + _numbers_bytes(processes) + processes * mask_bytes
