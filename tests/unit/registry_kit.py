"""A registry under a clock that the test turns."""

from typing import Any

from recursant.config.model import Config
from recursant.fleet.registry import Gone, Registry, Update
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.v1.worker_state_pb2 import LoadedModel, WorkerPhase, WorkerState


def report(worker_id: str = "w1", sequence: int = 1, **changes: Any) -> WorkerState:
    """A worker's report, every 200 ms unless it says otherwise."""
    fields: dict[str, Any] = {
        "id": worker_id,
        "address": "10.0.0.1:8000",
        "phase": WorkerPhase.WORKER_PHASE_READY,
        "incarnation": "a",
        "sequence": sequence,
        "report_interval_ms": 200,
        "models": [LoadedModel(name="Qwen/Qwen2.5-7B")],
    }
    return WorkerState(**(fields | changes))


class Bench:
    """Drives a registry: workers that beat by themselves, and time that passes in steps of 50 ms.

    The link is up, and gives its own sign of life at every step, unless the test says otherwise.
    """

    def __init__(self, config: Config | None = None, *, link: bool = True) -> None:
        self.registry = Registry(config or Config())
        self.now = 1_000.0
        self.updates: list[Update] = []
        # Worker id -> the report that it repeats, every interval of its own.
        self.beating: dict[str, WorkerState] = {}
        self._next_beat: dict[str, float] = {}
        self.link_alive = link
        if link:
            self.registry.link_up(self.now)
            self.take(self.registry.load([], self.now))

    def take(self, updates: list[Update]) -> list[Update]:
        self.updates += updates
        return updates

    def hear(self, state: WorkerState) -> list[Update]:
        return self.take(self.registry.observe(state, self.now))

    def start(self, *worker_ids: str, **changes: Any) -> None:
        """Let these workers beat from now on."""
        for number, worker_id in enumerate(worker_ids):
            state = report(worker_id, **({"address": f"10.0.1.{len(self.beating) + 1}:8000"} | changes))
            self.beating[worker_id] = state
            # Spread over the interval, as real ones are.
            self._next_beat[worker_id] = self.now + state.report_interval_ms / 1_000 * number / len(worker_ids)
        self.run(max(state.report_interval_ms for state in self.beating.values()) / 1_000)

    def silence(self, *worker_ids: str) -> None:
        for worker_id in worker_ids:
            del self.beating[worker_id]

    def resume(self, state: WorkerState) -> None:
        self.beating[state.id] = state
        self._next_beat[state.id] = self.now

    def run(self, seconds: float) -> list[Update]:
        """Let time pass; returns what changed meanwhile."""
        seen = len(self.updates)
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = round(self.now + 0.05, 6)
            if self.link_alive:
                self.registry.heard(self.now)
                for worker_id, state in self.beating.items():
                    if self._next_beat[worker_id] <= self.now + 1e-9:
                        self._next_beat[worker_id] += state.report_interval_ms / 1_000
                        state.sequence += 1
                        copy = WorkerState()
                        copy.CopyFrom(state)
                        self.hear(copy)
            self.take(self.registry.tick(self.now))
        return self.updates[seen:]

    def status(self, worker_id: str = "w1") -> WorkerStatus | None:
        record = self.registry.records.get(worker_id)
        return record.status if record else None

    def statuses(self) -> dict[str, WorkerStatus]:
        return {worker_id: record.status for worker_id, record in self.registry.records.items()}


def changed_to(updates: list[Update], worker_id: str) -> list[WorkerStatus]:
    """The statuses that a worker went through, repetitions left out."""
    seen: list[WorkerStatus] = []
    for update in updates:
        if isinstance(update, WorkerRecord) and update.worker_id == worker_id and update.status not in seen[-1:]:
            seen.append(update.status)
    return seen


def gone(updates: list[Update]) -> list[str]:
    return [update.worker_id for update in updates if isinstance(update, Gone)]
