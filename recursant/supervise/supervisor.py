"""Starts processes in order, keeps them alive, and stops them in reverse order."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from recursant.supervise.child import Child, StartError
from recursant.supervise.logs import LogFile
from recursant.supervise.process import Event, ProcessSpec

_LOG_CHECK_INTERVAL_S: Final = 15.0


class Supervisor:
    """A set of processes that live and end together.

    Use it from the main thread's event loop. After a hard death of this process (`kill -9`) the kernel kills every
    child (see `launch.py`).
    """

    def __init__(self, specs: Sequence[ProcessSpec], logs: Path, on_event: Callable[[Event], None]) -> None:
        """Take the processes; nothing starts yet.

        Args:
            specs: in an order in which every process comes after those it waits for.
            logs: folder of the log files; must exist.
            on_event: told everything, on the event loop; must be quick.

        Raises:
            ValueError: a name appears twice, or a process waits for one that does not come before it.
        """
        self._children: dict[str, Child] = {}
        self._logs: dict[str, LogFile] = {}
        for spec in specs:
            unknown = [name for name in spec.after if name not in self._children]
            if unknown or spec.name in self._children:
                raise ValueError(f"process {spec.name!r}: its name is taken, or {unknown} do not come before it")
            self._logs[spec.name] = LogFile(logs, spec.name)
            self._children[spec.name] = Child(spec, self._logs[spec.name], on_event)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._housekeeping: asyncio.Task[None] | None = None

    @property
    def pids(self) -> dict[str, int]:
        """Names and process ids of those that run now."""
        return {name: child.pid for name, child in self._children.items() if child.pid is not None}

    async def start(self, timeout_s: float) -> None:
        """Start all; returns when all are ready. After an exception the caller still has to `stop()`.

        Raises:
            StartError: one ended while starting, or they were not all ready within `timeout_s` seconds.
        """
        for name, child in self._children.items():
            self._logs[name].begin()
            after = [self._children[other] for other in child.spec.after]
            self._tasks[name] = asyncio.create_task(child.run(after), name=f"supervise {name}")
        self._housekeeping = asyncio.create_task(self._bound_logs())
        ready = asyncio.create_task(self._all_ready())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait({ready, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            late = [
                name for name, child in self._children.items() if not child.ready.is_set() and child.pid is not None
            ]
            said = next((f": {line}" for name in late if (line := self._logs[name].last_line())), "")
            raise StartError(f"not ready after {timeout_s:g} s: {', '.join(late)}{said}") from None
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
        self._raise_failure()

    async def wait_failed(self) -> None:
        """Wait until a process is gone for good, which only those without a restart policy ever are.

        Raises:
            StartError: always; it says which and why.
        """
        await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        self._raise_failure()

    async def stop(self) -> None:
        """Stop all, each before those it waited for at the start. Bounded by their drain and grace times."""
        await asyncio.gather(*(self._stop(child) for child in self._children.values()))
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)

    def kill(self) -> None:
        """End all at once; a `stop()` in progress returns soon after."""
        for child in self._children.values():
            child.kill()

    async def _stop(self, child: Child) -> None:
        if child.spec.name not in self._tasks:
            return
        for other in self._children.values():
            if child.spec.name in other.spec.after:
                await other.ended.wait()
        child.stop()
        await child.ended.wait()

    async def _all_ready(self) -> None:
        for child in self._children.values():
            await child.ready.wait()

    def _raise_failure(self) -> None:
        for task in self._tasks.values():
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(_LOG_CHECK_INTERVAL_S)
            for log in self._logs.values():
                await asyncio.to_thread(log.bound)
