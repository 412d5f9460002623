"""What a policy of routing sees and does in the simulation: the same few things for every one of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from recursant.routing.affinity_tables import Place
from recursant.sim.fleet.events import Events
from recursant.sim.fleet.request import Ending, Request
from recursant.sim.fleet.spec import Environment, WorkerSpec
from recursant.sim.fleet.worker import SimulatedWorker
from recursant.v1.worker_state_pb2 import WorkerState


class Outlet(Protocol):
    """How a router acts."""

    def send(self, request: Request, candidates: Sequence[int]) -> None:
        """Send a request to the first of these workers, and to the next where one refuses or breaks before the answer
        begins: one attempt for each."""

    def refuse(self, request: Request, ending: Ending) -> None:
        """Answer a request without any worker."""


class Router(Protocol):
    """One gateway under one policy. Several of them share a fleet and know nothing of each other."""

    def arrive(self, request: Request) -> None:
        """A request has come: send, hold or refuse it."""

    def report(self, worker: int, state: WorkerState) -> None:
        """A worker's report has come."""

    def failed(self, request: Request, failure: str) -> None:
        """`request.worker` answered with an error, `failure`, and another worker is asked."""

    def answered(self, request: Request, failure: str | None) -> None:
        """The answer has begun, from `request.worker`; `failure` names the error where it is one."""

    def ended(self, request: Request, ending: Ending) -> None:
        """The request is over."""

    def left(self) -> int:
        """Requests that it holds or counts in flight."""


class Exchange:
    """What gateways tell each other of sessions, as through Redis: in batches, late, and only to the others.

    Args:
        events: the agenda.
        environment: how news travels.
    """

    def __init__(self, events: Events, environment: Environment) -> None:
        self._events = events
        self._delay_s = environment.delay_s + environment.delay_spread_s
        self._members: list[tuple[object, Callable[[bytes, Place], None]]] = []

    def join(self, member: object, hear: Callable[[bytes, Place], None]) -> None:
        """Take part; `hear` is told what the others say."""
        self._members.append((member, hear))

    def tell(self, member: object, places: Mapping[bytes, Place]) -> None:
        """Tell the others where sessions were sent."""
        if len(self._members) > 1:
            self._events.on_the_side(self._events.now + self._delay_s, self._deliver, member, places)

    def _deliver(self, member: object, places: Mapping[bytes, Place]) -> None:
        for other, hear in self._members:
            if other is not member:
                for session, place in places.items():
                    hear(session, place)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a router is made with.

    Attributes:
        events: the agenda, which is the clock, too.
        outlet: to act through.
        specs: what is configured about each worker.
        workers: the workers themselves; only an oracle looks at them.
        environment: how news travels.
        seed: of its own random numbers.
        exchange: to the other gateways.
    """

    events: Events
    outlet: Outlet
    specs: Sequence[WorkerSpec]
    workers: Sequence[SimulatedWorker]
    environment: Environment
    seed: int
    exchange: Exchange


class Policy(Protocol):
    """A way of routing, by name."""

    @property
    def name(self) -> str:
        """In tables."""

    @property
    def report_s(self) -> float | None:
        """How often its gateways hear from each worker; None: as the environment has it; 0: never."""

    @property
    def priority_scheduling(self) -> bool:
        """Engines order by priority, as this policy sets it."""

    @property
    def retries_errors(self) -> bool:
        """The first 500 of a request is tried once more, on the next of its workers (docs/adr/0004-retries.md)."""

    def router(self, surroundings: Surroundings) -> Router:
        """A gateway under this policy."""
