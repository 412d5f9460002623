"""Locks on single bytes of a file, which belong to the open file: the kernel ends them however their process ends."""

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from typing import Final

# `struct flock` of Linux.
_FLOCK: Final = struct.Struct("hhqqi4x")


def take(fd: int, byte: int) -> bool:
    """Take the lock on a byte; False where somebody else has it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def give_back(fd: int, byte: int) -> None:
    """Give a lock back; harmless without one."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))


def taken_elsewhere(fd: int, byte: int) -> bool:
    """Does somebody else have the lock on a byte?"""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
    return bool(kind != fcntl.F_UNLCK)


@contextlib.contextmanager
def held(fd: int, byte: int) -> Iterator[None]:
    """Hold the lock on a byte, after whoever has it now."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    try:
        yield
    finally:
        give_back(fd, byte)
