"""The run of `recursant up`: start, say when it is ready, keep it so, stop on a signal."""

import asyncio
import http.client
import json
import signal
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from recursant.config.watch import ConfigWatch
from recursant.supervise.layout import Layout
from recursant.supervise.plan import dialled, endpoints
from recursant.supervise.probe import HttpProbe
from recursant.supervise.process import Died, Event, ProcessSpec, Started
from recursant.supervise.rundir import RunDirectory
from recursant.supervise.supervisor import Supervisor

# For all processes to come up. Generous: a laptop on battery, a container with half a core.
START_TIMEOUT_S: Final = 90.0
_READY_PATH: Final = "/readyz"
_READY_INTERVAL_S: Final = 0.05
# When to say why the gateway is not ready, and how often to say it again.
_PATIENCE_S: Final = 5.0
_REMINDER_S: Final = 30.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class View(Protocol):
    """Who is told how the run goes."""

    def event(self, event: Event) -> None:
        """Something happened to a process."""
        ...

    def waiting(self, reason: str) -> None:
        """All processes run, but the gateway is not ready."""
        ...

    def ready(self) -> None:
        """Requests are served."""
        ...

    def stopping(self, *, at_once: bool) -> None:
        """A signal arrived: running requests may end, or, at the second signal, are cut."""
        ...


async def run_up(
    specs: Sequence[ProcessSpec], layout: Layout, run: RunDirectory, view: View, watch: ConfigWatch | None = None
) -> None:
    """Start the processes and keep them running until SIGINT or SIGTERM; a second signal ends them at once.

    Args:
        specs: the processes, in the order of their start.
        layout: what runs where.
        run: the run directory.
        view: is told how it goes.
        watch: runs beside them, once they run; None: nobody watches the configuration.

    Raises:
        StartError: a process did not come up; the others are stopped by then.
    """
    supervisor: Supervisor

    def on_event(event: Event) -> None:
        if isinstance(event, Started | Died):
            run.write(run.endpoints, endpoints(layout, run, specs, supervisor.pids).to_json())
        view.event(event)

    supervisor = Supervisor(specs, run.logs, on_event)
    stop = asyncio.Event()
    _on_signals(stop, supervisor, view)
    serving = asyncio.create_task(_serve(supervisor, layout, view, watch))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        serving.cancel()
        [outcome] = await asyncio.gather(serving, return_exceptions=True)
        await supervisor.stop()
    if isinstance(outcome, Exception):
        raise outcome


def _on_signals(stop: asyncio.Event, supervisor: Supervisor, view: View) -> None:
    def received() -> None:
        view.stopping(at_once=stop.is_set())
        if stop.is_set():
            supervisor.kill()
        stop.set()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, received)


async def _serve(supervisor: Supervisor, layout: Layout, view: View, watch: ConfigWatch | None) -> None:
    await supervisor.start(START_TIMEOUT_S)
    failed = asyncio.create_task(supervisor.wait_failed())
    ready = asyncio.create_task(_gateway_ready(layout, view.waiting))
    # It never ends by itself: if it does, that is a bug, and it is raised here.
    watching = [] if watch is None else [asyncio.create_task(watch.run())]
    try:
        await asyncio.wait((failed, ready, *watching), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            view.ready()
        done, _ = await asyncio.wait((failed, *watching), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (failed, ready, *watching):
            task.cancel()


async def _gateway_ready(layout: Layout, waiting: Callable[[str], None]) -> None:
    """Wait until the gateway says that it is ready: for as long as it takes, real workers load their models."""
    gateway = layout.config.gateway
    probe = HttpProbe(dialled(gateway.host), gateway.port, _READY_PATH)
    clock = asyncio.get_running_loop().time
    reminder = clock() + _PATIENCE_S
    while not await probe.passes():
        if clock() >= reminder:
            reminder = clock() + _REMINDER_S
            waiting(await asyncio.to_thread(_why_not_ready, probe))
        await asyncio.sleep(_READY_INTERVAL_S)


def _why_not_ready(probe: HttpProbe) -> str:
    """What the gateway itself says."""
    connection = http.client.HTTPConnection(probe.host, probe.port, timeout=2)
    try:
        connection.request("GET", probe.path)
        response = connection.getresponse()
        body = response.read(4_096)
    except (OSError, http.client.HTTPException) as error:
        return f"the gateway does not answer: {error}"
    finally:
        connection.close()
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"GET {probe.path} answers {response.status}"
