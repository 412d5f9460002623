"""Which row of the fleet table belongs to which worker, and how many requests each process has in flight there.

One extproc process alone keeps this in its own memory. Several processes of one host share it in a mapped file, so
that each of them sees what the others have sent a moment ago: a request is counted by one store into a process's own
row of the matrix, and a pick adds the rows up. Only handing out a slot takes a lock, and that happens when a worker
joins.

Exact: the counts of each process, and their sum as soon as a store is visible, which is at once on one host.
Approximate: two processes that pick at the same moment may both take the same best worker, so a worker is at most
`processes - 1` picks ahead of what one process alone would have given it.
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Longest worker id, in UTF-8 bytes; longer ones are refused at registration.
MAX_ID_BYTES: Final = 128
_ID: Final = np.dtype((np.bytes_, MAX_ID_BYTES))


class SlotsFullError(Exception):
    """Every slot belongs to a worker: the fleet is larger than `limits.workers`."""


class Slots:
    """A table of worker ids and one row of in-flight counts for each process.

    Args:
        capacity: the most workers at one time.
        processes: how many processes share the table.
        index: which of them this one is.
        path: the shared file, created when missing; None keeps everything in this process.

    Raises:
        ValueError: `index` is not one of the processes, or the file was made for other sizes.
    """

    def __init__(self, capacity: int, *, processes: int = 1, index: int = 0, path: Path | None = None) -> None:
        if not 0 <= index < processes:
            raise ValueError(f"process {index} of {processes}")
        self.capacity = capacity
        self._index = index
        id_bytes = capacity * MAX_ID_BYTES
        count_bytes = processes * capacity * np.dtype(np.int32).itemsize
        claim_bytes = processes * capacity
        size = id_bytes + count_bytes + claim_bytes
        self._file: int | None = None
        memory: bytearray | mmap.mmap
        if path is None:
            memory = bytearray(size)
        else:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with self._locked():
                found = os.fstat(self._file).st_size
                if found == 0:
                    os.ftruncate(self._file, size)
            if found not in (0, size):
                os.close(self._file)
                raise ValueError(f"{path} was made for another number of workers or processes")
            memory = mmap.mmap(self._file, size)
        self._ids: NDArray[np.bytes_] = np.frombuffer(memory, _ID, capacity)
        self._counts: NDArray[np.int32] = np.frombuffer(
            memory, np.int32, processes * capacity, offset=id_bytes
        ).reshape(processes, capacity)
        self._claims: NDArray[np.bool_] = np.frombuffer(
            memory, np.bool_, processes * capacity, offset=id_bytes + count_bytes
        ).reshape(processes, capacity)
        self._own = self._counts[index]
        self.forget(index)

    def forget(self, index: int) -> None:
        """A process died or starts anew: what it had in flight and what it knew is gone."""
        with self._locked():
            self._counts[index] = 0
            self._claims[index] = False

    def claim(self, worker_id: str) -> int:
        """The slot of a worker, the same in every process, until `release_claim`.

        Raises:
            SlotsFullError: no slot is left.
            ValueError: the id is empty or too long.
        """
        key = worker_id.encode()
        if not 0 < len(key) <= MAX_ID_BYTES:
            raise ValueError(f"a worker id has 1 to {MAX_ID_BYTES} bytes, not {len(key)}")
        with self._locked():
            found = np.flatnonzero(self._ids == key)
            if found.size == 0:
                used = self._claims.any(axis=0) | (self._counts != 0).any(axis=0)
                found = np.flatnonzero(~used)
                if found.size == 0:
                    raise SlotsFullError(f"{self.capacity} workers are known already")
                self._ids[found[0]] = key
            slot = int(found[0])
            self._claims[self._index, slot] = True
        return slot

    def release_claim(self, slot: int) -> None:
        """This process no longer knows the worker. The slot stays taken while requests are in flight there."""
        self._claims[self._index, slot] = False

    def add(self, slot: int, delta: int) -> int:
        """Change this process's count of a slot; the new count of this process."""
        count = int(self._own[slot]) + delta
        if count < 0:
            raise ValueError(f"slot {slot} was released more often than acquired")
        self._own[slot] = count
        return count

    def own(self, slot: int) -> int:
        """This process's requests in flight at a slot."""
        return int(self._own[slot])

    def own_total(self) -> int:
        """This process's requests in flight, everywhere."""
        return int(self._own.sum())

    def totals(self, slots: NDArray[np.intp]) -> NDArray[np.int32]:
        """All processes' requests in flight at each of `slots`."""
        counts: NDArray[np.int32] = (
            self._own[slots] if len(self._counts) == 1 else self._counts[:, slots].sum(axis=0, dtype=np.int32)
        )
        return counts

    def total(self, slot: int) -> int:
        """All processes' requests in flight at one slot."""
        return int(self._counts[:, slot].sum())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self._file is None:
            yield
            return
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
