"""The admission desk: each request is placed, held until somebody has room, or refused (SPEC C4, E3, E4).

Deterministic and without timers: the caller passes the time, is told when to call `run` next, and is woken when
capacity appears. Everything held is bounded, has an end, and leaves at once when its client does.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from extproc.decision import Decision, Demand
from extproc.gateway import Gateway
from recursant import names
from recursant.admission.queue import Held, HoldQueue
from recursant.admission.verdict import Degrade, Hold, TakeTurns, Verdict, verdict
from recursant.problems import ApiProblem, deadline_exceeded, forbidden, model_not_found, shed, unavailable
from recursant.routing.picker import Refusal

# The most requests that are gathered in one batch window; a full batch goes at once.
MAX_BATCH: Final = 64

Outcome = Decision | ApiProblem


def queue_full() -> ApiProblem:
    """More requests wait than may."""
    return shed("too many requests wait already", code="queue_full")


class Waiter(Protocol):
    """Somebody who can be answered later."""

    def resume(self, outcome: Outcome) -> None:
        """The wait is over."""


@dataclass(init=False, eq=False)
class Ticket:
    """The place of one held request, in a batch or in the queue.

    Attributes:
        waiter: who is answered.
        demand: what it asks for.
        fallback: the strategy that holds it.
        refusal: why its own family had no place, where another one was tried.
        since_s: when it began to wait, where others must know.
        held: where it stands in the queue.
    """

    waiter: Waiter
    demand: Demand
    fallback: str | None
    refusal: Refusal | None
    since_s: float | None
    held: "Held[Ticket] | None"

    def __init__(
        self,
        waiter: Waiter,
        demand: Demand,
        fallback: str | None = None,
        refusal: Refusal | None = None,
        since_s: float | None = None,
        held: "Held[Ticket] | None" = None,
    ) -> None:
        self.waiter = waiter
        self.demand = demand
        self.fallback = fallback
        self.refusal = refusal
        self.since_s = since_s
        self.held = held


@dataclass(slots=True)
class _Batch:
    """The requests of one agent that are gathered now, and when they go."""

    tickets: list[Ticket]
    ends_s: float


class Desk:
    """Admits requests over one gateway.

    Args:
        gateway: chooses the workers.
        queue: holds whoever must wait.
        wake: asks the caller to call `run` soon; may be called often.
    """

    def __init__(self, gateway: Gateway, queue: HoldQueue[Ticket], wake: Callable[[], None]) -> None:
        self._gateway = gateway
        self._queue = queue
        self._wake = wake
        self._batches: dict[str, _Batch] = {}
        self._capacity_changed = False

    def admit(self, waiter: Waiter, demand: Demand, now: float) -> Outcome | Ticket:
        """Place a request, refuse it, or hold it: then its waiter is resumed later, unless it leaves before."""
        policy = demand.agent.policy
        if policy is None and self._gateway.config.routing.default_fallback == "reject":
            return forbidden("no known agent is named: set X-Agent-ID", param=names.AGENT_ID, code="agent_required")
        if policy is not None and policy.batch_window_ms > 0:
            return self._gather(waiter, demand, policy.batch_window_ms / 1_000, now)
        if self._capacity_changed:
            # Whoever waits comes before a newcomer.
            self._serve_queue(now)
        ticket = Ticket(waiter, demand)
        return self._settle(ticket, now) or ticket

    def leave(self, ticket: Ticket) -> None:
        """The client has gone: give its place up. Harmless when it has none."""
        if ticket.held is not None:
            self._queue.remove(ticket.held)
            return
        batch = self._batches.get(ticket.demand.agent.agent)
        if batch is not None and ticket in batch.tickets:
            batch.tickets.remove(ticket)
            if not batch.tickets:
                del self._batches[ticket.demand.agent.agent]

    def set_limits(self, capacity: int, ageing_s: float) -> None:
        """How many requests may be held, and what waiting is worth, from now on; other rules may have made room."""
        self._queue.set_limits(capacity, ageing_s)
        self.capacity_changed()

    def capacity_changed(self, wake: Callable[[], None] | None = None) -> None:
        """A worker may have room that it had not. `wake` instead of the usual one, for news that may wait a little."""
        if len(self._queue) and not self._capacity_changed:
            # What may wait is not yet worth a newcomer's time.
            self._capacity_changed = wake is None
            (wake or self._wake)()

    def run(self, now: float) -> float | None:
        """Answer whose time is over, place whoever can be placed, send off full batches.

        Returns:
            When to call it again at the latest, in the time of `now`; None while nothing waits.
        """
        for held in self._queue.expired(now):
            self._left(held.item)
            held.item.waiter.resume(self._too_late(held.item, now))
        self._serve_queue(now)
        for agent, batch in list(self._batches.items()):
            if batch.ends_s <= now:
                self._send_off(self._batches.pop(agent), now)
        times = [batch.ends_s for batch in self._batches.values()]
        expiry = self._queue.next_expiry()
        if expiry is not None:
            times.append(expiry)
        return min(times, default=None)

    def depth(self) -> dict[str, int]:
        """How many requests are held, by class; those in batch windows count, too."""
        depth = self._queue.depth()
        for batch in self._batches.values():
            for ticket in batch.tickets:
                depth[ticket.demand.priority_class.label] += 1
        return depth

    # --- one request ---

    def _settle(
        self, ticket: Ticket, now: float, found: Decision | Refusal | None = None, *, degraded: bool = False
    ) -> Outcome | None:
        """Place or refuse a request for good; None: it was put into the queue.

        Args:
            ticket: its place, whether it gets one or not.
            now: the time.
            found: what was said about it already.
            degraded: another family was tried already.
        """
        demand = ticket.demand
        policy = demand.agent.policy
        answer: Outcome | Refusal | None = found or self._place(ticket, demand, now)
        while isinstance(answer, Refusal):
            if answer is Refusal.NO_WORKER and not degraded:
                unknown = self._unknown(demand)
                if unknown is not None and (policy is None or policy.degrade_family is None):
                    return unknown
            match self._verdict(answer, demand, now, degraded=degraded):
                case ApiProblem() as problem:
                    return self._gateway.with_advice(problem, demand)
                case Hold(for_s, fallback):
                    ticket.fallback = fallback
                    return self._hold(ticket, now, for_s)
                case TakeTurns():
                    answer = self._gateway.place_by_turn(demand, replace(demand.need, count_as=None), "round_robin")
                case Degrade(family):
                    degraded = True
                    ticket.refusal = answer
                    other = self._gateway.degraded(demand, family)
                    found_there = self._place(ticket, other, now, fallback=f"degrade_to_{family}")
                    # Nobody there either: what the first family said counts.
                    if not isinstance(found_there, Refusal):
                        answer = found_there
        return answer

    def _place(
        self, ticket: Ticket, demand: Demand, now: float, fallback: str | None = None
    ) -> Outcome | Refusal | None:
        """Look for a place for a request; None: who gets it is settled elsewhere, and its waiter is resumed then."""
        del ticket, now
        return self._gateway.place(demand, fallback=fallback)

    def _waited_for(self, demand: Demand) -> bool:
        """Does somebody wait for such a place who is served elsewhere?"""
        del demand
        return False

    def _verdict(self, refusal: Refusal, demand: Demand, now: float, *, degraded: bool) -> Verdict:
        what = self._gateway.asked_for(demand)
        return verdict(refusal, demand.agent.policy, left_s=demand.deadline_s - now, what=what, degraded=degraded)

    def _unknown(self, demand: Demand) -> ApiProblem | None:
        """404 where no worker of the fleet, ready or not, has what is asked for."""
        need, table = demand.need, self._gateway.table
        if need.model:
            return None if table.served.knows_model(need.model) else model_not_found(need.model)
        if need.family and not table.served.knows_family(need.family):
            return model_not_found(need.family)
        return None

    def _hold(self, ticket: Ticket, now: float, for_s: float) -> ApiProblem | None:
        if for_s <= 0:
            return self._too_late(ticket, now)
        return self._keep(ticket, now, now + for_s)

    def _keep(self, ticket: Ticket, since_s: float, until_s: float) -> ApiProblem | None:
        """Take a request into the queue, or say that it is full."""
        demand = ticket.demand
        held = Held(
            ticket,
            demand.agent.agent,
            demand.priority_class,
            since_s,
            until_s,
            self._gateway.waits_apart(demand.need),
        )
        ticket.held = held
        out = self._queue.push(held)
        if out is held:
            ticket.held = None
            return queue_full()
        if out is not None:
            self._left(out.item)
            out.item.waiter.resume(queue_full())
        self._wake()
        return None

    def _left(self, ticket: Ticket) -> None:
        """A request left the queue and has no place."""

    def _too_late(self, ticket: Ticket, now: float) -> ApiProblem:
        demand = ticket.demand
        if ticket.fallback is not None:
            self._gateway.recorder.fallback_taken(demand.agent.agent, ticket.fallback)
        if ticket.fallback is None or demand.deadline_s <= now:
            return deadline_exceeded(self._gateway.timeout_ms(demand.agent.policy))
        return unavailable(f"no worker for {self._gateway.asked_for(demand)} had room in time", code="no_room")

    # --- whoever waits ---

    def _serve_queue(self, now: float) -> None:
        """Place held requests, in order, until nobody more can be placed."""
        self._capacity_changed = False
        stuck: set[int] = set()
        progress = True
        while progress:
            progress = False
            for held in self._queue.heads(now):
                if id(held) in stuck:
                    continue
                ticket = held.item
                count_as = self._queue.aged(held, now)
                found = self._gateway.place(ticket.demand, count_as=count_as, fallback=ticket.fallback)
                if isinstance(found, Refusal):
                    stuck.add(id(held))
                    continue
                self._queue.served(held)
                self._queue.remove(held)
                ticket.waiter.resume(found)
                progress = True
                break

    # --- batch windows ---

    def _gather(self, waiter: Waiter, demand: Demand, window_s: float, now: float) -> Ticket:
        agent = demand.agent.agent
        batch = self._batches.get(agent)
        if batch is None:
            batch = self._batches[agent] = _Batch([], min(now + window_s, demand.deadline_s))
            self._wake()
        ticket = Ticket(waiter, demand)
        batch.tickets.append(ticket)
        if len(batch.tickets) >= MAX_BATCH:
            batch.ends_s = now
            self._wake()
        return ticket

    def _send_off(self, batch: _Batch, now: float) -> None:
        """Send a batch to one worker, and whoever finds no room there its own way."""
        leader: Decision | None = None
        for ticket in batch.tickets:
            demand = ticket.demand
            joined = None if leader is None or self._waited_for(demand) else self._gateway.join(demand, leader)
            outcome = joined or self._settle(ticket, now)
            if isinstance(outcome, Decision) and leader is None:
                leader = outcome
            if outcome is not None:
                ticket.waiter.resume(outcome)
