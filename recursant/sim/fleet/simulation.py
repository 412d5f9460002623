"""A fleet, a workload and a policy: what happens to every request. Deterministic for a seed."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from recursant.sim.fleet.events import Events
from recursant.sim.fleet.request import Ending, Request
from recursant.sim.fleet.router import Exchange, Policy, Router, Surroundings
from recursant.sim.fleet.spec import Environment, WorkerSpec
from recursant.sim.fleet.worker import Rejection, SimulatedWorker
from recursant.sim.workloads.arrival import Arrival

_FEWEST_BYTES_PER_TOKEN: Final = 2.0
# How often the use of the workers is noted. Seconds.
SAMPLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """What a simulation gave.

    Attributes:
        requests: all of them, in the order of arrival.
        workers: as they are at the end.
        arrivals_s: when the last one arrived; the workload's own time.
        seconds: virtual time until the last one ended.
        used: for each second, the use that was made of each worker's device (`SimulatedWorker.work_s`).
        in_flight_left: what the gateways still count in flight at the end, and hold: 0.
    """

    requests: list[Request]
    workers: list[SimulatedWorker]
    arrivals_s: float
    seconds: float
    used: list[tuple[float, ...]]
    in_flight_left: int


class Simulation:
    """One run."""

    def __init__(self, specs: Sequence[WorkerSpec], policy: Policy, environment: Environment) -> None:
        self._events = Events()
        self._environment = environment
        self._random = random.Random(environment.seed)
        beat_s = environment.beat_s if policy.report_s is None else policy.report_s
        self._workers = [
            SimulatedWorker(
                index,
                spec if not policy.priority_scheduling else spec.with_priorities(),
                self._events,
                self,
                beat_s=beat_s or 1.0,
                restart_s=environment.out_of_memory_restart_s,
                seed=environment.seed * 1_000_003 + index,
            )
            for index, spec in enumerate(specs)
        ]
        exchange = Exchange(self._events, environment)
        self._routers: list[Router] = [
            policy.router(
                Surroundings(
                    self._events,
                    self,
                    tuple(worker.spec for worker in self._workers),
                    self._workers,
                    environment,
                    environment.seed * 7_919 + number,
                    exchange,
                )
            )
            for number in range(environment.replicas)
        ]
        self._retries_errors = policy.retries_errors
        # Requests that had their one retry of a 500.
        self._tried_again: set[int] = set()
        self._reports = beat_s > 0
        self._beat_s = beat_s or 1.0
        # Of each request under way: its gateway, and the candidates that are left.
        self._router_of: dict[int, Router] = {}
        self._left: dict[int, list[int]] = {}
        self._requests: list[Request] = []
        self._arrivals: Iterator[Arrival] = iter(())
        self._used: list[tuple[float, ...]] = []
        self._last_arrival = 0.0
        self._progress: Callable[[float], None] | None = None

    def run(self, arrivals: Iterable[Arrival], progress: Callable[[float], None] | None = None) -> Run:
        """Simulate until every request has ended.

        Args:
            arrivals: by time.
            progress: told the virtual time, once a virtual second.
        """
        self._arrivals = iter(arrivals)
        self._progress = progress
        events = self._events
        for worker in self._workers:
            # Everybody is known before the first request; then beats are spread over their interval.
            self._beat(worker, at_once=True)
            if self._reports:
                first = self._beat_s * (worker.index + 1) / len(self._workers)
                events.every(self._beat_s, first, self._beater(worker))
        for fault in self._environment.faults:
            hit = self._workers if fault.worker is None else [self._workers[fault.worker]]
            for worker in hit:
                events.at(fault.at_s, worker.suffer, fault)
        events.every(SAMPLE_S, SAMPLE_S, self._sampler())
        self._next_arrival()
        events.run()
        left = sum(router.left() for router in self._routers)
        return Run(self._requests, self._workers, self._last_arrival, events.now, self._used, left)

    # --- arrivals and news ---

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._events.at(arrival.at_s, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        self._next_arrival()
        number = len(self._requests)
        self._last_arrival = arrival.at_s
        environment = self._environment
        drawn = self._random.gauss(environment.bytes_per_token, environment.bytes_spread)
        length = round(arrival.prompt_tokens * max(drawn, _FEWEST_BYTES_PER_TOKEN))
        request = Request(number, arrival, length)
        self._requests.append(request)
        router = self._routers[number % len(self._routers)]
        self._router_of[number] = router
        router.arrive(request)

    def _beater(self, worker: SimulatedWorker) -> Callable[[], None]:
        return lambda: self._beat(worker, at_once=False)

    def _beat(self, worker: SimulatedWorker, *, at_once: bool) -> None:
        if not worker.up:
            return
        state = worker.report()
        environment = self._environment
        for router in self._routers:
            if at_once:
                router.report(worker.index, state)
            else:
                delay = environment.delay_s + self._random.random() * environment.delay_spread_s
                self._events.on_the_side(self._events.now + delay, router.report, worker.index, state)

    def _sampler(self) -> Callable[[], None]:
        before = [0.0] * len(self._workers)

        def sample() -> None:
            work = [worker.work_s for worker in self._workers]
            self._used.append(tuple((now - then) / SAMPLE_S for now, then in zip(work, before, strict=True)))
            before[:] = work
            if self._progress is not None:
                self._progress(self._events.now)

        return sample

    # --- what routers do ---

    def send(self, request: Request, candidates: Sequence[int]) -> None:
        """See `Outlet`."""
        self._left[request.number] = list(candidates)
        self._attempt(request)

    def refuse(self, request: Request, ending: Ending) -> None:
        """See `Outlet`."""
        self._finish(request, ending)

    def _attempt(self, request: Request) -> None:
        left = self._left[request.number]
        worker = self._workers[left.pop(0)]
        request.attempts += 1
        request.worker = worker.index
        rejection = worker.submit(request)
        match rejection:
            case None:
                return
            case Rejection.REFUSED:
                self._again(request)
            case _:
                self._failed(request, rejection.value, Ending.FAILED)

    def _failed(self, request: Request, failure: str, ending: Ending) -> None:
        """A worker answered 500."""
        number = request.number
        router = self._router_of[number]
        if self._retries_errors and self._left[number] and number not in self._tried_again:
            self._tried_again.add(number)
            router.failed(request, failure)
            self._events.at(self._events.now + self._environment.retry_delay_s, self._attempt, request)
            return
        router.answered(request, failure)
        self._finish(request, ending)

    def _again(self, request: Request) -> None:
        """An attempt came to nothing before the answer began."""
        if self._left[request.number]:
            self._events.at(self._events.now + self._environment.retry_delay_s, self._attempt, request)
        else:
            request.worker = None
            self._router_of[request.number].answered(request, "unreachable")
            self._finish(request, Ending.BROKEN)

    # --- what workers tell ---

    def first_token(self, request: Request) -> None:
        """See `Requester`."""
        request.first_token_s = self._events.now
        self._router_of[request.number].answered(request, None)

    def ended(self, request: Request, ending: Ending) -> None:
        """See `Requester`."""
        if ending is Ending.BROKEN and request.first_token_s is None:
            self._again(request)
            return
        if ending is Ending.OUT_OF_MEMORY and request.first_token_s is None:
            self._failed(request, ending.value, ending)
            return
        self._finish(request, ending)

    def _finish(self, request: Request, ending: Ending) -> None:
        if request.ending is not None:
            raise AssertionError(f"request {request.number} ended twice")
        request.ending = ending
        request.ended_s = self._events.now
        self._left.pop(request.number, None)
        self._tried_again.discard(request.number)
        self._router_of.pop(request.number).ended(request, ending)
