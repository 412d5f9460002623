"""A small file that the processes of one host map together: laid out by whoever comes first, one row for each process.

A process holds a lock for as long as it lives; the kernel ends it however the process ends. One more lock is for what
they must settle among themselves.
"""

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from recursant.config.model import MAX_EXTPROC_PROCESSES
from recursant.fleet import record_locks

HEADER_BYTES: Final = 64
# What it is, the number of processes, and its width.
_HEADER: Final = struct.Struct("=8sII")
# Bytes of the file that stand for locks: the common one, then one for each process from 1.
COMMON_LOCK: Final = 0
# Another process's look at our lock does not take it; one that clears our row, or a predecessor that is just ending,
# can have it for a moment.
_OWN_LOCK_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.01


class SharedFileError(Exception):
    """The file cannot be used. The text is one line for the operator."""


class SharedFile:
    """One process's hold on the file, from construction until `close`.

    Args:
        path: the same for all. On a file system of this machine.
        magic: eight bytes that tell what it is and how it is laid out.
        purpose: what it is for, in words.
        process: which of them this is, from 1.
        processes: how many there may be.
        width: how wide a row is, in units of the caller's; who makes the file decides.
        size: bytes of the whole file for a number of processes and a width.

    Attributes:
        fd: the open file; -1 once it is closed.
        map: its memory.
        width: of its rows, as its maker decided.

    Raises:
        SharedFileError: the file is of another number of processes, cannot be opened, or this process runs already.
        ValueError: there is no such process.
    """

    def __init__(
        self,
        path: Path,
        *,
        magic: bytes,
        purpose: str,
        process: int,
        processes: int,
        width: int,
        size: Callable[[int, int], int],
    ) -> None:
        if not 1 <= process <= processes <= MAX_EXTPROC_PROCESSES:
            raise ValueError(f"process {process} of {processes}: expected 1 to {MAX_EXTPROC_PROCESSES}")
        self.path = path
        self.width = width
        self._process = process
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SharedFileError(f"cannot use {path} for {purpose}: {error.strerror}") from error
        try:
            with self.locked():
                self.map = self._mapped(magic, processes, size)
            self._claim()
        except OSError as error:
            os.close(self.fd)
            raise SharedFileError(f"cannot use {path} for {purpose}: {error.strerror}") from error
        except BaseException:
            os.close(self.fd)
            raise

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the common lock, after whoever has it now."""
        return record_locks.held(self.fd, COMMON_LOCK)

    def close(self) -> None:
        """Let the lock of this process go. Harmless twice."""
        if self.fd < 0:
            return
        # The mapping, which arrays and views keep alive, holds the open file too: closing ours does not end the lock.
        record_locks.give_back(self.fd, self._process)
        os.close(self.fd)
        self.fd = -1

    def _mapped(self, magic: bytes, processes: int, size: Callable[[int, int], int]) -> mmap.mmap:
        """The file in memory. A process that starts after an edit of the configuration must fit to those that run."""
        found = os.pread(self.fd, _HEADER.size, 0)
        if not any(found):
            # Not a hole in it: a full disk would otherwise be found out by a signal, in the middle of a request.
            os.posix_fallocate(self.fd, 0, size(processes, self.width))
            found = _HEADER.pack(magic, processes, self.width)
            os.pwrite(self.fd, found, 0)
        _, _, self.width = _HEADER.unpack(found.ljust(_HEADER.size, b"\0"))
        expected = size(processes, self.width)
        if found != _HEADER.pack(magic, processes, self.width) or os.fstat(self.fd).st_size != expected:
            raise SharedFileError(
                f"{self.path} is no file for {processes} processes: remove it while none of them runs"
            )
        return mmap.mmap(self.fd, expected)

    def _claim(self) -> None:
        deadline = time.monotonic() + _OWN_LOCK_SECONDS
        while not record_locks.take(self.fd, self._process):
            if time.monotonic() >= deadline:
                raise SharedFileError(f"process {self._process} runs already: it holds its row of {self.path}")
            time.sleep(_RETRY_SECONDS)
