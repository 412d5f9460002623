"""The express lane: workers that read no long prompt of a low class for a while, so that urgent requests find one free.

An engine that has begun to read a prompt of several steps gives it every step until it is in, some 0.5 s, whatever the
priority of those behind it. So one in eight of the workers that could get such prompts gets none, and urgent requests
rather go there. The lane moves on from turn to turn, by the clock and the ids of the workers alone: gateways that know
nothing of each other's picks agree on it. Off the lane a worker gets a long prompt when it has read the one before:
others would wait in its engine, and it could not be cleared in time for its turn.

Nobody is kept out for good: somebody is always neither the lane nor being cleared for it, and there is no lane where
fewer than three workers are, or no urgent or no long request has come lately.

The table carries what follows from it (`FleetTable.set_express`), so that filters, scores and explanations read it as
any other fact. Pure: time comes in.
"""

import math
from typing import Final

from recursant.admission.memory import kv_tokens
from recursant.admission.rules import ExpressRules
from recursant.fleet.candidates import CandidateSet
from recursant.fleet.facts import DEFAULT_STEP_TOKENS, UNKNOWN, Fact
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import WorkerRecord
from recursant.routing.need import Express, Need

# So long after the last urgent request, or the last long one for some workers, there is no lane any more. Seconds.
LATELY_S: Final = 10.0
# With fewer workers a lane would take too much from long prompts.
FEWEST_WORKERS: Final = 3
# Kinds of long requests, by family and model, that have workers set apart at one time.
MAX_KINDS: Final = 16
# In steps of its engine: what an urgent request may find in front of it at a worker off the lane beyond what is known,
# as others send long prompts there; at one that is being cleared; and from how much unread no long prompt comes.
WORK_OFF_LANE: Final = 3.0
WORK_BEING_CLEARED: Final = 0.75
UNREAD_LIMIT: Final = 1.0

# How long a worker may not have reported and still be held to that: what it has read meanwhile, nobody would know.
# Several of its reports. Seconds.
REPORTS_WITHIN_S: Final = 1.0

_Kind = tuple[str, str, frozenset[str]]
# Limit, work and KV tokens kept free, as `FleetTable.set_express` has them.
_Standing = tuple[float, float, float]
_APART: Final[_Standing] = (UNKNOWN, 0.0, 0.0)


class ExpressLane:
    """Writes into a fleet table which workers are the lane. One for each table.

    Args:
        table: the fleet.
        rules: None: no lane.
    """

    def __init__(self, table: FleetTable, rules: ExpressRules | None) -> None:
        self._table = table
        self._rules = rules
        # The time of the last request.
        self._seen = -math.inf
        self._urgent_until = -math.inf
        # Until when each kind counts.
        self._kinds: dict[_Kind, float] = {}
        # The smallest step of all workers, for a quick answer; looked up again at that time.
        self._least_step = 0.0
        self._step_until = -math.inf
        # The last record of each row of the lane and those off it, and when it was first seen.
        self._reports: dict[int, tuple[WorkerRecord, float]] = {}
        # Rows that are not as they were made.
        self._written: set[int] = set()
        # When to look again; never, as long as nothing asks for a lane.
        self._next = math.inf

    @property
    def rules(self) -> ExpressRules | None:
        """Those in force; None: no lane."""
        return self._rules

    @property
    def in_use(self) -> bool:
        """Are any workers set apart?"""
        return bool(self._written)

    def set_rules(self, rules: ExpressRules | None) -> None:
        """Other rules, from now on."""
        self._rules = rules
        if rules is None:
            self._write({})
            self._next = math.inf
        elif self._kinds:
            self._next = -math.inf

    def follow(self, need: Need, now: float) -> None:
        """A request is about to be placed: bring the table up to date with it and with the time.

        Args:
            need: of the request.
            now: seconds by a clock that all gateways have, such as Unix time.
        """
        if now < self._seen:
            self._went_back(now)
        self._seen = now
        if need.express == Express.URGENT:
            if now >= self._urgent_until and self._kinds:
                self._next = now
            self._urgent_until = now + LATELY_S
        elif need.express == Express.KEEPS_OFF:
            if now >= self._step_until:
                self._step_until = now + LATELY_S
                self._least_step = min(map(_step_of, self._table.records()), default=0.0)
            if need.prompt_tokens > self._least_step:
                self._note(need, now)
        if now >= self._next:
            self._turn(now)

    def _went_back(self, now: float) -> None:
        """The clock was set back: no time lies further ahead than it could."""
        latest = now + LATELY_S
        self._urgent_until = min(self._urgent_until, latest)
        self._step_until = min(self._step_until, latest)
        self._kinds = {kind: min(until, latest) for kind, until in self._kinds.items()}
        self._reports.clear()
        self._next = now

    def _note(self, need: Need, now: float) -> None:
        """Remember where long prompts go."""
        kind = need.family, need.model, need.exclusive
        if need.prompt_tokens <= self._step_of_all(kind):
            return
        if kind not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds = {each: until for each, until in self._kinds.items() if until > now}
            if len(self._kinds) >= MAX_KINDS:
                # Not in another's place: the two would find out anew who is the lane with each of their requests.
                return
            if now < self._urgent_until:
                self._next = now
        self._kinds[kind] = now + LATELY_S

    def _step_of_all(self, kind: _Kind) -> float:
        """The smallest step of the workers for a kind of request."""
        steps = self._table.facts(self._candidates(kind).rows)[Fact.STEP_TOKENS]
        return float(steps.min(initial=math.inf))

    def _candidates(self, kind: _Kind) -> CandidateSet:
        family, model, exclusive = kind
        return self._table.candidates(family=family, model=model, exclusive=exclusive)

    def _turn(self, now: float) -> None:
        """Find out who is the lane now, and when that changes."""
        rules = self._rules
        self._kinds = {kind: until for kind, until in self._kinds.items() if until > now}
        if rules is None or now >= self._urgent_until or not self._kinds:
            self._write({})
            self._reports.clear()
            self._next = math.inf
            return
        length = rules.turn_ms / 1_000
        turn = math.floor(now / length)
        end = (turn + 1) * length
        clearing = end - rules.clear_ms / 1_000
        found: dict[int, _Standing] = {}
        # Many kinds may have the same workers, as adapters that all of them have loaded.
        apart = {self._candidates(kind).rows.tobytes(): kind for kind in self._kinds}
        for kind in apart.values():
            for row, standing in self._standings(kind, turn, rules, now, clears=now >= clearing):
                known = found.get(row)
                # Whoever is apart for one kind is so for all of them.
                found[row] = standing if known is None else _stricter(known, standing)
        self._write(found)
        self._next = min(
            clearing if now < clearing else end, now + REPORTS_WITHIN_S, self._urgent_until, *self._kinds.values()
        )

    def _standings(
        self, kind: _Kind, turn: int, rules: ExpressRules, now: float, *, clears: bool
    ) -> list[tuple[int, _Standing]]:
        """How the workers for one kind of request stand to the lane."""
        table = self._table
        rows = sorted(self._candidates(kind).rows.tolist(), key=table.worker_id)
        size = len(rows)
        if size < FEWEST_WORKERS:
            return []
        # With as many that are cleared it leaves somebody.
        count = max(1, min(int(size * rules.share), (size - 1) // 2))
        lane = {rows[(turn * count + place) % size] for place in range(count)}
        cleared = {rows[((turn + 1) * count + place) % size] for place in range(count)} if clears else set()
        found: list[tuple[int, _Standing]] = []
        for row in rows:
            record = table.record(row)
            if record is None:
                continue
            kept_free = rules.kv_kept_free * kv_tokens(record.state)
            step = _step_of(record)
            if row in lane:
                standing = 0.0, 0.0, kept_free
            elif row in cleared:
                standing = 0.0, WORK_BEING_CLEARED * step, kept_free
            else:
                limit = UNREAD_LIMIT * step if self._reports_at(row, record, now) else UNKNOWN
                standing = limit, WORK_OFF_LANE * step, kept_free
            found.append((row, standing))
        return found

    def _reports_at(self, row: int, record: WorkerRecord, now: float) -> bool:
        """Does the worker in a row still report? Without Redis nobody does."""
        last = self._reports.get(row)
        if last is None or last[0] is not record:
            self._reports[row] = record, now
            return True
        return now - last[1] < REPORTS_WITHIN_S

    def _write(self, found: dict[int, _Standing]) -> None:
        for row in self._written.difference(found):
            self._table.set_express(row, *_APART)
        for row, standing in found.items():
            self._table.set_express(row, *standing)
        self._written = set(found)


def _step_of(record: WorkerRecord) -> float:
    return record.state.max_num_batched_tokens or DEFAULT_STEP_TOKENS


def _stricter(one: _Standing, other: _Standing) -> _Standing:
    # Any number is stricter than the unknown.
    limit = other[0] if math.isnan(one[0]) or other[0] < one[0] else one[0]
    return limit, min(one[1], other[1]), max(one[2], other[2])
