"""The log of decisions (SPEC C5): a sample, and every one that raises questions. Bounded, without any prompt.

Refusals, fallbacks and slow decisions are always kept, of the rest a sample. The two kinds have a ring each, so that a
flood of refusals does not push the sample out. What an unsampled request costs is one comparison and one random number.
"""

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from extproc.decision import Arrival, Decision, Demand
from extproc.desk import Outcome, Ticket
from recursant import names
from recursant.config.model import Decisions, Routing
from recursant.fleet.table import FleetTable
from recursant.problems import ApiProblem
from recursant.routing.explain import Considered, Counted, summarise
from recursant.routing.picker import Pick, Refusal

# The bound on a decision (SPEC C6); slower ones are always kept.
SLOW_S: Final = 0.003
# Names kept of each group of workers; the counts are whole.
MAX_NAMES: Final = 8
# Explaining costs ten times as much as deciding. Of the sample, and of those that are kept for their outcome, at most
# this many a second each: they come in floods just when there is no time to spare.
MAX_EXPLAINED_PER_S: Final = 5


@dataclass(slots=True, eq=False)
class Note:
    """One decision in the log. `None` where a fact is not known, or not yet.

    Attributes:
        number: in order of decision.
        at_s: Unix time.
        kept_because: "sample", "refused", "fallback" or "slow".
        ended: in order of end; None while the request runs.
        facts: the rest, as it is shown.
    """

    number: int
    at_s: float
    kept_because: str
    ended: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def answered(self, status: int) -> None:
        """The worker's answer has begun."""
        self.facts["status"] = status


class DecisionLog:
    """Keeps notes of decisions. One per process, on the event loop's thread.

    Args:
        settings: how much is kept.
        routing: what the explanation is made with.
        table: the fleet that decisions are made over.
        clock: monotonic seconds, the gateway's.
        wall_clock: Unix seconds, for people.
        rng: draws the sample.
    """

    def __init__(
        self,
        settings: Decisions,
        routing: Routing,
        table: FleetTable,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._sample = settings.sample
        self.set_routing(routing)
        self._table = table
        self._clock = clock
        self._wall_clock = wall_clock
        self._rng = rng
        self._sampled: deque[Note] = deque(maxlen=settings.keep)
        self._notable: deque[Note] = deque(maxlen=settings.keep)
        self._numbers = itertools.count(1)
        self._ends = itertools.count(1)
        # Tells a reader's place in this log from one in the log of an earlier process.
        self._name = f"{rng.getrandbits(32):08x}"
        self._second = 0
        # In this second, by why they are kept: for the sample, or for their outcome.
        self._explained = {True: 0, False: 0}

    def set_routing(self, routing: Routing) -> None:
        """Other weights are in force."""
        self._weights = routing.weights

    # --- what a session tells ---

    def decided(
        self, request_id: bytes, arrival: Arrival, demand: Demand, outcome: Outcome | Ticket, took_s: float
    ) -> Note | None:
        """A request was placed, held or refused; None: this one is not kept."""
        why = _notable(demand, outcome) or ("slow" if took_s > SLOW_S else None)
        if why is None and self._rng.random() >= self._sample:
            return None
        note = self._note(why, request_id, arrival)
        note.facts["decision_us"] = round(took_s * 1e6, 1)
        self._settle(note, demand, outcome)
        return note

    def resumed(
        self, note: Note | None, request_id: bytes, arrival: Arrival, demand: Demand, outcome: Outcome
    ) -> Note | None:
        """A request that was held has its answer."""
        if note is None:
            why = _notable(demand, outcome)
            if why is None:
                return None
            note = self._note(why, request_id, arrival)
        note.facts["held_ms"] = round((self._clock() - arrival.at_s) * 1_000, 1)
        self._settle(note, demand, outcome)
        return note

    def refused(self, request_id: bytes, arrival: Arrival | None, problem: ApiProblem) -> Note:
        """A request was refused before there was anything to decide."""
        note = self._note("refused", request_id, arrival)
        _refuse(note, problem)
        return note

    def ended(self, note: Note, worker: str, outcome: str) -> None:
        """The request is over; `worker` is the one that served it in the end, after any retry."""
        note.facts["worker"] = worker or None
        note.facts["outcome"] = outcome
        note.ended = next(self._ends)

    # --- what readers get ---

    def read(self, *, limit: int, agent: str | None = None, after: str | None = None) -> dict[str, Any]:
        """The newest `limit` notes, in order of time; or those that ended since the place `after`, in order of end.

        Args:
            limit: the most notes.
            agent: of this agent alone.
            after: the `cursor` of an earlier answer. One of another process counts as the beginning.
        """
        notes: Iterable[Note] = (*self._sampled, *self._notable)
        if agent is not None:
            notes = (note for note in notes if note.facts["agent"] == agent)
        if after is None:
            chosen = sorted(notes, key=lambda note: note.number)[-limit:]
            end = max((note.ended or 0 for note in (*self._sampled, *self._notable)), default=0)
        else:
            place = self._place(after)
            chosen = sorted(
                (note for note in notes if note.ended is not None and note.ended > place),
                key=lambda note: note.ended or 0,
            )[:limit]
            end = max((note.ended or 0 for note in chosen), default=place)
        return {"decisions": [self._document(note) for note in chosen], "cursor": f"{self._name}:{end}"}

    # --- inside ---

    def _place(self, cursor: str) -> int:
        name, _, place = cursor.partition(":")
        return int(place) if name == self._name and place.isdecimal() else 0

    def _document(self, note: Note) -> dict[str, Any]:
        return {
            "id": f"{self._name}-{note.number}",
            # Fine enough to put the decisions of several processes in order.
            "time": round(note.at_s, 6),
            "kept_because": note.kept_because,
            **note.facts,
        }

    def _note(self, why: str | None, request_id: bytes, arrival: Arrival | None) -> Note:
        note = Note(next(self._numbers), self._wall_clock(), why or "sample")
        if arrival is not None:
            # Where the client's own id was no good, the request has one of ours.
            own = dict(arrival.request_headers).get(names.REQUEST_ID)
            shown = own or request_id.decode("ascii", "replace")
        else:
            shown = None
        note.facts = {
            "request_id": shown,
            "agent": names.NO_AGENT if arrival is None else arrival.agent.agent,
            "class": None if arrival is None else arrival.agent.priority_class.label,
            "outcome": "running",
            "status": None,
            "refusal": None,
            "fallback": None,
            "affinity": None,
            "pick": [],
            "worker": None,
            "held_ms": None,
            "decision_us": None,
            "considered": None,
            "removed": {},
            "scores": [],
        }
        (self._sampled if why is None else self._notable).append(note)
        return note

    def _settle(self, note: Note, demand: Demand, outcome: Outcome | Ticket) -> None:
        note.facts["class"] = demand.priority_class.label
        if isinstance(outcome, ApiProblem):
            _refuse(note, outcome)
        elif isinstance(outcome, Decision):
            note.facts["pick"] = [self._table.worker_id(row) for row in outcome.rows]
            note.facts["fallback"] = outcome.fallback
            note.facts["affinity"] = outcome.affinity
        if self._may_explain(sampled=note.kept_because == "sample"):
            self._explain(note, demand, outcome)

    def _explain(self, note: Note, demand: Demand, outcome: Outcome | Ticket) -> None:
        counted = None
        need = demand.need
        decided: Pick | Refusal = Refusal.NO_WORKER
        if isinstance(outcome, Decision):
            decided = Pick(outcome.rows, outcome.model, over_sla=outcome.fallback == "sla")
            need = outcome.need_of(demand)
            counted = Counted(outcome.rows[0], outcome.prompt_tokens, outcome.answer_tokens)
        found = summarise(
            self._table,
            need,
            weights=self._weights,
            decided=decided,
            counted=counted,
            names=MAX_NAMES,
        )
        note.facts["considered"] = found.considered
        note.facts["removed"] = {
            name: {"count": count, "workers": list(workers)} for name, (count, workers) in found.removed.items()
        }
        note.facts["scores"] = [_score(each) for each in found.best]

    def _may_explain(self, *, sampled: bool) -> bool:
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._explained = {True: 0, False: 0}
        self._explained[sampled] += 1
        return self._explained[sampled] <= MAX_EXPLAINED_PER_S


def _notable(demand: Demand, outcome: Outcome | Ticket) -> str | None:
    """Why a decision is kept whatever the sample says."""
    if isinstance(outcome, ApiProblem):
        return "refused"
    # By turn is how every request without an agent is placed.
    if isinstance(outcome, Decision) and outcome.fallback is not None and demand.agent.policy is not None:
        return "fallback"
    return None


def _refuse(note: Note, problem: ApiProblem) -> None:
    note.facts["status"] = problem.status
    note.facts["refusal"] = problem.code


def _score(worker: Considered) -> dict[str, Any]:
    return {
        "worker": worker.worker_id,
        "total": round(worker.terms.total, 4),
        "token_rate": round(worker.terms.token_rate, 4),
        "queue": round(worker.terms.queue, 4),
        "load": worker.load,
    }
