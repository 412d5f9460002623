"""One simulated worker as a service: binds, serves, reports, drains."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final

import uvicorn

from recursant.sim.control import Control, crash
from recursant.sim.options import SimOptions
from recursant.sim.server import SimServer
from recursant.sim.worker import SimWorker
from recursant.v1.worker_state_pb2 import WorkerPhase
from recursant.worker.reporter import Reporter

log = logging.getLogger(__name__)

BACKLOG: Final = 2_048
# After the drain there is nothing to wait for but the connections' own end.
CLOSE_TIMEOUT_S: Final = 2


class ListenError(OSError):
    """The worker cannot listen where it was told to."""


class _HttpServer(uvicorn.Server):
    """uvicorn, leaving the process's signals to whoever runs the service."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class SimService:
    """A running worker; also an asynchronous context manager."""

    def __init__(self, options: SimOptions, on_crash: Callable[[], None] = crash) -> None:
        self.options = options
        self._on_crash = on_crash
        self._tasks: list[asyncio.Task[None]] = []
        self._reporter: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens, serves and reports.

        Raises:
            ListenError: the address cannot be had; nothing was started.
        """
        listener = _listen(self.options.host, self.options.port)
        self.port: int = listener.getsockname()[1]
        self.worker = SimWorker(self.options, self.port)
        config = uvicorn.Config(
            SimServer(self.worker, Control(self.worker, self._on_crash)),
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=True,
            backlog=BACKLOG,
            timeout_keep_alive=self.options.keep_alive_s,
            timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
        )
        self._http = _HttpServer(config)
        self._tasks = [
            asyncio.create_task(self.worker.runner.run(), name="engine"),
            asyncio.create_task(self._http.serve(sockets=[listener]), name="http"),
        ]
        await self._http.accepting.wait()
        if self.options.redis_url or self.options.api_url:
            reporter = Reporter(
                self.worker.state,
                redis_url=self.options.redis_url,
                api_url=self.options.api_url,
                interval_ms=self.options.report_interval_ms,
            )
            self._reporter = asyncio.create_task(reporter.run(), name="reporter")
            self._tasks.append(self._reporter)
        log.info(
            "listening on %s: worker %s, models %s, profile %s",
            self.url,
            self.worker.id,
            ", ".join(self.options.models),
            self.options.profile,
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        host = f"[{self.options.host}]" if ":" in self.options.host else self.options.host
        return f"http://{host}:{self.port}"

    async def failed(self) -> None:
        """Waits until a part of it ends by itself, which none should, and raises what it raised."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                task.result()
                raise RuntimeError(f"the {task.get_name()} task ended")

    async def stop(self) -> None:
        """Drains: reports it first, then refuses new requests, lets running ones end up to a bound, and leaves."""
        worker = self.worker
        worker.phase = WorkerPhase.WORKER_PHASE_DRAINING
        if self._reporter is not None:
            await asyncio.sleep(self.options.drain_grace_s)
        worker.refusing = True
        log.info("draining: %d requests in flight", worker.in_flight)
        try:
            async with asyncio.timeout(self.options.drain_timeout_s):
                await worker.idle()
        except TimeoutError:
            log.warning("cutting %d requests that did not end in time", worker.in_flight)
            worker.hang_up()
        if self._reporter is not None:
            # Its last word is STOPPED.
            self._reporter.cancel()
            await asyncio.wait([self._reporter])
        self._http.should_exit = True
        engine, http = self._tasks[:2]
        await asyncio.wait([http])
        engine.cancel()
        await asyncio.wait([engine])
        log.info("stopped")

    async def __aenter__(self) -> "SimService":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


async def serve(options: SimOptions, stop: asyncio.Event) -> None:
    """Runs a worker until `stop` is set and everything is drained.

    Raises:
        ListenError: its address cannot be had.
    """
    async with SimService(options) as service:
        stopping = asyncio.create_task(stop.wait())
        failing = asyncio.create_task(service.failed())
        try:
            await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                failing.result()
        finally:
            stopping.cancel()
            failing.cancel()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port in use is known before anything else is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A token is a small write that must not wait for the one before to be acknowledged.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = "the port is in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
        raise ListenError(f"cannot listen on {host}:{port}: {reason}") from None
    listener.setblocking(False)
    return listener
