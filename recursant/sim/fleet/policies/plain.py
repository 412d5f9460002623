"""Policies that need no news of the workers: what proxies bring along. Written from their public descriptions."""

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recursant.sim.fleet.policies.serving import MESH_RETRIES, Serving
from recursant.sim.fleet.request import Ending, Request
from recursant.sim.fleet.router import Router, Surroundings
from recursant.v1.worker_state_pb2 import WorkerState


class PlainRouter(ABC):
    """A gateway that chooses at arrival, holds nothing, and draws again for each retry."""

    def __init__(self, surroundings: Surroundings, families: Mapping[str, str], retries: int) -> None:
        self.random = random.Random(surroundings.seed)
        self._outlet = surroundings.outlet
        self._serving = Serving(surroundings.specs, families)
        self._retries = retries
        # Requests that this gateway has at each worker.
        self.in_flight = [0] * len(surroundings.specs)
        self._at: dict[int, int] = {}

    @abstractmethod
    def choose(self, request: Request, among: Sequence[int]) -> int:
        """One of `among`."""

    def arrive(self, request: Request) -> None:
        """See Router."""
        among = list(self._serving.of_agent(request.arrival.agent_id))
        chosen = [self.choose(request, among)]
        while len(chosen) <= self._retries and len(among) > 1:
            among.remove(chosen[-1])
            chosen.append(among[self.random.randrange(len(among))])
        self._count(request, chosen[0])
        self._outlet.send(request, chosen)

    def report(self, worker: int, state: WorkerState) -> None:
        """See Router."""
        del worker, state  # it needs no news

    def failed(self, request: Request, failure: str) -> None:
        """See Router."""
        del request, failure  # it draws no conclusions

    def answered(self, request: Request, failure: str | None) -> None:
        """See Router."""
        if request.worker is not None and self._at.get(request.number) != request.worker:
            self._release(request)
            self._count(request, request.worker)

    def ended(self, request: Request, ending: Ending) -> None:
        """See Router."""
        self._release(request)

    def left(self) -> int:
        """See Router."""
        return sum(self.in_flight)

    def _count(self, request: Request, worker: int) -> None:
        self._at[request.number] = worker
        self.in_flight[worker] += 1

    def _release(self, request: Request) -> None:
        worker = self._at.pop(request.number, None)
        if worker is not None:
            self.in_flight[worker] -= 1


class RandomRouter(PlainRouter):
    """Anybody."""

    def choose(self, request: Request, among: Sequence[int]) -> int:
        """See PlainRouter."""
        return among[self.random.randrange(len(among))]


class RoundRobinRouter(PlainRouter):
    """By turn, among each set of workers."""

    def __init__(self, surroundings: Surroundings, families: Mapping[str, str], retries: int) -> None:
        super().__init__(surroundings, families, retries)
        self._turns: dict[tuple[int, ...], int] = {}

    def choose(self, request: Request, among: Sequence[int]) -> int:
        """See PlainRouter."""
        key = tuple(among)
        # Each gateway starts somewhere else, as proxies do.
        turn = self._turns.get(key, self.random.randrange(len(among)) if key not in self._turns else 0)
        self._turns[key] = turn + 1
        return among[turn % len(among)]


class TwoChoicesRouter(PlainRouter):
    """Envoy's least request: of two drawn at random, the one with fewer requests of this gateway."""

    def choose(self, request: Request, among: Sequence[int]) -> int:
        """See PlainRouter."""
        one = among[self.random.randrange(len(among))]
        other = among[self.random.randrange(len(among))]
        return other if self.in_flight[other] < self.in_flight[one] else one


class WeightedRouter(PlainRouter):
    """By turn, each as often as its declared capacity says: the one that is furthest behind its share."""

    def __init__(self, surroundings: Surroundings, families: Mapping[str, str], retries: int) -> None:
        super().__init__(surroundings, families, retries)
        self._weights = [float(spec.declared_tokens) for spec in surroundings.specs]
        # By the set that is chosen from, as proxies keep a schedule for each subset.
        self._credits: dict[tuple[int, ...], dict[int, float]] = {}

    def choose(self, request: Request, among: Sequence[int]) -> int:
        """See PlainRouter."""
        standing = self._credits.setdefault(tuple(among), dict.fromkeys(among, 0.0))
        for worker in among:
            standing[worker] += self._weights[worker]
        best = max(among, key=standing.__getitem__)
        standing[best] -= sum(standing.values())
        return best


class SessionHashRouter(PlainRouter):
    """The same worker for the same session, by rendezvous hashing; anybody for a request without one."""

    def choose(self, request: Request, among: Sequence[int]) -> int:
        """See PlainRouter."""
        session = request.arrival.session_id
        if not session:
            return among[self.random.randrange(len(among))]
        return max(among, key=lambda worker: hashlib.blake2b(f"{session} {worker}".encode(), digest_size=8).digest())


_ROUTERS: dict[str, Callable[[Surroundings, Mapping[str, str], int], PlainRouter]] = {
    "random": RandomRouter,
    "round robin": RoundRobinRouter,
    "least request (two choices)": TwoChoicesRouter,
    "weighted by capacity": WeightedRouter,
    "session hash": SessionHashRouter,
}
PLAIN_POLICIES = tuple(_ROUTERS)


@dataclass(frozen=True, slots=True)
class PlainPolicy:
    """One of `PLAIN_POLICIES`.

    Attributes:
        families: of each agent.
        retries: attempts after the first.
    """

    name: str
    families: Mapping[str, str]
    retries: int = MESH_RETRIES
    report_s: float | None = 0.0
    priority_scheduling: bool = False
    retries_errors: bool = False

    def router(self, surroundings: Surroundings) -> Router:
        """See Policy."""
        return _ROUTERS[self.name](surroundings, self.families, self.retries)
