"""Reports a vLLM from beside it (SPEC B3b): scrapes its metrics on the same machine, for as long as it lives."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import httpx

from recursant.config.model import StaticModel, StaticWorker
from recursant.fleet.address import join_address
from recursant.fleet.families import FamilyResolver
from recursant.fleet.static import static_state
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState
from recursant.worker.gpu import GpuFacts
from recursant.worker.own_address import complete_address
from recursant.worker.reporter import Reporter
from recursant.worker.scrape import ScrapeTarget
from recursant.worker.settings import WorkerSettings
from recursant.worker.sidecar_view import SidecarView

DEFAULT_SCRAPE_MS: Final = 500
# A LoRA adapter that was loaded or unloaded is known after this long. Seconds.
MODELS_REFRESH_S: Final = 2.0
_PORTS: Final = {"http": 80, "https": 443}
# How often it is looked whether a drain is over. Seconds.
DRAIN_TICK_S: Final = 0.1
# A scrape on the same machine that takes longer than this tells nothing. Seconds.
SCRAPE_TIMEOUT_S: Final = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SidecarOptions:
    """What a sidecar is told.

    Attributes:
        settings: as what and where it reports; `engine_url` is what it scrapes.
        models: what the engine serves, for one whose /v1/models wants a key.
        max_num_seqs: requests that it runs at once; None where nobody said.
        priority_scheduling: it orders requests by their priority; None where nobody said.
        scrape_ms: between two scrapes.
        drain_s: how long running requests get to end when the sidecar is stopped.
    """

    settings: WorkerSettings
    models: tuple[str, ...] = ()
    max_num_seqs: int | None = None
    priority_scheduling: bool | None = None
    scrape_ms: int = DEFAULT_SCRAPE_MS
    drain_s: float = 30.0
    read_gpu: Callable[[], GpuFacts | None] = field(default=lambda: None)


class Sidecar:
    """One running sidecar."""

    def __init__(self, options: SidecarOptions) -> None:
        """Take its options; connect to nothing yet.

        Raises:
            ValueError: the URL of the engine, or of where to report, is none.
        """
        self._options = options
        settings = options.settings
        self._worker = _static_worker(options)
        self._target = ScrapeTarget(
            self._worker,
            FamilyResolver((), ()),
            base_url=settings.engine_url,
            api_key=settings.api_key,
            timeout_s=SCRAPE_TIMEOUT_S,
            models_refresh_s=MODELS_REFRESH_S,
        )
        self._address = settings.address
        self._reporter = Reporter(
            self.state,
            redis_url=settings.redis_url or None,
            api_url=settings.api_url or None,
            interval_ms=settings.interval_ms,
        )
        bare = static_state(self._worker)
        bare.phase = WorkerPhase.WORKER_PHASE_WARMING
        bare.engine = "vllm"
        self.view = SidecarView(bare)

    async def run(self, stop: asyncio.Event) -> None:
        """Scrape and report until `stop` is set; then announce it, let running requests end, and say farewell."""
        settings = self._options.settings
        scraping = asyncio.create_task(self._scrape(), name="scrape")
        reporting = asyncio.create_task(self._report(settings), name="report")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        tasks = {scraping, reporting, stopping}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._drain()
        finally:
            # The reporter's last word is STOPPED.
            for task in (reporting, scraping, stopping):
                task.cancel()
            await asyncio.wait(tasks)

    def state(self) -> WorkerState:
        """The report of this moment."""
        options = self._options
        state = self.view.state(time.monotonic())
        state.address = self._address
        if options.settings.max_queue is not None:
            state.max_queue = options.settings.max_queue
        if options.max_num_seqs is not None:
            state.max_num_seqs = options.max_num_seqs
        if options.priority_scheduling is not None:
            state.priority_scheduling = options.priority_scheduling
        for model in state.models:
            model.family = options.settings.family
        gpu = options.read_gpu()
        if gpu is not None:
            gpu.fill(state)
        return state

    # --- inside ---

    async def _scrape(self) -> None:
        interval_s = self._options.scrape_ms / 1_000
        # No proxy, and no certificate to check: it is on this machine.
        async with httpx.AsyncClient(timeout=SCRAPE_TIMEOUT_S, trust_env=False, verify=False) as client:  # noqa: S501
            due = time.monotonic()
            while True:
                state = await self._target.scrape(client)
                now = time.monotonic()
                if state is not None:
                    self.view.answered(state, now)
                elif self._target.trouble is not None:
                    self.view.failed(self._target.trouble, now)
                due = max(due + interval_s, now)
                await asyncio.sleep(due - now)

    async def _report(self, settings: WorkerSettings) -> None:
        if settings.redis_url:
            self._address = await complete_address(settings.address, settings.redis_url, _log)
        _log.info("reporting %s as worker %s at %s", settings.engine_url, settings.worker_id, self._address)
        await self._reporter.run()

    async def _drain(self) -> None:
        self.view.drain(time.monotonic())
        _log.info("draining: the engine has %d requests", self.view.in_flight)
        try:
            async with asyncio.timeout(self._options.drain_s):
                # Looked at rather than waited for: it follows from scrapes and from time.
                while not self.view.is_drained(time.monotonic()):  # noqa: ASYNC110
                    await asyncio.sleep(DRAIN_TICK_S)
        except TimeoutError:
            _log.warning("leaving with %d requests that did not end in time", self.view.in_flight)
        else:
            _log.info("drained: it is safe to stop the engine")


def _static_worker(options: SidecarOptions) -> StaticWorker:
    settings = options.settings
    host, port = _host_and_port(settings.engine_url)
    return StaticWorker(
        host=host,
        port=port,
        id=settings.worker_id,
        models=tuple(StaticModel(name=name, family=settings.family or None) for name in options.models),
        exclusive=settings.exclusive,
        capacity_tokens=settings.capacity_tokens,
        scrape_interval_ms=max(100, options.scrape_ms),
    )


def address_of(url: str) -> str:
    """Where Envoy dials the engine at a URL that only this machine may know: ":port" where its host is this machine.

    Raises:
        ValueError: it is no URL.
    """
    host, port = _host_and_port(url)
    return f":{port}" if host in ("localhost", "127.0.0.1", "::1") else join_address(host, port)


def _host_and_port(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        if parts.hostname:
            return parts.hostname, parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        pass
    raise ValueError(f"--url: expected http://host:port, got {url[:300]!r}")
