"""In-flight counts that the extproc processes of one host share: a small file, mapped by all of them.

One row for each process, one column for each worker. A process writes its own row alone and reads all of them, so
counting takes no lock: an aligned number of four or eight bytes is written in one piece on the platforms we run on.
A lock is taken only when a worker gets its column. A process holds another lock for as long as it lives; the kernel
ends it however the process ends, and whoever finds it free clears the row that was left.
"""

import hashlib
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from recursant.fleet import record_locks
from recursant.fleet.shared_file import HEADER_BYTES, SharedFile

_MAGIC: Final = b"RCNTCNT2"

_T = TypeVar("_T", bound=np.generic)


class ColumnsFullError(Exception):
    """All columns belong to other workers."""


class CountsFile:
    """One process's part in the file, from construction until `close`.

    Args:
        path: the same for all; made by the first of them. On a file system of this machine.
        process: which of them this is, from 1.
        processes: how many there may be.
        columns: workers that it can count at one time, in all processes together; who makes the file decides.

    Raises:
        SharedFileError: the file is of another number of processes, cannot be opened, or this process runs already.
    """

    def __init__(self, path: Path, *, process: int, processes: int, columns: int) -> None:
        self._file = SharedFile(
            path,
            magic=_MAGIC,
            purpose="shared counts",
            process=process,
            processes=processes,
            width=columns,
            size=_size,
        )
        self._process = process
        self._processes = processes
        columns = self._file.width
        # Eight-byte numbers first, so that everything is aligned.
        self._at = HEADER_BYTES
        self._keys: NDArray[np.uint64] = self._part(np.uint64, columns)
        # Of the requests in flight: their prompt tokens; and prompts and answers together.
        self.prompts: NDArray[np.int64] = self._part(np.int64, processes, columns)
        self.tokens: NDArray[np.int64] = self._part(np.int64, processes, columns)
        # How often a process gave a place back; only grows.
        self.released: NDArray[np.int64] = self._part(np.int64, processes)
        self.counts: NDArray[np.int32] = self._part(np.int32, processes, columns)
        self._uses: NDArray[np.uint8] = self._part(np.uint8, processes, columns)
        self._clear(process)

    @property
    def row(self) -> int:
        """The row of this process."""
        return self._process - 1

    def claim(self, worker_id: str) -> int:
        """The column of a worker, the same in every process that uses it now; until `leave`.

        Raises:
            ColumnsFullError: there is none left.
        """
        # Of a worker's id, as columns keep no text; two ids of one key would share a count and do no other harm.
        key = np.uint64(int.from_bytes(hashlib.blake2b(worker_id.encode(), digest_size=8).digest(), "little"))
        with self._file.locked():
            used = self._uses.any(axis=0)
            free = ~used
            [same] = np.nonzero((self._keys == key) & used & (self._uses[self.row] == 0))
            if same.size:
                column = int(same[0])
            elif free.any():
                column = int(free.argmax())
                self._keys[column] = key
            else:
                raise ColumnsFullError(f"{self._file.path}: all {free.size} columns are taken")
            self._uses[self.row, column] = 1
        return column

    def leave(self, column: int) -> None:
        """This process uses a column no more; its count there must be 0."""
        self._uses[self.row, column] = 0

    def reap(self) -> bool:
        """Clear the rows of processes that have ended; True if one of them had left something."""
        found = False
        for process in range(1, self._processes + 1):
            row = process - 1
            if process == self._process or not (self._uses[row].any() or self.counts[row].any()):
                continue
            if record_locks.take(self._file.fd, process):
                self._clear(process)
                record_locks.give_back(self._file.fd, process)
                found = True
        return found

    def close(self) -> None:
        """Leave nothing behind. Harmless twice."""
        if self._file.fd < 0:
            return
        self._clear(self._process)
        self._file.close()

    # --- inside ---

    def _clear(self, process: int) -> None:
        row = process - 1
        self.counts[row] = 0
        self.prompts[row] = 0
        self.tokens[row] = 0
        self._uses[row] = 0

    def _part(self, kind: type[_T], *shape: int) -> NDArray[_T]:
        array = np.frombuffer(self._file.map, dtype=kind, count=int(np.prod(shape)), offset=self._at).reshape(shape)
        self._at += array.nbytes
        return array


def _size(processes: int, columns: int) -> int:
    """Bytes of the file: as `CountsFile` lays it out."""
    per_column = 2 * np.dtype(np.int64).itemsize + np.dtype(np.int32).itemsize + 1
    return HEADER_BYTES + columns * 8 + processes * (columns * per_column + 8)
