"""Several extproc processes in the foreground, started again when they die, drained when told to stop."""

import asyncio
import logging
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from recursant.config.model import ExtProc
from recursant.supervise.child import Child
from recursant.supervise.plan import EXTPROC, dialled
from recursant.supervise.probe import Probe, TcpProbe, UnixProbe
from recursant.supervise.process import Died, Event, ProcessSpec, describe_exit
from recursant.supervise.rundir import COUNTS_FILE

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# Where the counts are no file on a disk.
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it

_log = logging.getLogger(__name__)


async def serve(extproc: ExtProc, command: Callable[[int, Path], tuple[str, ...]]) -> None:
    """Run the processes until SIGINT or SIGTERM, then let them drain; a second signal ends them at once.

    They write to our own standard output and error.

    Args:
        extproc: how many, and where each of them listens.
        command: what runs one of them, by its number and the file that they count in.

    Raises:
        StartError: one ended before it was ever ready; the others are stopped by then.
    """
    folder = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="recursant-", dir=folder) as made:
        counts = Path(made) / COUNTS_FILE
        children = [
            Child(
                ProcessSpec(
                    name=f"{EXTPROC}-{process}",
                    command=command(process, counts),
                    ready=_probe(extproc.listen_of(process)[0]),
                ),
                log=None,
                on_event=_tell,
            )
            for process in range(1, extproc.processes + 1)
        ]
        await _run(children)


async def _run(children: list[Child]) -> None:
    stopping = asyncio.Event()

    def received() -> None:
        for child in children:
            if stopping.is_set():
                child.kill()
            child.stop()
        stopping.set()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, received)
    tasks = [asyncio.create_task(child.run(), name=child.spec.name) for child in children]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for child in children:
            child.stop()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


def _probe(address: str) -> Probe:
    if address.startswith("unix:"):
        return UnixProbe(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    return TcpProbe(dialled(host.strip("[]")), int(port))


def _tell(event: Event) -> None:
    if isinstance(event, Died):
        then = "" if event.restart_in_s is None else f", starting it again in {event.restart_in_s:g} s"
        _log.warning("%s (pid %d) died: %s%s", event.name, event.pid, describe_exit(event.exit_status), then)
