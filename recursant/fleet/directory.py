"""The fleet, live: follows the reports in Redis and tells its subscribers of every change."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from recursant.agents.policy import AgentPolicy
from recursant.config.model import Config
from recursant.fleet.families import FamilyResolver
from recursant.fleet.registry import Gone, Registry, Update
from recursant.fleet.resolve import HostResolver
from recursant.fleet.ward import Ward
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.store.quiet_log import QuietLog
from recursant.store.workers import LinkDown, LinkUp, Report, Snapshot, StoreError, StoreEvent, WorkerStore

# How often silence is looked at. Seconds.
TICK_S: Final = 0.05
# Departures taken out of Redis at once.
FORGET_BATCH: Final = 1_000
# More departures at once than these are told in one line.
_MAX_FAREWELLS: Final = 10

_log = logging.getLogger(__name__)


class FleetDirectory:
    """Every worker that the control plane knows, kept up to date by `run`.

    Without Redis, or while it is away, what is known stays and the configured workers serve.
    """

    def __init__(self, config: Config, *, name: str = "", judges: bool = False) -> None:
        """Take the configured workers; connect to nothing yet.

        Args:
            config: the whole configuration.
            name: of this service, as isolations name their maker.
            judges: this process weighs evidence about workers, besides following what others found.

        Raises:
            ValueError: `redis.url` is not a URL of Redis.
        """
        self._config = config
        self._families = FamilyResolver.from_config(config)
        self._registry = Registry(config, self._families)
        self.ward = Ward(config, by=name, records=lambda: self._registry.records, tell=self._tell_again, judges=judges)
        self._records: dict[str, WorkerRecord] = dict(self._registry.records)
        self._store = WorkerStore(config.redis.url) if config.redis.url else None
        self._resolver = HostResolver(self._registry.names, self._resolved)
        self._on_record: list[Callable[[WorkerRecord], None]] = []
        self._on_gone: list[Callable[[str], None]] = []
        # Departures waiting to be taken out of Redis; one that finds no room is taken out at its next turn.
        self._forgotten: asyncio.Queue[str] = asyncio.Queue(config.limits.workers)
        self._redis_up = False
        self._loaded = False
        self._limit = config.limits.workers
        self._refusals = QuietLog(_log)

    @property
    def records(self) -> Mapping[str, WorkerRecord]:
        """The newest record of every worker, by id, with its isolation."""
        return self._records

    @property
    def loaded(self) -> bool:
        """The fleet is known: from Redis, or as far as it can be without, because Redis was found away."""
        return self._loaded and self.ward.loaded

    def settled(self, now: float) -> bool:
        """Was everybody heard who is in the fleet? Not at once after a start: Redis may be away, or have lost all."""
        return self._store is None or self._registry.settled(now)

    @property
    def redis_up(self) -> bool:
        """Redis answers now."""
        return self._redis_up

    def snapshot_age_s(self, now: float) -> float:
        """Seconds since the last message of any kind from Redis; infinite before the first."""
        return now - self._registry.last_heard

    def subscribe(self, on_record: Callable[[WorkerRecord], None], on_gone: Callable[[str], None]) -> None:
        """Be told of every worker now, of every new record (each beat brings one), and of every departure.

        The callbacks run on the event loop and should be cheap.
        """
        self._on_record.append(on_record)
        self._on_gone.append(on_gone)
        for record in self.records.values():
            on_record(record)

    def set_agents(self, policies: Sequence[AgentPolicy]) -> None:
        """Other policies are in force: the families that they name tell which family a model is of."""
        families = FamilyResolver.from_config(self._config.model_copy(update={"agents": tuple(policies)}))
        if families != self._families:
            self._families = families
            self._tell(self._registry.set_families(families))

    async def run(self) -> None:
        """Follow the fleet until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resolver.run())
            tasks.create_task(self.ward.run())
            if self._store is None:
                self._link_down("no redis.url is configured")
            else:
                tasks.create_task(self._follow(self._store))
                tasks.create_task(self._judge())
                tasks.create_task(self._clean_up(self._store))

    async def _follow(self, store: WorkerStore) -> None:
        try:
            async with contextlib.aclosing(store.watch()) as events:
                async for event in events:
                    self._take(event)
        finally:
            await store.close()

    def _take(self, event: StoreEvent) -> None:
        now = time.monotonic()
        match event:
            case Report(state):
                self._tell(self._registry.observe(state, now))
            case Snapshot(states):
                self._tell(self._registry.load(states, now))
                self._loaded = True
                self.ward.refresh()
            case LinkUp():
                _log.info("following the workers in Redis")
                self._redis_up = True
                self._registry.link_up(now)
            case LinkDown(reason):
                self._link_down(reason)
            case _:
                self._registry.heard(now)
        if self._registry.refused:
            self._refusals.warning("ignoring workers beyond limits.workers (%d)", self._limit)
            self._registry.refused = 0

    def _link_down(self, reason: str) -> None:
        _log.warning("going on without Redis, on what is known: %s", reason)
        self._redis_up = False
        self._loaded = True
        self._tell(self._registry.link_down(time.monotonic()))

    async def _judge(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._tell(self._registry.tick(time.monotonic()))

    async def _clean_up(self, store: WorkerStore) -> None:
        while True:
            worker_ids = [await self._forgotten.get()]
            while len(worker_ids) < FORGET_BATCH and not self._forgotten.empty():
                worker_ids.append(self._forgotten.get_nowait())
            with contextlib.suppress(StoreError):
                await store.forget(*worker_ids)

    def _resolved(self, name: str, addresses: Sequence[str]) -> None:
        self._tell(self._registry.resolved(name, addresses))

    def _tell(self, updates: Sequence[Update]) -> None:
        gone = [update.worker_id for update in updates if isinstance(update, Gone)]
        if len(gone) > _MAX_FAREWELLS:
            _log.info("%d workers are gone, among them %s", len(gone), ", ".join(gone[:_MAX_FAREWELLS]))
        else:
            for worker_id in gone:
                _log.info("worker %s is gone", worker_id)
        for update in updates:
            if isinstance(update, Gone):
                self._records.pop(update.worker_id, None)
                self.ward.forget(update.worker_id)
                if update.forgotten:
                    with contextlib.suppress(asyncio.QueueFull):
                        self._forgotten.put_nowait(update.worker_id)
                for on_gone in self._on_gone:
                    on_gone(update.worker_id)
            else:
                if update.status is WorkerStatus.UNRESOLVED:
                    self._resolver.wake()
                self.ward.observe(update)
                self._tell_record(update)

    def _tell_again(self, worker_ids: set[str]) -> None:
        for worker_id in sorted(worker_ids):
            record = self._registry.records.get(worker_id)
            if record is not None:
                self._tell_record(record)

    def _tell_record(self, record: WorkerRecord) -> None:
        record = self.ward.marked(record)
        self._records[record.worker_id] = record
        for on_record in self._on_record:
            on_record(record)
