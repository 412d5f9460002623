"""Probes every usable worker at its interval (SPEC F2), off the request path: in the api service."""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import httpx

from recursant import names
from recursant.config.model import Probes
from recursant.fleet.evidence import Evidence
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.worker.probe import Outcome, ProbeResult, probe_body, read_answer

# Probes at once.
MAX_PROBES: Final = 32
# How often it is looked whose turn it is. Seconds.
TICK_S: Final = 0.1
# After a failure, and on trial, the next probe comes after this part of the interval.
SOON_SHARE: Final = 1 / 6
# An answer of a few tokens has a few hundred bytes.
MAX_ANSWER_BYTES: Final = 65_536

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Turn:
    """What is remembered of one incarnation of a worker."""

    incarnation: str
    # When it is probed next, monotonic seconds.
    due: float
    on_trial: bool = False
    running: bool = False
    # What it generated the first time.
    known: str | None = None


class Prober:
    """Makes workers generate, and gives what it finds as evidence.

    Args:
        rules: the configured numbers.
        records: every worker, by id.
        witness: takes the evidence, as `Ward.witness` does.
    """

    def __init__(
        self, rules: Probes, records: Callable[[], Mapping[str, WorkerRecord]], witness: Callable[..., None]
    ) -> None:
        self._rules = rules
        self._records = records
        self._witness = witness
        # By worker, of those that are known.
        self.turns: dict[str, Turn] = {}
        self._running = 0

    async def run(self) -> None:
        """Probe until cancelled."""
        limits = httpx.Limits(max_connections=MAX_PROBES, max_keepalive_connections=0)
        # No proxy: these are our own machines.
        async with (
            httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client,  # noqa: S113 - bounded below
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                for record in self._due(time.monotonic()):
                    turn = self.turns[record.worker_id]
                    turn.running = True
                    self._running += 1
                    tasks.create_task(self._probe(record, turn, client))
                await asyncio.sleep(TICK_S)

    # --- whose turn it is ---

    def _due(self, now: float) -> list[WorkerRecord]:
        records = self._records()
        for worker_id in [worker_id for worker_id in self.turns if worker_id not in records]:
            del self.turns[worker_id]
        due = [record for record in records.values() if self._is_due(record, now)]
        # Whoever waits for longest first; the others come at one of the next ticks.
        due.sort(key=lambda record: self.turns[record.worker_id].due)
        return due[: MAX_PROBES - self._running]

    def _is_due(self, record: WorkerRecord, now: float) -> bool:
        if record.status is not WorkerStatus.READY or record.endpoint is None or not record.models:
            return False
        if record.last_beat is None and not record.static:
            # Only its last words are known: first it must report.
            return False
        turn = self.turns.get(record.worker_id)
        if turn is None or turn.incarnation != record.state.incarnation:
            turn = Turn(record.state.incarnation, now + self._rules.interval_s * random.random())
            self.turns[record.worker_id] = turn
        if record.on_trial and not turn.on_trial:
            # Its probe decides: let it not wait for long.
            turn.due = min(turn.due, now + self._rules.interval_s * SOON_SHARE * random.random())
        turn.on_trial = record.on_trial
        return not turn.running and now >= turn.due

    # --- one probe ---

    async def _probe(self, record: WorkerRecord, turn: Turn, client: httpx.AsyncClient) -> None:
        sent = time.monotonic()
        try:
            result = await self._ask(record, turn, client)
        finally:
            turn.running = False
            self._running -= 1
        soon = result.outcome is Outcome.FAILED or turn.on_trial
        interval_s = self._rules.interval_s * (SOON_SHARE if soon else 1.0)
        turn.due = time.monotonic() + interval_s * random.uniform(0.8, 1.2)
        current = self._records().get(record.worker_id)
        if current is None or current.state.incarnation != turn.incarnation:
            return
        if result.outcome is Outcome.PASSED:
            if self._rules.compare and turn.known is None:
                turn.known = result.text
            self._witness(record.worker_id, Evidence.PROBE_PASSED, since=sent)
        elif result.outcome is Outcome.FAILED:
            _log.warning("worker %s failed a probe: %s", record.worker_id, result.text)
            self._witness(record.worker_id, Evidence.PROBE_FAILED, text=result.text, since=sent)

    async def _ask(self, record: WorkerRecord, turn: Turn, client: httpx.AsyncClient) -> ProbeResult:
        url = f"http://{record.endpoint}/v1/completions"
        body = probe_body(self._rules, record.models[0].name)
        headers = {names.REQUEST_ID: f"{names.PROBE_REQUEST_ID}-{uuid.uuid4().hex}"}
        timeout_s = self._rules.timeout_ms / 1_000
        try:
            async with asyncio.timeout(timeout_s), client.stream("POST", url, json=body, headers=headers) as answer:
                content = bytearray()
                async for chunk in answer.aiter_bytes():
                    content += chunk
                    if len(content) > MAX_ANSWER_BYTES:
                        return ProbeResult(Outcome.FAILED, "its answer does not end")
                return read_answer(answer.status_code, bytes(content), turn.known)
        except TimeoutError:
            return self._late(record, timeout_s)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return ProbeResult(Outcome.FAILED, f"it cannot be reached: {error or type(error).__name__}")

    def _late(self, record: WorkerRecord, timeout_s: float) -> ProbeResult:
        current = self._records().get(record.worker_id, record)
        text = f"no answer within {timeout_s:g} s"
        # Whoever generates for others is busy, and the probe waited like any other request.
        busy = current.state.token_rate > 0
        return ProbeResult(Outcome.UNKNOWN if busy else Outcome.FAILED, text)
