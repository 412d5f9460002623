"""Isolation at work in one process: evidence in, the fleet's records with their isolation out, Redis kept in step.

What is decided here holds here at once, with or without Redis; the others learn of it within a poll.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from recursant.config.model import Config
from recursant.fleet.evidence import Evidence, Judge, Reason
from recursant.fleet.isolation import Isolation, IsolationBook, Phase, Standing
from recursant.fleet.isolation_metrics import IsolationFigures
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.store.exchange import StoreError
from recursant.store.isolation import IsolationStore
from recursant.store.quiet_log import QuietLog

# How often Redis is asked what the others have isolated. Seconds.
POLL_S: Final = 0.25
# How often it is looked whose time is over.
TICK_S: Final = 0.05

# What a worker that reports to be ready is, in each phase that takes it out.
_STATUS_OF: Final = {Phase.ISOLATED: WorkerStatus.ISOLATED, Phase.DRAINING: WorkerStatus.DRAINING}

_log = logging.getLogger(__name__)


class Ward:
    """Who is isolated, as far as this process knows.

    Args:
        config: the rules, and where Redis is.
        by: the name of this process, for people.
        records: every worker as the registry sees it, without isolation.
        tell: called with the ids of workers whose standing has changed.
        judges: evidence is weighed here; False for a process that only follows.
        clock: monotonic seconds; a simulation has its own.
        wall_ms: the time of day, in ms since 1970.

    Raises:
        ValueError: `redis.url` is not a URL of Redis.
    """

    def __init__(
        self,
        config: Config,
        *,
        by: str,
        records: Callable[[], Mapping[str, WorkerRecord]],
        tell: Callable[[set[str]], None],
        judges: bool,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._clock = clock
        self._wall_ms = wall_ms
        self._records = records
        self._tell = tell
        self._judges = judges and config.isolation.enabled
        self._judge = Judge(config.isolation)
        self._book = IsolationBook(config.isolation, by, config.limits.workers + len(config.workers))
        self._store = IsolationStore(config.redis.url) if config.redis.url else None
        self._standings: dict[str, Standing] = {}
        self._wake = asyncio.Event()
        self._store_errors = QuietLog(_log)
        # What Redis holds was read once, or found out of reach.
        self.loaded = self._store is None
        # Isolations that were decided here, by reason.
        self.counts: Counter[Reason] = Counter()

    # --- what is known ---

    @property
    def standings(self) -> Mapping[str, Standing]:
        """Everybody who is isolated, on trial, or spared."""
        return self._standings

    def figures(self) -> IsolationFigures:
        """The numbers to export."""
        phases = Counter(standing.phase for standing in self._standings.values())
        return IsolationFigures(
            decided={reason.value: self.counts[reason] for reason in Reason},
            isolated=phases[Phase.ISOLATED],
            on_trial=phases[Phase.TRIAL],
            spared=phases[Phase.SPARED],
        )

    def marked(self, record: WorkerRecord) -> WorkerRecord:
        """The record with the worker's isolation, if it has one."""
        standing = self._standings.get(record.worker_id)
        if standing is None:
            return record
        status = record.status
        if status is WorkerStatus.READY:
            status = _STATUS_OF.get(standing.phase, status)
        return replace(record, status=status, standing=standing)

    # --- what happens ---

    def witness(self, worker_id: str, evidence: Evidence, *, text: str = "", since: float | None = None) -> None:
        """Take one piece of evidence about a worker.

        Args:
            worker_id: whom it is about.
            evidence: what happened.
            text: the error's own words.
            since: when the request was sent, monotonic seconds; None: just now.
        """
        record = self._records().get(worker_id)
        if record is None or not self._judges:
            return
        if evidence is Evidence.PASSED_OVER and record.state.running_requests:
            # It works: what Envoy met was a full queue.
            return
        if evidence is Evidence.NO_ANSWER and record.state.token_rate > 0:
            # It generates, for this request too, as likely as not.
            return
        now = self._clock()
        since = now if since is None else since
        incarnation = record.state.incarnation
        finding = self._judge.witness(worker_id, incarnation, evidence, now, text=text, since=since)
        wall = self._wall_ms()
        made = self._book.tried(worker_id, incarnation, evidence, now, wall, text=text, since=since)
        if finding is not None and made is None:
            made = self._book.found(worker_id, incarnation, finding, now, wall)
        self._made(made)

    def observe(self, record: WorkerRecord) -> None:
        """Take a worker's report: its own error counters are evidence."""
        if not self._judges:
            return
        now = self._clock()
        finding = self._judge.reported(record.state, now)
        if finding is None:
            return
        state, wall = record.state, self._wall_ms()
        self._made(self._book.found(state.id, state.incarnation, finding, now, wall))

    def forget(self, worker_id: str) -> None:
        """A worker has left the fleet."""
        self._judge.forget(worker_id)

    async def isolate(self, worker_id: str, seconds: float, text: str, *, by: str) -> None:
        """Isolate on an operator's word, here and everywhere.

        Raises:
            StoreError: Redis is away, so the others cannot learn of it; nothing was done.
        """
        now = self._clock()
        await self._share_first()
        self._made(self._book.isolate(worker_id, seconds, text, now, self._wall_ms(), by=by))
        await self._sync()

    async def drain(self, worker_id: str, text: str, *, by: str) -> None:
        """Let a worker finish what it has, and give it nothing new, here and everywhere, until it stops or is released.

        A worker that the configuration names is known by whoever scrapes it, so its own restart is not seen for sure:
        it has to be released.

        Raises:
            StoreError: Redis is away, so the others cannot learn of it; nothing was done.
        """
        now = self._clock()
        await self._share_first()
        record = self._records().get(worker_id)
        incarnation = "" if record is None or record.static else record.state.incarnation
        self._made(self._book.drain(worker_id, incarnation, text, now, self._wall_ms(), by=by))
        await self._sync()

    async def release(self, worker_id: str, *, by: str) -> None:
        """End a worker's isolation or trial, here and everywhere.

        Raises:
            StoreError: Redis is away, so the others cannot learn of it; nothing was done.
        """
        await self._share_first()
        self._made(self._book.release(worker_id, self._clock(), self._wall_ms(), by=by))
        await self._sync()

    # --- time and the others ---

    async def run(self) -> None:
        """Keep in step with the clock and with Redis until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_time())
            if self._store is not None:
                tasks.create_task(self._watch_store(self._store))

    def refresh(self) -> None:
        """Work out who is isolated now, and tell whose standing has changed."""
        now = self._clock()
        self._book.expire(now)
        if not len(self._book) and not self._standings:
            return
        ready = {
            worker_id: record.state.incarnation
            for worker_id, record in self._records().items()
            if record.status is WorkerStatus.READY
        }
        before, self._standings = self._standings, self._book.standings(ready, now)
        changed = {
            worker_id
            for worker_id in before.keys() | self._standings.keys()
            if before.get(worker_id) != self._standings.get(worker_id)
        }
        if changed:
            for worker_id in sorted(changed):
                _say(worker_id, before.get(worker_id), self._standings.get(worker_id))
            self._tell(changed)

    async def _watch_time(self) -> None:
        while True:
            self.refresh()
            await asyncio.sleep(TICK_S)

    async def _watch_store(self, store: IsolationStore) -> None:
        try:
            while True:
                self._wake.clear()
                try:
                    await self._sync()
                except StoreError as error:
                    self._store_errors.warning("cannot share isolations, going on with what is known: %s", error)
                self.loaded = True
                # Not wait_for(): before Python 3.12 it loses a cancellation that meets the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._wake.wait()
        finally:
            await store.close()

    async def _share_first(self) -> None:
        """See that the others can be told, and learn what they know.

        Raises:
            StoreError: they cannot.
        """
        if self._store is None:
            raise StoreError("no redis.url is configured")
        await self._sync()

    async def _sync(self) -> None:
        if self._store is None:
            return
        asked = self._clock()
        theirs = await self._store.load(asked)
        missing = self._book.reconcile(theirs, self._clock())
        if missing:
            await self._store.write(missing, self._clock())
        self.refresh()

    def _made(self, made: Isolation | None) -> None:
        if made is None:
            return
        if not made.released:
            self.counts[made.reason] += 1
        self.refresh()
        self._wake.set()


def _say(worker_id: str, before: Standing | None, now: Standing | None) -> None:
    if now is None:
        _log.info("worker %s is no longer isolated", worker_id)
    elif now.phase is Phase.TRIAL:
        _log.info("worker %s is on trial after its isolation (%s)", worker_id, now.isolation.reason)
    elif now.phase is Phase.SPARED:
        _log.error(
            "ALARM: worker %s should be isolated, but too much of the fleet is already: %s",
            worker_id,
            now.isolation.text,
        )
    elif now.phase is Phase.DRAINING:
        _log.info(
            "worker %s is drained by %s: %s", worker_id, now.isolation.by, now.isolation.text or "no reason given"
        )
    elif before is None or before.isolation != now.isolation or before.phase is not now.phase:
        _log.warning("worker %s is isolated (%s): %s", worker_id, now.isolation.reason, now.isolation.text)
