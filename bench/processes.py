"""Child processes of the benchmarks, and the CPU time that they have used."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from recursant.supervise import launch

PYTHON = sys.executable
_START_S = 60.0
_STOP_S = 10.0
# clock_getcpuclockid(3): the clock of a whole process, all its threads, user and system, in nanoseconds. Python
# offers it for threads only. /proc/PID/stat has the same figure in steps of 10 ms, too coarse for one sample.
_SCHEDULER_CLOCK = 2


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    return time.clock_gettime(((~pid) << 3) | _SCHEDULER_CLOCK)


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(child) for child in task.read_text().split()]
    return found


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Child:
    """A running child; one whose output is a pipe answers a line of JSON with another."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def ask(self, **question: Any) -> Any:
        """Send one line of JSON, read one."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        return await self.line()

    async def line(self) -> Any:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"process {self.pid} ended; see its log")
        return json.loads(line)


@contextlib.asynccontextmanager
async def child(command: Sequence[str], log: Path, *, piped: bool = False, **options: Any) -> AsyncIterator[Child]:
    """Run a command that dies with us at the latest; its errors (and, unless piped, its output) go to `log`."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(PYTHON, "-I", "-S", launch.__file__, str(os.getpid()), *command),
            stdin=asyncio.subprocess.PIPE if piped else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if piped else errors,
            stderr=errors,
            limit=2**24,
            **options,
        )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()


@contextlib.asynccontextmanager
async def helper(module: str, log: Path, *arguments: str) -> AsyncIterator[Child]:
    """One of our own modules as a process; ready when it has said its first line."""
    async with ready((PYTHON, "-m", module, *arguments), log) as running:
        yield running


@contextlib.asynccontextmanager
async def ready(command: Sequence[str], log: Path) -> AsyncIterator[Child]:
    """A process that says when it is ready, with one line of JSON."""
    async with child(command, log, piped=True) as running:
        await asyncio.wait_for(running.line(), _START_S)
        yield running


async def until(condition: Any, what: str, process: Child | None = None, seconds: float = _START_S) -> None:
    """Wait for something to become true.

    Raises:
        RuntimeError: it did not, or the process that should bring it about has ended.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:g} s: {what}")
        if process is not None and process.ended:
            raise RuntimeError(f"the process ended before {what}")
        await asyncio.sleep(0.05)
