"""What the API needs from the rest of the product, so that it can be built without it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from recursant.api.errors import ProblemError
from recursant.api.exposition import Part
from recursant.api.reports import ReportSink
from recursant.fleet.worker import WorkerRecord
from recursant.problems import unavailable


class Fleet(Protocol):
    """The fleet as this process knows it; `FleetDirectory` is one."""

    @property
    def records(self) -> Mapping[str, WorkerRecord]:
        """The newest record of every worker, by id."""

    @property
    def loaded(self) -> bool:
        """The fleet is known, from Redis or as far as it can be without."""

    @property
    def redis_up(self) -> bool:
        """Redis answers now."""

    def snapshot_age_s(self, now: float) -> float:
        """Seconds since the last message from Redis; infinite before the first."""


class IsolationControl(Protocol):
    """Takes workers out by hand; `Ward` is one."""

    async def isolate(self, worker_id: str, seconds: float, text: str, *, by: str) -> None:
        """Isolate a worker, everywhere; `StoreError` where the others cannot be told."""

    async def drain(self, worker_id: str, text: str, *, by: str) -> None:
        """Let a worker finish what it has; `StoreError` where the others cannot be told."""

    async def release(self, worker_id: str, *, by: str) -> None:
        """End its isolation or trial, everywhere; `StoreError` where the others cannot be told."""


# Asks extproc for the document at a path, with these parameters; raises `ProblemError` where it has none.
Inspect = Callable[[str, Sequence[tuple[str, str]]], Awaitable[dict[str, Any]]]


async def nobody_to_ask(path: str, parameters: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Where there is no extproc."""
    raise ProblemError(unavailable("extproc does not run here", code="extproc_away"))


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The API's surroundings.

    Attributes:
        fleet: who is in the fleet.
        reports: takes the workers' reports.
        registry: this process's own metrics.
        read_peers: the other services' metrics; whoever does not answer has no text.
        clock: the monotonic clock that `fleet` uses, in seconds.
        isolation: takes workers out by hand.
        inspect: asks extproc about its decisions.
    """

    fleet: Fleet
    reports: ReportSink
    registry: CollectorRegistry
    read_peers: Callable[[], Awaitable[Sequence[Part]]]
    clock: Callable[[], float]
    isolation: IsolationControl
    inspect: Inspect = nobody_to_ask
