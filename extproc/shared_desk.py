"""The desk of a process that shares its host with others: one of them owns the queue for all.

A request for workers that nobody waits for is placed here and now, as in a single process. Whoever must wait, and
whoever wants a place that somebody waits for, asks the owner. Deadlines stay here, so that they hold without it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from extproc.decision import Decision, Demand
from extproc.desk import Desk, Outcome, Ticket, queue_full
from extproc.gateway import Gateway
from extproc.queue.messages import Declined, Enter, Full, Granted, Leave, Placed, Refused, Reply, Request
from extproc.queue.owner import PROMISE_SECONDS
from recursant.admission.queue import HoldQueue
from recursant.admission.verdict import Hold
from recursant.fleet.worker import WorkerStatus
from recursant.problems import ApiProblem
from recursant.routing.affinity import Led
from recursant.routing.need import Need
from recursant.routing.picker import Pick, Refusal

_EVERY_REFUSAL: Final = tuple(Refusal)


class Line(Protocol):
    """The way to the owner of the queue."""

    def waited_for(self, need: Need) -> bool:
        """Does somebody on this host wait for a worker that could serve this?"""

    def send(self, message: Request) -> None:
        """Tell the owner; lost where there is none: whoever waits enters again when there is one."""

    def freed(self) -> None:
        """A place was given back here."""

    def reported(self) -> None:
        """A worker reported: it may have room that it had not."""

    def set_limits(self, capacity: int, ageing_s: float) -> None:
        """See `HoldQueue.set_limits`."""


@dataclass(slots=True)
class _Asked:
    """A request that the owner has, and what for: its own family, or one that stands in."""

    ticket: Ticket
    demand: Demand
    enter: Enter


class SharedDesk(Desk):
    """A `Desk` that asks the owner of the queue wherever somebody waits.

    Args:
        gateway: chooses the workers.
        queue: those that are held here, for their deadlines; the owner has the order.
        wake: asks the caller to call `run` soon; may be called often.
        line: the way to the owner.
    """

    def __init__(self, gateway: Gateway, queue: HoldQueue[Ticket], wake: Callable[[], None], line: Line) -> None:
        super().__init__(gateway, queue, wake)
        self._line = line
        self._asked: dict[int, _Asked] = {}
        self._number_of: dict[int, int] = {}
        self._last_number = 0
        # Granted places at workers that are not known here: they enter again with the next report.
        self._stranded: list[int] = []

    def leave(self, ticket: Ticket) -> None:
        """See `Desk.leave`."""
        self._left(ticket)
        super().leave(ticket)

    def set_limits(self, capacity: int, ageing_s: float) -> None:
        """See `Desk.set_limits`; for all processes together."""
        self._line.set_limits(capacity, ageing_s)
        super().set_limits(capacity, ageing_s)

    def capacity_changed(self, wake: Callable[[], None] | None = None) -> None:
        """See `Desk.capacity_changed`: the owner hears of it."""
        if wake is None:
            self._line.freed()
            return
        for number in self._stranded:
            asked = self._asked.get(number)
            if asked is not None:
                self._line.send(asked.enter)
        self._stranded.clear()
        self._line.reported()

    def waiting(self) -> list[Enter]:
        """All that a new owner must know of."""
        return [asked.enter for asked in self._asked.values()]

    def answered(self, reply: Reply, now: float) -> None:
        """The owner says something about a request of ours."""
        match reply:
            case Granted():
                self._granted(reply, now)
            case Refused(number, refusal):
                asked = self._taken_back(number)
                if asked is not None:
                    self._refused(asked.ticket, refusal, now)
            case Full(number):
                asked = self._taken_back(number)
                if asked is not None:
                    asked.ticket.waiter.resume(queue_full())

    # --- asking ---

    def _place(
        self, ticket: Ticket, demand: Demand, now: float, fallback: str | None = None
    ) -> Outcome | Refusal | None:
        if not self._line.waited_for(demand.need):
            return super()._place(ticket, demand, now, fallback)
        if fallback is None:
            # Where all slots are taken it will wait for one, so that need not be asked again.
            match self._verdict(Refusal.SLOTS, demand, now, degraded=False):
                case Hold(for_s, held_fallback) if for_s > 0:
                    ticket.fallback = held_fallback
                    return self._ask(ticket, demand, now, now + for_s, None, (Refusal.SLOTS,))
        return self._ask(ticket, demand, now, demand.deadline_s, fallback, ())

    def _waited_for(self, demand: Demand) -> bool:
        return self._line.waited_for(demand.need)

    def _hold(self, ticket: Ticket, now: float, for_s: float) -> ApiProblem | None:
        if for_s <= 0:
            return self._too_late(ticket, now)
        return self._ask(ticket, ticket.demand, now, now + for_s, ticket.fallback, _EVERY_REFUSAL)

    def _ask(
        self,
        ticket: Ticket,
        demand: Demand,
        now: float,
        until_s: float,
        fallback: str | None,
        waits_for: tuple[Refusal, ...],
    ) -> ApiProblem | None:
        if ticket.since_s is None:
            ticket.since_s = now
        full = self._keep(ticket, ticket.since_s, until_s)
        if full is not None:
            return full
        self._last_number += 1
        number = self._last_number
        policy = demand.agent.policy
        leaning = None
        if demand.trail is not None:
            # Only this process knows where its sessions are.
            leaning = self._gateway.affinity.leaning(demand.trail, demand.need.prompt_tokens, now)
        enter = Enter(
            number=number,
            agent=demand.agent.agent,
            priority_class=demand.priority_class,
            since_s=ticket.since_s,
            until_s=until_s,
            need=demand.need,
            known=policy is not None,
            shapes=policy is not None and policy.on_memory_pressure == "shape",
            fallback=fallback,
            held_fallback=ticket.fallback,
            waits_for=waits_for,
            cached=() if leaning is None else leaning.cached,
            sticky=leaning is not None and leaning.sticky,
            apart=self._gateway.waits_apart(demand.need),
        )
        self._asked[number] = _Asked(ticket, demand, enter)
        self._number_of[id(ticket)] = number
        self._line.send(enter)
        return None

    def _left(self, ticket: Ticket) -> None:
        number = self._number_of.pop(id(ticket), None)
        if number is not None:
            del self._asked[number]
            self._line.send(Leave(number))

    def _serve_queue(self, now: float) -> None:
        """The owner does."""
        del now

    # --- answers ---

    def _granted(self, granted: Granted, now: float) -> None:
        asked = self._asked.get(granted.number)
        if asked is None:
            # Its client has gone meanwhile, or its time is over.
            self._line.send(Declined(granted.number))
            return
        decision = None
        # A place that was not taken at once may be another one's by now.
        stale = now - granted.at_s > PROMISE_SECONDS
        if not stale:
            decision = self._taken(asked, granted)
        if decision is None:
            self._line.send(Declined(granted.number))
            # The owner has forgotten the request with its grant.
            if not asked.enter.waits_for:
                self._taken_back(granted.number)
                self._refused(asked.ticket, Refusal.SLOTS, now)
            elif stale:
                self._line.send(asked.enter)
            else:
                self._stranded.append(granted.number)
            return
        self._taken_back(granted.number)
        self._line.send(Placed(granted.number))
        asked.ticket.waiter.resume(decision)

    def _taken(self, asked: _Asked, granted: Granted) -> Decision | None:
        """The decision; None where the worker is not known here."""
        rows = tuple(row for row in granted.rows if self._usable(row))
        if rows[:1] != granted.rows[:1]:
            return None
        found = Pick(rows, granted.model)
        led = None if granted.affinity is None else Led(found, granted.affinity, granted.cached_tokens)
        return self._gateway.take(asked.demand, found, granted.fallback, granted.shaped, led)

    def _usable(self, row: int) -> bool:
        try:
            record = self._gateway.table.record(row)
        except IndexError:
            return False
        return record is not None and record.status is WorkerStatus.READY and record.endpoint is not None

    def _refused(self, ticket: Ticket, refusal: Refusal, now: float) -> None:
        ticket.fallback = None
        if ticket.refusal is None:
            outcome = self._settle(ticket, now, refusal)
        else:
            # Nobody in the other family either: what its own said counts.
            outcome = self._settle(ticket, now, ticket.refusal, degraded=True)
        if outcome is not None:
            ticket.waiter.resume(outcome)

    def _taken_back(self, number: int) -> _Asked | None:
        """Out of the queue; its process has the say again."""
        asked = self._asked.pop(number, None)
        if asked is not None:
            del self._number_of[id(asked.ticket)]
            if asked.ticket.held is not None:
                self._queue.remove(asked.ticket.held)
                asked.ticket.held = None
        return asked
