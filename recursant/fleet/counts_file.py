"""In-flight counts that the extproc processes of one host share: a small file, mapped by all of them.

One row for each process, one column for each worker. A process writes its own row alone and reads all of them, so
counting takes no lock: an aligned number of four or eight bytes is written in one piece on the platforms we run on.
A lock is taken only when a worker gets its column. A process holds another lock for as long as it lives; the kernel
ends it however the process ends, and whoever finds it free clears the row that was left.
"""

import hashlib
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from recursant.config.model import MAX_EXTPROC_PROCESSES
from recursant.fleet import record_locks

_MAGIC: Final = b"RCNTCNT2"
_HEADER: Final = struct.Struct("=8sII")
_HEADER_BYTES: Final = 64
# Bytes of the file that stand for locks: the one for columns, then one for each process from 1.
_COLUMNS_LOCK: Final = 0
# Somebody who clears the row of the last process holds its lock for a moment.
_OWN_LOCK_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.01

_T = TypeVar("_T", bound=np.generic)


class CountsFileError(Exception):
    """The file cannot be used. The text is one line for the operator."""


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
        CountsFileError: the file is of another number of processes, cannot be opened, or this process runs already.
    """

    def __init__(self, path: Path, *, process: int, processes: int, columns: int) -> None:
        if not 1 <= process <= processes <= MAX_EXTPROC_PROCESSES:
            raise ValueError(f"process {process} of {processes}: expected 1 to {MAX_EXTPROC_PROCESSES}")
        self.path = path
        self._process = process
        self._processes = processes
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CountsFileError(f"cannot use {path} for shared counts: {error.strerror}") from error
        try:
            with record_locks.held(self._fd, _COLUMNS_LOCK):
                self._map, columns = self._mapped(columns)
            self._claim_row()
        except BaseException:
            os.close(self._fd)
            raise
        # Eight-byte numbers first, so that everything is aligned.
        self._at = _HEADER_BYTES
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
        with record_locks.held(self._fd, _COLUMNS_LOCK):
            used = self._uses.any(axis=0)
            free = ~used
            [same] = np.nonzero((self._keys == key) & used & (self._uses[self.row] == 0))
            if same.size:
                column = int(same[0])
            elif free.any():
                column = int(free.argmax())
                self._keys[column] = key
            else:
                raise ColumnsFullError(f"{self.path}: all {free.size} columns are taken")
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
            if record_locks.take(self._fd, process):
                self._clear(process)
                record_locks.give_back(self._fd, process)
                found = True
        return found

    def close(self) -> None:
        """Leave nothing behind. Harmless twice."""
        if self._fd < 0:
            return
        self._clear(self._process)
        # The mapping, which arrays keep alive, holds the open file too: the lock does not end by closing ours.
        record_locks.give_back(self._fd, self._process)
        os.close(self._fd)
        self._fd = -1

    # --- inside ---

    def _mapped(self, columns: int) -> tuple[mmap.mmap, int]:
        """The file in memory, laid out by whoever comes first, and its columns.

        A process that starts again after an edit of the configuration must fit to those that run.
        """
        try:
            found = os.pread(self._fd, _HEADER.size, 0)
            if not any(found):
                # Not a hole in it: a full disk would otherwise be found out by a signal, in the middle of a request.
                os.posix_fallocate(self._fd, 0, _size(self._processes, columns))
                found = _HEADER.pack(_MAGIC, self._processes, columns)
                os.pwrite(self._fd, found, 0)
            _, _, columns = _HEADER.unpack(found.ljust(_HEADER.size, b"\0"))
            size = _size(self._processes, columns)
            shape = _HEADER.pack(_MAGIC, self._processes, columns)
            if found != shape or os.fstat(self._fd).st_size != size:
                raise CountsFileError(
                    f"{self.path} is no file for {self._processes} processes: remove it while none of them runs"
                )
            return mmap.mmap(self._fd, size), columns
        except OSError as error:
            raise CountsFileError(f"cannot use {self.path} for shared counts: {error.strerror}") from error

    def _claim_row(self) -> None:
        deadline = time.monotonic() + _OWN_LOCK_SECONDS
        while not record_locks.take(self._fd, self._process):
            if time.monotonic() >= deadline:
                raise CountsFileError(f"process {self._process} runs already: it holds its row of {self.path}")
            time.sleep(_RETRY_SECONDS)

    def _clear(self, process: int) -> None:
        row = process - 1
        self.counts[row] = 0
        self.prompts[row] = 0
        self.tokens[row] = 0
        self._uses[row] = 0

    def _part(self, kind: type[_T], *shape: int) -> NDArray[_T]:
        array = np.frombuffer(self._map, dtype=kind, count=int(np.prod(shape)), offset=self._at).reshape(shape)
        self._at += array.nbytes
        return array


def _size(processes: int, columns: int) -> int:
    """Bytes of the file: as `CountsFile` lays it out."""
    per_column = 2 * np.dtype(np.int64).itemsize + np.dtype(np.int32).itemsize + 1
    return _HEADER_BYTES + columns * 8 + processes * (columns * per_column + 8)
