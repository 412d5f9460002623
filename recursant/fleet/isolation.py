"""Who is isolated, on trial, or spared (SPEC F1). Pure: the time is an argument.

An isolation is a value with an end. Every process that knows the same isolations and the same fleet comes to the
same result, so they need to agree on nothing but the values, and `merge` makes them agree on those in whatever order
they hear of them.

A worker that was isolated by evidence is on trial when its time is over: it gets one request at a time, and is back
when enough of them, or a probe, succeeded, or the trial's time is over too. A failure isolates it again, for twice
the time. What an operator isolates comes back without a trial.

An operator who means to stop a worker drains it: that is an isolation too, by another name, and ends with the process.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from recursant.config.model import Isolation as Rules
from recursant.fleet.evidence import MAX_TEXT_CHARS, Evidence, Finding, Reason

# How long a release is remembered, so that whoever missed it does not bring the isolation back. Seconds.
RELEASE_MEMORY_S: Final = 60.0
# The time doubles at most so often; `isolation.longest_ms` bounds it before.
MAX_LEVEL: Final = 20
# A drain that nobody ends is forgotten after this long. Seconds.
LONGEST_DRAIN_S: Final = 86_400.0


class Phase(StrEnum):
    """Where an isolation stands."""

    ISOLATED = "isolated"
    TRIAL = "trial"
    # It should be out, but too many are already.
    SPARED = "spared"
    # Taken out on an operator's word, to be stopped.
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Isolation:
    """One worker's isolation, or its release.

    Attributes:
        worker_id: whose.
        incarnation: of the process that it is about; "" for one that outlives restarts, as a manual one does.
        reason: why.
        text: the evidence in words.
        since_ms: when it began, by its maker's wall clock; for people, and to tell the newer of two.
        until_s: when the isolation is over, on this process's monotonic clock.
        gone_s: when the trial is over as well, and nothing is left of it.
        level: how often it was doubled.
        by: which service or operator made it.
        released: it is over before its time.
    """

    worker_id: str
    incarnation: str
    reason: Reason
    text: str
    since_ms: int
    until_s: float
    gone_s: float
    level: int = 0
    by: str = ""
    released: bool = False

    @property
    def manual(self) -> bool:
        """Was it an operator's word?"""
        return self.reason in (Reason.MANUAL, Reason.DRAIN)

    def is_about(self, incarnation: str) -> bool:
        """Does it hold for this process of the worker?"""
        return self.incarnation in ("", incarnation)


@dataclass(frozen=True, slots=True)
class Standing:
    """An isolation that is in force, or would be if not too many were."""

    isolation: Isolation
    phase: Phase


def merge(one: Isolation, other: Isolation) -> Isolation:
    """Which of two values for the same worker holds. The same whichever way round they come."""
    if one.released or other.released:
        return _newer(one, other)
    if one.manual != other.manual:
        operators, found = (one, other) if one.manual else (other, one)
        # A drain says nothing about the process after it.
        return operators if operators.is_about(found.incarnation) else _newer(one, other)
    if one.manual or one.incarnation != other.incarnation or one.since_ms == other.since_ms:
        return _newer(one, other)
    return max(one, other, key=lambda each: (each.until_s, each.since_ms))


def _newer(one: Isolation, other: Isolation) -> Isolation:
    def age(each: Isolation) -> tuple[int, bool, str, str]:
        return (each.since_ms, each.released, each.by, each.text)

    # Of equal ones the first: it is the same one, and was converted from clock to clock less often.
    return other if age(other) > age(one) else one


def allowed_at_once(workers: int, max_share: float) -> int:
    """How many of so many workers evidence may take out at one time: a share of them, and never the last one."""
    return max(0, min(int(workers * max_share), workers - 1))


class IsolationBook:
    """The isolations that one process knows, at most one for each worker.

    Args:
        rules: the configured numbers.
        by: this process's name.
        capacity: the most that it keeps; further ones are not taken.
    """

    def __init__(self, rules: Rules, by: str, capacity: int) -> None:
        self._rules = rules
        self._by = by
        self._capacity = capacity
        self._known: dict[str, Isolation] = {}
        # Successes of the trial that is under way.
        self._passed: dict[str, int] = {}

    # --- what happens to a worker ---

    def found(self, worker_id: str, incarnation: str, finding: Finding, now: float, wall_ms: int) -> Isolation | None:
        """Isolate for a finding of the judge; None where the worker is out already, for nothing less."""
        old = self._current(worker_id, incarnation, now)
        if old is not None:
            worse = for_s(finding.reason, self._rules) > for_s(old.reason, self._rules)
            if old.manual or (now < old.until_s and not worse):
                return None
            if now >= old.until_s and not worse:
                return self._again(old, finding.text, now, wall_ms)
        return self._isolate(worker_id, incarnation, finding.reason, finding.text, 0, now, wall_ms)

    def tried(
        self, worker_id: str, incarnation: str, evidence: Evidence, now: float, wall_ms: int, *, text: str, since: float
    ) -> Isolation | None:
        """Take evidence about a worker on trial: its release, a longer isolation, or None where nothing follows.

        Args:
            worker_id: whose trial; it need not be on one.
            incarnation: of its process.
            evidence: what happened.
            now: when.
            wall_ms: the same by the wall clock.
            text: the error's own words.
            since: when the request was sent; what began before the trial proves nothing.
        """
        old = self._current(worker_id, incarnation, now)
        if old is None or old.manual or now < old.until_s or since < old.until_s:
            return None
        if evidence.is_failure:
            said = f"failed its trial ({evidence.value.replace('_', ' ')})"
            return self._again(old, f"{said}: {text}" if text else said, now, wall_ms)
        passed = self._passed.get(worker_id, 0) + 1
        self._passed[worker_id] = passed
        if evidence is Evidence.PROBE_PASSED or passed >= self._rules.trial_requests:
            return self.release(worker_id, now, wall_ms, by=self._by)
        return None

    def isolate(self, worker_id: str, seconds: float, text: str, now: float, wall_ms: int, *, by: str) -> Isolation:
        """Isolate on an operator's word, for so many seconds."""
        until_s = now + seconds
        since = self._since(worker_id, wall_ms)
        text = text[:MAX_TEXT_CHARS]
        return self._put(Isolation(worker_id, "", Reason.MANUAL, text, since, until_s, until_s, by=by))

    def drain(self, worker_id: str, incarnation: str, text: str, now: float, wall_ms: int, *, by: str) -> Isolation:
        """Take a worker out on an operator's word, for good: until it is released, or stops.

        Args:
            worker_id: which.
            incarnation: of its process; "" where a restart is not to end it.
            text: why, in words.
            now: when.
            wall_ms: the same by the wall clock.
            by: whose word.
        """
        until_s = now + LONGEST_DRAIN_S
        since = self._since(worker_id, wall_ms)
        text = text[:MAX_TEXT_CHARS]
        return self._put(Isolation(worker_id, incarnation, Reason.DRAIN, text, since, until_s, until_s, by=by))

    def release(self, worker_id: str, now: float, wall_ms: int, *, by: str) -> Isolation:
        """End whatever isolation or trial there is, everywhere."""
        old = self._known.get(worker_id)
        gone_s = now + RELEASE_MEMORY_S
        return self._put(
            Isolation(
                worker_id,
                "" if old is None else old.incarnation,
                Reason.MANUAL if old is None else old.reason,
                "released",
                self._since(worker_id, wall_ms),
                now,
                gone_s,
                by=by,
                released=True,
            )
        )

    # --- what the others know ---

    def reconcile(self, others: Iterable[Isolation], now: float) -> list[Isolation]:
        """Take what the shared store holds; what has to be written there, as it is missing or outdone."""
        theirs = {each.worker_id: each for each in others if now < each.gone_s}
        for worker_id, other in theirs.items():
            mine = self._known.get(worker_id)
            if mine is None or now >= mine.gone_s:
                self._put(other)
            elif _differ(mine, other):
                winner = merge(mine, other)
                if winner is other:
                    self._put(other)
        return [
            mine
            for mine in self._known.values()
            if now < mine.gone_s and (mine.worker_id not in theirs or _differ(mine, theirs[mine.worker_id]))
        ]

    def expire(self, now: float) -> None:
        """Drop what is over."""
        for worker_id in [each.worker_id for each in self._known.values() if now >= each.gone_s]:
            del self._known[worker_id]
            self._passed.pop(worker_id, None)

    # --- what follows ---

    def standings(self, ready: Mapping[str, str], now: float) -> dict[str, Standing]:
        """Everybody who is isolated, on trial, or spared.

        Args:
            ready: the incarnation of every worker that would take requests; others are neither counted nor spared.
            now: when.
        """
        found: dict[str, Standing] = {}
        by_evidence: list[tuple[Phase, Isolation]] = []
        manual_among_ready = 0
        for each in self._known.values():
            if each.released or now >= each.gone_s:
                continue
            if each.manual:
                if not each.is_about(ready.get(each.worker_id, each.incarnation)):
                    continue
                phase = Phase.DRAINING if each.reason is Reason.DRAIN else Phase.ISOLATED
                found[each.worker_id] = Standing(each, phase)
                manual_among_ready += each.worker_id in ready
            elif ready.get(each.worker_id) == each.incarnation:
                by_evidence.append((Phase.ISOLATED if now < each.until_s else Phase.TRIAL, each))
        by_evidence.sort(key=lambda entry: (entry[0] is Phase.TRIAL, entry[1].since_ms, entry[1].worker_id))
        allowed = allowed_at_once(len(ready) - manual_among_ready, self._rules.max_share)
        for place, (phase, each) in enumerate(by_evidence):
            if place < allowed:
                found[each.worker_id] = Standing(each, phase)
            elif phase is Phase.ISOLATED:
                found[each.worker_id] = Standing(each, Phase.SPARED)
        return found

    def __len__(self) -> int:
        return len(self._known)

    # --- inside ---

    def _current(self, worker_id: str, incarnation: str, now: float) -> Isolation | None:
        """The isolation or trial of a worker's process, if it has one now."""
        known = self._known.get(worker_id)
        if known is None or known.released or now >= known.gone_s:
            return None
        return known if known.is_about(incarnation) else None

    def _again(self, old: Isolation, text: str, now: float, wall_ms: int) -> Isolation:
        level = min(old.level + 1, MAX_LEVEL)
        return self._isolate(old.worker_id, old.incarnation, old.reason, text, level, now, wall_ms)

    def _isolate(
        self, worker_id: str, incarnation: str, reason: Reason, text: str, level: int, now: float, wall_ms: int
    ) -> Isolation:
        rules = self._rules
        until_s = now + min(for_s(reason, rules) * 2**level, rules.longest_ms / 1_000)
        return self._put(
            Isolation(
                worker_id,
                incarnation,
                reason,
                text[:MAX_TEXT_CHARS],
                self._since(worker_id, wall_ms),
                until_s,
                until_s + rules.trial_ms / 1_000,
                level,
                self._by,
            )
        )

    def _since(self, worker_id: str, wall_ms: int) -> int:
        """Now, but after whatever is known, even if that was written by a clock that is ahead."""
        old = self._known.get(worker_id)
        return wall_ms if old is None else max(wall_ms, old.since_ms + 1)

    def _put(self, isolation: Isolation) -> Isolation:
        if isolation.worker_id in self._known or len(self._known) < self._capacity:
            self._known[isolation.worker_id] = isolation
            self._passed.pop(isolation.worker_id, None)
        return isolation


def for_s(reason: Reason, rules: Rules) -> float:
    """How long the first isolation for a reason lasts, in seconds."""
    match reason:
        case Reason.CUDA:
            milliseconds = rules.cuda_ms
        case Reason.OOM:
            milliseconds = rules.oom_ms
        case Reason.PROBE:
            milliseconds = rules.probe_ms
        case _:
            milliseconds = rules.errors_ms
    return milliseconds / 1_000


def _differ(mine: Isolation, other: Isolation) -> bool:
    """Are they two values? Times are left out: each process has them on a clock of its own."""
    return (mine.since_ms, mine.by, mine.released, mine.reason, mine.incarnation) != (
        other.since_ms,
        other.by,
        other.released,
        other.reason,
        other.incarnation,
    )
