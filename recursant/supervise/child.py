"""The life of one process: start, ready, death, restart, end."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from recursant.supervise.logs import LogFile
from recursant.supervise.process import Died, Event, ProcessSpec, Ready, Started, Stopped, describe_exit
from recursant.supervise.restart import Backoff

_LAUNCHER: Final = Path(__file__).with_name("launch.py")
_PROBE_INTERVAL_S: Final = 0.03


class StartError(Exception):
    """A process did not come up. The text is one line for the operator."""


class Child:
    """Keeps one process running from `run()` until `stop()` or `kill()`.

    Without a log file it writes where we write.
    """

    def __init__(self, spec: ProcessSpec, log: LogFile | None, on_event: Callable[[Event], None]) -> None:
        self.spec = spec
        self.log = log
        self.pid: int | None = None
        self.ready = asyncio.Event()  # It was ready at least once.
        self.ended = asyncio.Event()
        self._on_event = on_event
        self._stopping = asyncio.Event()
        self._killing = asyncio.Event()

    async def run(self, after: Sequence["Child"] = ()) -> None:
        """Start it and keep it running; returns after it was told to stop and has ended.

        Args:
            after: those that must be ready before the first start.

        Raises:
            StartError: it ended before it was ever ready, or for good.
        """
        backoff = Backoff(self.spec.restart) if self.spec.restart is not None else None
        clock = asyncio.get_running_loop().time
        try:
            for other in after:
                await _first_of(other.ready, self._stopping)
            while not self._stopping.is_set():
                process = await self._spawn()
                began = clock()
                status = await self._watch(process)
                if status is None:
                    self._on_event(Stopped(self.spec.name))
                    return
                delay = backoff.delay_after(clock() - began) if backoff is not None and self.ready.is_set() else None
                self._on_event(Died(self.spec.name, process.pid, status, delay))
                if delay is None:
                    raise StartError(self._obituary(status))
                await _first_of(self._stopping, timeout_s=delay)
        finally:
            self.ended.set()

    def stop(self) -> None:
        """Let running work end, then SIGTERM, then, after its grace, SIGKILL. `ended` tells when it is over."""
        self._stopping.set()

    def kill(self) -> None:
        """SIGKILL at once."""
        self._stopping.set()
        self._killing.set()

    async def _spawn(self) -> asyncio.subprocess.Process:
        # The kernel kills the child at the end of the *thread* that made it (prctl(2), PR_SET_PDEATHSIG).
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("children must be started from the main thread")
        try:
            process = await self._fork()
        except OSError as error:
            raise StartError(f"cannot start {self.spec.name}: {error.strerror}") from error
        self.pid = process.pid
        self._on_event(Started(self.spec.name, process.pid))
        return process

    async def _fork(self) -> asyncio.subprocess.Process:
        with self.log.open_for_child() if self.log is not None else contextlib.nullcontext() as output:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), *self.spec.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.spec.env},
                # Ctrl-C in the terminal is for us alone: we stop the children in order.
                start_new_session=True,
            )

    async def _watch(self, process: asyncio.subprocess.Process) -> int | None:
        """Wait for its end: the exit status if it died by itself, None if it was told to."""
        exited = asyncio.create_task(process.wait())
        probing = asyncio.create_task(self._probe_until_ready(process.pid))
        try:
            await _first_of(exited, self._stopping)
            if exited.done():
                return exited.result()
            await self._end(process, exited)
            return None
        finally:
            self.pid = None
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            if not exited.done():  # We are being cancelled.
                _signal(process.pid, signal.SIGKILL)
                await exited

    async def _end(self, process: asyncio.subprocess.Process, exited: asyncio.Task[int]) -> None:
        if self.spec.quiesce is not None:
            quiescing = asyncio.ensure_future(self.spec.quiesce())
            await _first_of(quiescing, exited, self._killing)
            quiescing.cancel()
            await asyncio.gather(quiescing, return_exceptions=True)
        if not self._killing.is_set() and not exited.done():
            _signal(process.pid, signal.SIGTERM)
            await _first_of(exited, self._killing, timeout_s=self.spec.grace_s)
        if not exited.done():
            _signal(process.pid, signal.SIGKILL)
            await exited

    async def _probe_until_ready(self, pid: int) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        while not await self.spec.ready.passes():  # noqa: ASYNC110 - another process cannot set an event
            await asyncio.sleep(_PROBE_INTERVAL_S)
        again = self.ready.is_set()
        self.ready.set()
        self._on_event(Ready(self.spec.name, pid, clock() - began, again))

    def _obituary(self, status: int) -> str:
        what = f"{self.spec.name} ended by itself ({describe_exit(status)})"
        if self.log is None:
            return what
        line = self.log.last_line()
        return f"{what}{f': {line}' if line else ''} [{self.log.path}]"


def _signal(pid: int, number: signal.Signals) -> None:
    """Signal the whole process group: each child leads its own."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass  # It ended this moment.
    except PermissionError:
        # The group is not there yet: between fork and setsid.
        os.kill(pid, number)


async def _first_of(*things: "asyncio.Future[Any] | asyncio.Event", timeout_s: float | None = None) -> None:
    """Wait until one of the futures is done or one of the events is set, or for `timeout_s` seconds."""
    waits = {asyncio.ensure_future(thing.wait()) for thing in things if isinstance(thing, asyncio.Event)}
    futures = {thing for thing in things if isinstance(thing, asyncio.Future)}
    try:
        await asyncio.wait(waits | futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
