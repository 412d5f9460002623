"""The configured workers, scraped from outside (SPEC B3c): what they say becomes their heartbeat.

Of a worker that cannot be scraped that is said. So when nothing is said of any, nobody scrapes, and all of them may
be well.
"""

import asyncio
import json
import logging
import random
import time
import uuid
from dataclasses import replace
from http import HTTPStatus
from typing import Final

import httpx

from recursant.config.model import Config, StaticWorker
from recursant.fleet.address import join_address
from recursant.fleet.families import FamilyResolver
from recursant.fleet.static import static_state
from recursant.store.quiet_log import QuietLog
from recursant.store.workers import StoreError, WorkerStore
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState
from recursant.worker.engine_look import PAUSED, says_true
from recursant.worker.metrics_text import EngineMetrics, parse_metrics
from recursant.worker.model_list import ListedModel, declared_models, fill_models, parse_model_list
from recursant.worker.rates import CounterWindow, PeakRate
from recursant.worker.sidecar_view import Trouble

# Scrapes at once. Those that failed last time have places of their own, so that hanging workers hold up none else.
MAX_SCRAPES: Final = 128
MAX_FAILING_SCRAPES: Final = 32
# A scrape takes its interval at most, within these bounds. Seconds.
TIMEOUT_MIN_S: Final = 0.5
TIMEOUT_MAX_S: Final = 5.0
# The list of models is read again after this long, and after every failure or restart. Seconds.
MODELS_REFRESH_S: Final = 30.0
# A vLLM answers with about 60 KB.
MAX_BODY_BYTES: Final = 4 * 1024 * 1024

# There in development mode only, as PAUSED is.
SLEEPING: Final = "/is_sleeping"

_log = logging.getLogger(__name__)


class ScrapeError(Exception):
    """The worker did not answer as a healthy vLLM does."""


class StaticScraper:
    """Asks every configured worker at its interval and publishes what it says."""

    def __init__(self, config: Config, store: WorkerStore) -> None:
        families = FamilyResolver.from_config(config)
        self._store = store
        self._targets = [
            ScrapeTarget(worker, families)
            for worker in {worker.worker_id: worker for worker in config.workers}.values()
        ]
        self._healthy = asyncio.Semaphore(MAX_SCRAPES)
        self._failing = asyncio.Semaphore(MAX_FAILING_SCRAPES)
        self._unpublished = QuietLog(_log)
        self._missed_beats = config.liveness.missed_beats

    async def run(self) -> None:
        """Scrape until cancelled."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=MAX_SCRAPES)
        # No proxy: these are our own machines.
        async with (
            httpx.AsyncClient(timeout=TIMEOUT_MAX_S, limits=limits, trust_env=False) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for target in self._targets:
                tasks.create_task(self._follow(target, client))

    async def _follow(self, target: "ScrapeTarget", client: httpx.AsyncClient) -> None:
        clock = time.monotonic
        # Spread over the interval, so that they are not all asked at once.
        await asyncio.sleep(target.interval_s * random.uniform(0, 0.5))
        due = clock()
        while True:
            await self._scrape(target, client)
            # A little early on average: three intervals without a beat are the end.
            due = max(due + target.interval_s * random.uniform(0.85, 1.0), clock())
            await asyncio.sleep(due - clock())

    async def _scrape(self, target: "ScrapeTarget", client: httpx.AsyncClient) -> None:
        async with self._failing if target.failing else self._healthy:
            state = await target.scrape(client)
        if state is None and target.failures >= self._missed_beats:
            state = target.unreachable()
        if state is None:
            return
        state.scraped = True
        try:
            await self._store.publish(state)
        except StoreError as error:
            self._unpublished.warning("cannot publish what a scrape found: %s", error)
        except ValueError as error:
            self._unpublished.warning("%s says what no worker can: %s", state.id, error)


class ScrapeTarget:
    """One configured worker: where it is asked, and what must be remembered between two answers."""

    def __init__(
        self,
        worker: StaticWorker,
        families: FamilyResolver,
        *,
        base_url: str | None = None,
        api_key: str = "",
        timeout_s: float | None = None,
        models_refresh_s: float = MODELS_REFRESH_S,
    ) -> None:
        """Take the worker; connect to nothing yet.

        Args:
            worker: what is known of it.
            families: names the families of its models.
            base_url: where it is asked; None: at its own address.
            api_key: what its clients send, if it wants to see that; "" without.
            timeout_s: of one scrape; None: its interval, within bounds.
            models_refresh_s: after so long the list of models is read again.
        """
        self._worker = worker
        self._families = families
        self._base = (base_url or f"http://{join_address(worker.host, worker.port)}").rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.interval_s = worker.scrape_interval_ms / 1_000
        self._timeout_s = timeout_s or min(max(self.interval_s, TIMEOUT_MIN_S), TIMEOUT_MAX_S)
        self._models_refresh_s = models_refresh_s
        # In a row, up to now.
        self.failures = 0
        # Why the newest scrape found nothing; None where it did.
        self.trouble: Trouble | None = None
        # Of this scraper and of the worker's process: either one's restart counts afresh.
        self._scraper = uuid.uuid4().hex
        self._started_at: float | None = None
        self._sequence = 0
        # What it said last, or the configuration says of it.
        self._last = static_state(worker)
        self._models: list[ListedModel] | None = None
        self._models_read_at = 0.0
        # Routes of development mode that this process does not have.
        self._absent: set[str] = set()
        self._tokens = CounterWindow()
        self._queue = CounterWindow()
        self._gaps = CounterWindow()
        self._peak = PeakRate()

    @property
    def failing(self) -> bool:
        """The newest scrape found nothing."""
        return self.failures > 0

    def unreachable(self) -> WorkerState | None:
        """The report that it does not answer; None where nobody knows what it serves, so nobody can miss it."""
        if not self._last.models:
            return None
        state = WorkerState()
        state.CopyFrom(self._last)
        self._sequence += 1
        state.sequence = self._sequence
        state.incarnation = self._incarnation()
        state.phase = WorkerPhase.WORKER_PHASE_UNREACHABLE
        return state

    async def scrape(self, client: httpx.AsyncClient) -> WorkerState | None:
        """Ask the worker; None when it does not answer as it should."""
        try:
            async with asyncio.timeout(self._timeout_s):
                state = await self._ask(client)
        except (TimeoutError, httpx.TimeoutException):
            self._failed(Trouble.LATE, f"no answer within {self._timeout_s:g} s")
        except httpx.ConnectError as error:
            self._failed(Trouble.REFUSED, str(error))
        except (ScrapeError, httpx.HTTPError, httpx.InvalidURL) as error:
            self._failed(Trouble.WRONG, str(error) or type(error).__name__)
        else:
            if self.failing:
                _log.info("scraping worker %s again", self._worker.worker_id)
            self.failures = 0
            self.trouble = None
            self._last = state
            return state
        return None

    def _failed(self, trouble: Trouble, reason: str) -> None:
        if not self.failing:
            _log.warning("cannot scrape worker %s: %.300s", self._worker.worker_id, reason)
        self.failures += 1
        self.trouble = trouble
        self._models = None

    async def _ask(self, client: httpx.AsyncClient) -> WorkerState:
        await self._get(client, "/health")
        text = (await self._get(client, "/metrics")).decode(errors="replace")
        try:
            metrics = parse_metrics(text)
            now = time.monotonic()
            if metrics.started_at != self._started_at:
                self._started_at = metrics.started_at
                self._models = None
                self._absent.clear()
            if metrics.awake is None:
                metrics = replace(metrics, awake=not await self._is(client, SLEEPING))
            if metrics.awake and await self._is(client, PAUSED):
                # No metric tells that. It hangs just as one that sleeps does.
                metrics = replace(metrics, awake=False)
            if self._models is None or now - self._models_read_at >= self._models_refresh_s:
                self._models = await self._list_models(client)
                self._models_read_at = now
            return self._state(metrics, self._models, now)
        except ValueError as error:
            # Its answers make no sense, or hold numbers that a report has no room for.
            raise ScrapeError(str(error)) from None

    def _state(self, metrics: EngineMetrics, models: list[ListedModel], now: float) -> WorkerState:
        state = static_state(self._worker)
        del state.models[:]
        fill_models(state, models, self._worker, self._families)
        # Asleep or paused, it looks healthy and lets requests hang.
        state.phase = WorkerPhase.WORKER_PHASE_WARMING if metrics.awake is False else WorkerPhase.WORKER_PHASE_READY
        self._sequence += 1
        state.sequence = self._sequence
        state.incarnation = self._incarnation()
        state.engine = "vllm"
        metrics.fill(state)
        if metrics.generated_tokens is not None:
            self._tokens.add(now, metrics.generated_tokens)
            if (risen := self._tokens.risen()) is not None:
                state.token_rate = risen[1] / risen[0]
        gap_s: float | None = None
        if metrics.gap_seconds is not None and metrics.gaps is not None:
            self._gaps.add(now, metrics.gap_seconds, metrics.gaps)
            if (risen := self._gaps.risen()) is not None and risen[2] > 0:
                gap_s = risen[1] / risen[2]
        peak = self._peak.add(now, state.token_rate, gap_s)
        if peak is not None:
            state.peak_token_rate = peak
        if metrics.queue_seconds is not None and metrics.queued_requests is not None:
            self._queue.add(now, metrics.queue_seconds, metrics.queued_requests)
            if (risen := self._queue.risen()) is not None and risen[2] > 0:
                state.queue_wait_ms = risen[1] / risen[2] * 1_000
        return state

    def _incarnation(self) -> str:
        return f"{self._scraper}-{self._started_at or 0:.3f}"

    async def _is(self, client: httpx.AsyncClient, path: str) -> bool:
        """What a route of development mode says, which is named after it; False where there is none."""
        if path in self._absent:
            return False
        try:
            return says_true(await self._get(client, path), path.removeprefix("/"))
        except ScrapeError:
            self._absent.add(path)
            return False

    async def _list_models(self, client: httpx.AsyncClient) -> list[ListedModel]:
        try:
            body = await self._get(client, "/v1/models")
        except _UnauthorizedError:
            # Its API key is for its clients. What the configuration says has to do.
            declared = declared_models(self._worker)
            if declared:
                return declared
            raise
        try:
            return parse_model_list(json.loads(body))
        except RecursionError:
            raise ScrapeError("/v1/models answered JSON that is nested too deeply") from None

    async def _get(self, client: httpx.AsyncClient, path: str) -> bytes:
        async with client.stream("GET", self._base + path, headers=self._headers) as response:
            if response.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise _UnauthorizedError(f"GET {path} wants an API key: name the worker's models in the configuration")
            if response.status_code != HTTPStatus.OK:
                raise ScrapeError(f"GET {path} answered {response.status_code}")
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise ScrapeError(f"GET {path} answered more than {MAX_BODY_BYTES} bytes")
            return bytes(body)


class _UnauthorizedError(ScrapeError):
    """The worker wants an API key."""
