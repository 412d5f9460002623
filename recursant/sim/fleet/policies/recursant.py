"""Our own policy: the registry, ward, table, gateway and desk of extproc, on virtual time. Nothing is written again.

Left out are the messages of Envoy and Redis: a request comes as its headers, an error answer as its status and body.
Gateways do not share isolations here; each finds them out itself, from its own requests and from the error counters in
the reports, which all of them get.
"""

import contextlib
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from extproc.decision import Arrival, Decision, Demand
from extproc.desk import Desk, Ticket
from extproc.gateway import Gateway
from extproc.holding import REPORTS_TOGETHER_S
from extproc.witness import Witness
from recursant import names
from recursant.admission.queue import HoldQueue
from recursant.config.model import Config
from recursant.fleet.directory import TICK_S
from recursant.fleet.prompts import Prompt
from recursant.fleet.registry import Gone, Registry, Update
from recursant.fleet.table import FleetTable
from recursant.fleet.ward import Ward
from recursant.problems import ApiProblem
from recursant.routing.affinity import Trail
from recursant.routing.affinity_tables import Place
from recursant.sim import errors
from recursant.sim.fleet.request import Ending, Request
from recursant.sim.fleet.router import Router, Surroundings
from recursant.sim.fleet.worker import PREFIX_BLOCK_TOKENS, Rejection
from recursant.sim.workloads.arrival import Arrival as Load
from recursant.store.sessions import SHARE_S
from recursant.v1.worker_state_pb2 import WorkerState

_STREAM: Final = {"content-type": b"text/event-stream"}
_UNAVAILABLE: Final = 503
_SHED: Final = 429
_ERROR_BODIES: Final = {
    Rejection.SERVER_ERROR.value: errors.internal("the engine failed").encoded(),
    Rejection.CUDA_ERROR.value: errors.cuda_error().encoded(),
    Ending.OUT_OF_MEMORY.value: errors.out_of_memory().encoded(),
}


@dataclass(slots=True)
class _Under:
    """A request on its way through this gateway."""

    request: Request
    router: "RecursantRouter"
    demand: Demand
    ticket: Ticket | None = None
    row: int | None = None
    # What it counts with there.
    tokens: tuple[int, int] = (0, 0)
    witness: Witness | None = None
    prompt: Prompt | None = None

    def resume(self, outcome: Decision | ApiProblem) -> None:
        """See extproc.desk.Waiter."""
        self.ticket = None
        self.router.settle(self, outcome)


class _Silent:
    """A recorder for which nothing has to be kept."""

    def request_finished(self, agent: str, worker: str, outcome: str) -> None:
        """See extproc.sinks.Recorder."""

    def decided(self, seconds: float) -> None:
        """See extproc.sinks.Recorder."""

    def fallback_taken(self, agent: str, strategy: str) -> None:
        """See extproc.sinks.Recorder."""

    def affinity_settled(self, agent: str, outcome: str) -> None:
        """See extproc.sinks.Recorder."""


class RecursantRouter:
    """One extproc process."""

    def __init__(self, surroundings: Surroundings, config: Config, hidden: Mapping[int, float]) -> None:
        self._events = surroundings.events
        self._outlet = surroundings.outlet
        clock = self._events.clock
        self._registry = Registry(config)
        self._registry.link_up(0.0)
        self._ward = Ward(
            config,
            by="extproc",
            records=lambda: self._registry.records,
            tell=self._tell_again,
            judges=True,
            clock=clock,
            wall_ms=lambda: round(clock() * 1_000),
        )
        admission = config.admission
        self._table = FleetTable(admission=admission, hidden=hidden)
        self._gateway = Gateway(
            config=config,
            table=self._table,
            recorder=_Silent(),
            clock=clock,
            rng=random.Random(surroundings.seed),
            evidence=self._ward.witness,
            wall=clock,
        )
        queue = HoldQueue[Ticket](config.limits.held_requests, admission.ageing_s)
        self._desk = Desk(self._gateway, queue, self._wake)
        self._index_of = {worker.worker_id: worker.index for worker in surroundings.workers}
        self._worker_ids = [worker.worker_id for worker in surroundings.workers]
        self._gateway.affinity.on_placed = self._placed
        # What goes to the other gateways with the next batch.
        self._unshared: dict[bytes, Place] = {}
        self._exchange = surroundings.exchange
        self._exchange.join(self, self._gateway.affinity.heard)
        self._events.every(SHARE_S, SHARE_S, self._share)
        self._endpoint_of = [worker.address for worker in surroundings.workers]
        self._under: dict[int, _Under] = {}
        self._awake_at: float | None = None
        self._events.every(TICK_S, TICK_S, self._tick)

    # --- requests ---

    def arrive(self, request: Request) -> None:
        """See Router."""
        arrival = request.arrival
        headers = {
            names.AGENT_ID: arrival.agent_id.encode(),
            "content-length": b"%d" % request.body_bytes,
            "content-type": b"application/json",
            names.REQUEST_ID: b"%d" % request.number,
            names.TRACEPARENT: b"-",
        }
        if arrival.session_id:
            headers[names.SESSION_ID] = arrival.session_id.encode()
        if arrival.latency_sla_ms is not None:
            headers[names.AGENT_LATENCY_SLA_MS] = b"%d" % arrival.latency_sla_ms
        read = self._gateway.arrival(headers, has_body=True)
        demand = read if isinstance(read, ApiProblem) else self._demand(read, arrival)
        if isinstance(demand, ApiProblem):
            self._outlet.refuse(request, Ending.SHED)
            return
        under = self._under[request.number] = _Under(request, self, demand)
        outcome = self._desk.admit(under, demand, self._events.now)
        if isinstance(outcome, Ticket):
            under.ticket = outcome
        else:
            self.settle(under, outcome)

    def _demand(self, read: Arrival, arrival: Load) -> Demand | ApiProblem:
        """With the prompt's blocks where its agent wants them: the workload tells them in place of the text."""
        demand = self._gateway.demand(read, None)
        if isinstance(demand, Demand) and arrival.prefix_blocks and self._gateway.prefix_seed(read) is not None:
            session = None if demand.trail is None else demand.trail.session
            demand.trail = Trail(session, arrival.prefix_blocks, PREFIX_BLOCK_TOKENS)
        return demand

    def settle(self, under: _Under, outcome: Decision | ApiProblem) -> None:
        """The desk has decided."""
        request = under.request
        if isinstance(outcome, ApiProblem):
            request.fallback = outcome.code
            self._outlet.refuse(request, Ending.SHED if outcome.status == _SHED else Ending.UNSERVED)
            return
        request.fallback = outcome.fallback
        request.engine_priority = outcome.engine_priority or 0
        under.row = outcome.rows[0]
        under.tokens = (outcome.prompt_tokens, outcome.answer_tokens)
        under.prompt = self._gateway.prompts.sent(
            under.row, outcome.prompt_tokens, outcome.cached_tokens, self._events.now
        )
        under.witness = Witness(self._gateway, outcome.rows, under.demand.deadline_s)
        candidates = [self._index_of[self._table.worker_id(row)] for row in outcome.rows]
        self._outlet.send(request, candidates)

    def failed(self, request: Request, failure: str) -> None:
        """See Router."""
        under = self._under[request.number]
        row = self._row_of(request)
        if under.witness is not None and row is not None:
            under.witness.failed(row, _ERROR_BODIES[failure])

    def answered(self, request: Request, failure: str | None) -> None:
        """See Router."""
        under = self._under[request.number]
        if failure is not None:
            # All answers here are streams, whose heads tell nothing of their prompts.
            self._prompt_read(under)
        self._move(under)
        if under.witness is None:
            return
        if failure is None:
            under.witness.answered(under.row, 200, _STREAM, has_body=True)
        elif failure in _ERROR_BODIES:
            body = _ERROR_BODIES[failure]
            if under.witness.answered(under.row, 500, {"content-length": b"%d" % len(body)}, has_body=True):
                under.witness.body(body)
        else:
            under.witness.answered(under.row, _UNAVAILABLE, {}, has_body=True)

    def ended(self, request: Request, ending: Ending) -> None:
        """See Router."""
        under = self._under.pop(request.number, None)
        if under is None:
            return
        if under.witness is not None:
            under.witness.closed(under.row)
        if ending is Ending.SERVED and request.worker is not None:
            need = under.demand.need
            family = self._gateway.family_of(need.family, need.model)
            worker_id = self._worker_ids[request.worker]
            self._gateway.calibration.finished(worker_id, family, request.body_bytes, need.expected_tokens)
        self._release(under)

    def left(self) -> int:
        """See Router."""
        return self._table.in_flight_total() + len(self._under) + sum(self._desk.depth().values())

    def _row_of(self, request: Request) -> int | None:
        worker = request.worker
        return None if worker is None else self._table.served.row_of_endpoint(self._endpoint_of[worker])

    def _move(self, under: _Under) -> None:
        """Count the request where it really is, after retries."""
        row = self._row_of(under.request)
        if row == under.row:
            return
        self._release(under)
        if row is not None:
            self._table.acquire(row, *under.tokens)
            under.row = row
            self._gateway.served_by(under.demand, row)

    def _prompt_read(self, under: _Under) -> None:
        if under.prompt is not None:
            self._gateway.prompts.read(under.prompt)
            under.prompt = None

    def _release(self, under: _Under) -> None:
        self._prompt_read(under)
        if under.row is not None:
            self._table.release(under.row, *under.tokens)
            under.row = None
            self._desk.capacity_changed()

    # --- news, and time ---

    def report(self, worker: int, state: WorkerState) -> None:
        """See Router."""
        self._gateway.affinity.observe(state.id, state.incarnation, self._events.now)
        self._gateway.calibration.reported(
            state.id,
            state.incarnation,
            state.finished_requests,
            state.finished_prompt_tokens,
            state.finished_answer_tokens,
        )
        self._tell(self._registry.observe(state, self._events.now))

    def _tell(self, updates: Iterable[Update]) -> None:
        for update in updates:
            if isinstance(update, Gone):
                self._ward.forget(update.worker_id)
                self._table.remove(update.worker_id)
                self._gateway.affinity.forget(update.worker_id)
                continue
            self._ward.observe(update)
            self._table.upsert(self._ward.marked(update))
            self._desk.capacity_changed(self._wake_for_report)

    def _tell_again(self, worker_ids: set[str]) -> None:
        for worker_id in sorted(worker_ids):
            record = self._registry.records.get(worker_id)
            if record is not None:
                self._table.upsert(self._ward.marked(record))
                self._desk.capacity_changed(self._wake_for_report)

    def _tick(self) -> None:
        # Redis is up, and says so.
        self._registry.heard(self._events.now)
        self._tell(self._registry.tick(self._events.now))
        self._ward.refresh()

    def _placed(self, session: bytes, place: Place) -> None:
        self._unshared[session] = place

    def _share(self) -> None:
        if self._unshared:
            self._exchange.tell(self, self._unshared)
            self._unshared = {}

    def _wake(self) -> None:
        self._run_at(self._events.now)

    def _wake_for_report(self) -> None:
        self._run_at(self._events.now + REPORTS_TOGETHER_S)

    def _run_at(self, when: float) -> None:
        if self._awake_at is None or when < self._awake_at:
            self._awake_at = when
            self._events.at(when, self._run_desk, when)

    def _run_desk(self, when: float) -> None:
        if when != self._awake_at:
            return
        self._awake_at = None
        following = self._desk.run(self._events.now)
        if following is not None:
            self._run_at(following)


@dataclass(frozen=True, slots=True)
class RecursantPolicy:
    """Ours.

    Attributes:
        config: as in production.
        hidden: facts that it must do without, with what stands in for them.
    """

    config: Config
    name: str = "recursant"
    hidden: Mapping[int, float] = field(default_factory=dict)
    report_s: float | None = None
    priority_scheduling: bool = True
    retries_errors: bool = True

    def router(self, surroundings: Surroundings) -> Router:
        """See Policy."""
        return RecursantRouter(surroundings, self.config, self.hidden)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the ward's log quiet meanwhile: isolations are part of the experiment."""
    log = logging.getLogger("recursant.fleet.ward")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
