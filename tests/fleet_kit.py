"""Workers and tables for tests of the pick and of the session."""

from collections.abc import Iterable
from typing import Any

from recursant.fleet.table import FleetTable
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from recursant.v1.worker_state_pb2 import WorkerState

QWEN = Model("Qwen/Qwen2.5-7B-Instruct", "qwen", 32_768)
PHI = Model("microsoft/Phi-3-mini-4k-instruct", "phi", 4_096)


def record(
    worker_id: str,
    *,
    status: WorkerStatus = WorkerStatus.READY,
    endpoint: str | None = "",
    models: Iterable[Model] = (QWEN,),
    **state: Any,
) -> WorkerRecord:
    """A worker record; by default ready, with one qwen model and an address made from its id."""
    if endpoint == "":
        endpoint = f"10.0.0.{int(''.join(c for c in worker_id if c.isdigit()) or 0)}:8000"
    state.setdefault("incarnation", "first")
    return WorkerRecord(worker_id, status, endpoint, tuple(models), WorkerState(id=worker_id, **state), last_beat=0.0)


def table_of(*records: WorkerRecord) -> FleetTable:
    """A table with these workers."""
    table = FleetTable()
    for each in records:
        table.upsert(each)
    return table


class Recorded:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.finished: list[tuple[str, str, str]] = []
        self.decisions: list[float] = []
        self.fallbacks: list[tuple[str, str]] = []
        self.affinities: list[tuple[str, str]] = []

    def request_finished(self, agent: str, worker: str, outcome: str) -> None:
        self.finished.append((agent, worker, outcome))

    def decided(self, seconds: float) -> None:
        self.decisions.append(seconds)

    def fallback_taken(self, agent: str, strategy: str) -> None:
        self.fallbacks.append((agent, strategy))

    def affinity_settled(self, agent: str, outcome: str) -> None:
        self.affinities.append((agent, outcome))
