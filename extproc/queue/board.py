"""What every process of a host can see at once about the queue: who owns it, and for which workers somebody waits.

A small file, mapped by all of them. Each writes its own row alone; an aligned number of eight bytes is written in one
piece on the platforms we run on. Only who owns the queue is settled under a lock. A process holds another lock for as
long as it lives, and writes the time several times a second: so the others tell a dead one from one that hangs.
"""

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

from recursant.config.model import MAX_EXTPROC_PROCESSES
from recursant.fleet import record_locks
from recursant.fleet.counts_file import CountsFileError

# A process that has not written the time for so long hangs: another one owns the queue from then on.
HUNG_SECONDS: Final = 1.0

_MAGIC: Final = b"RCNTQUE1"
_HEADER: Final = struct.Struct("=8sII")
_HEADER_BYTES: Final = 64
_NUMBER_BYTES: Final = 8
# Bytes of the file that stand for locks: the one for who owns the queue, then one for each process from 1.
_OWNER_LOCK: Final = 0
_OWNER_TRIES: Final = 20
_OWNER_TRY_SECONDS: Final = 0.0005
# Another process's look at our lock does not take it, so only a predecessor that is just ending can have it.
_OWN_LOCK_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.01


class Board:
    """One process's part in the file, from construction until `close`.

    Args:
        path: the same for all; made by the first of them. On a file system of this machine.
        process: which of them this is, from 1.
        processes: how many there may be.
        columns: workers that can be told apart; who makes the file decides.

    Raises:
        CountsFileError: the file is of another number of processes, cannot be opened, or this process runs already.
    """

    def __init__(self, path: Path, *, process: int, processes: int, columns: int) -> None:
        if not 1 <= process <= processes <= MAX_EXTPROC_PROCESSES:
            raise ValueError(f"process {process} of {processes}: expected 1 to {MAX_EXTPROC_PROCESSES}")
        self._process = process
        self._processes = processes
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CountsFileError(f"cannot use {path} for the shared queue: {error.strerror}") from error
        try:
            with record_locks.held(self._fd, _OWNER_LOCK):
                self._map, self._mask_bytes = self._mapped(path, columns)
            self._claim_row(path)
        except BaseException:
            os.close(self._fd)
            raise
        numbers = memoryview(self._map)[_HEADER_BYTES : _HEADER_BYTES + _numbers_bytes(processes)]
        self._owner = numbers[:_NUMBER_BYTES].cast("q")
        at = _NUMBER_BYTES
        self._waiting = numbers[at : at + processes * _NUMBER_BYTES].cast("q")
        self._times = numbers[at + processes * _NUMBER_BYTES :].cast("d")
        self._masks = memoryview(self._map)[_HEADER_BYTES + _numbers_bytes(processes) :]
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
                record_locks.give_back(self._fd, _OWNER_LOCK)
        return self._owner[0]

    def resign(self) -> None:
        """Own the queue no more."""
        with record_locks.held(self._fd, _OWNER_LOCK):
            self.post(0, 0)
            if self.owned:
                self._owner[0] = 0

    def close(self) -> None:
        """Leave nothing behind. Harmless twice."""
        if self._fd < 0:
            return
        self.resign()
        # The mapping, which views keep alive, holds the open file too: the lock does not end by closing ours.
        record_locks.give_back(self._fd, self._process)
        os.close(self._fd)
        self._fd = -1

    # --- inside ---

    def _take_owner_lock(self) -> bool:
        """Take it, or give up soon: whoever has it may hang, and the next tick is another chance."""
        for _ in range(_OWNER_TRIES):
            if record_locks.take(self._fd, _OWNER_LOCK):
                return True
            time.sleep(_OWNER_TRY_SECONDS)
        return False

    def _serves(self, process: int, now: float) -> bool:
        if process == 0 or process == self._process:
            return process != 0
        return record_locks.taken_elsewhere(self._fd, process) and process not in self.hanging(now)

    def _clear_others(self) -> None:
        """Only an owner posts, and there is none: what is left is of one that died, or hangs and posts afresh."""
        for row in range(self._processes):
            if row != self._process - 1:
                self._waiting[row] = 0

    def _mask_of(self, row: int) -> memoryview:
        return self._masks[row * self._mask_bytes : (row + 1) * self._mask_bytes]

    def _mapped(self, path: Path, columns: int) -> tuple[mmap.mmap, int]:
        """The file in memory, laid out by whoever comes first, and the bytes of a mask."""
        mask_bytes = -(-columns // 8)
        try:
            found = os.pread(self._fd, _HEADER.size, 0)
            if not any(found):
                # Not a hole in it: a full disk would otherwise be found out by a signal, in the middle of a request.
                os.posix_fallocate(self._fd, 0, _size(self._processes, mask_bytes))
                found = _HEADER.pack(_MAGIC, self._processes, mask_bytes)
                os.pwrite(self._fd, found, 0)
            _, _, mask_bytes = _HEADER.unpack(found.ljust(_HEADER.size, b"\0"))
            size = _size(self._processes, mask_bytes)
            if found != _HEADER.pack(_MAGIC, self._processes, mask_bytes) or os.fstat(self._fd).st_size != size:
                raise CountsFileError(
                    f"{path} is no file for {self._processes} processes: remove it while none of them runs"
                )
            return mmap.mmap(self._fd, size), mask_bytes
        except OSError as error:
            raise CountsFileError(f"cannot use {path} for the shared queue: {error.strerror}") from error

    def _claim_row(self, path: Path) -> None:
        deadline = time.monotonic() + _OWN_LOCK_SECONDS
        while not record_locks.take(self._fd, self._process):
            if time.monotonic() >= deadline:
                raise CountsFileError(f"process {self._process} runs already: it holds its row of {path}")
            time.sleep(_RETRY_SECONDS)


def _numbers_bytes(processes: int) -> int:
    """The owner; of each process how many wait, and its time."""
    return _NUMBER_BYTES * (1 + 2 * processes)


def _size(processes: int, mask_bytes: int) -> int:
    return _HEADER_BYTES + _numbers_bytes(processes) + processes * mask_bytes
