"""Isolation by evidence: what takes a worker out, for how long, and how it comes back (SPEC F1)."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from recursant.config.model import Isolation as Rules
from recursant.fleet.evidence import (
    PASSED_OVER_STREAK,
    PROBE_STREAK,
    RATE_MIN_FAILURES,
    RATE_WINDOW_S,
    SILENT_STREAK,
    STREAK_GAP_S,
    STREAMS_PER_ANSWER,
    Evidence,
    Finding,
    Judge,
    Reason,
)
from recursant.fleet.isolation import LONGEST_DRAIN_S, Isolation, IsolationBook, Phase, allowed_at_once, merge
from recursant.v1.worker_state_pb2 import WorkerState

CUDA, OOM, ERROR = Evidence.CUDA_ERROR, Evidence.OUT_OF_MEMORY, Evidence.SERVER_ERROR
SILENT, PASSED_OVER, PROBE = Evidence.NO_ANSWER, Evidence.PASSED_OVER, Evidence.PROBE_FAILED
OK, STREAM, PROBE_OK = Evidence.ANSWERED, Evidence.STREAM_ENDED, Evidence.PROBE_PASSED


def judge(*evidence: Evidence, step_s: float = 1.0, **rules: Any) -> list[Reason]:
    """What a judge finds in a history with so much time between the events."""
    found = []
    weighing = Judge(Rules(**rules))
    for number, each in enumerate(evidence):
        now = 1_000.0 + number * step_s
        finding = weighing.witness("w", "a", each, now, since=now - 0.5)
        if finding is not None:
            found.append(finding.reason)
    return found


@pytest.mark.parametrize(
    ("evidence", "found"),
    [
        ([CUDA] * 2, []),
        ([CUDA] * 3, [Reason.CUDA]),
        ([CUDA, CUDA, OK, CUDA], []),
        ([CUDA, CUDA, PROBE_OK, CUDA], []),
        # A stream's status says nothing about its tokens.
        ([CUDA, CUDA, STREAM, CUDA], [Reason.CUDA]),
        ([CUDA, CUDA, *[STREAM] * STREAMS_PER_ANSWER, CUDA], []),
        ([CUDA, *[STREAM] * (STREAMS_PER_ANSWER - 1), CUDA, STREAM, CUDA], [Reason.CUDA]),
        ([OOM], [Reason.OOM]),
        ([ERROR] * (RATE_MIN_FAILURES - 1), []),
        ([ERROR] * RATE_MIN_FAILURES, [Reason.ERRORS]),
        ([OK] * RATE_MIN_FAILURES + [ERROR] * RATE_MIN_FAILURES, [Reason.ERRORS]),
        ([OK] * (RATE_MIN_FAILURES + 1) + [ERROR] * RATE_MIN_FAILURES, []),
        ([SILENT] * (SILENT_STREAK - 1), []),
        ([SILENT] * SILENT_STREAK, [Reason.NO_ANSWERS]),
        ([SILENT, SILENT, OK, SILENT], []),
        ([PASSED_OVER] * (PASSED_OVER_STREAK - 1), []),
        ([PASSED_OVER] * PASSED_OVER_STREAK, [Reason.UNREACHABLE]),
        ([PASSED_OVER] * (PASSED_OVER_STREAK - 1) + [OK, PASSED_OVER], []),
        ([PASSED_OVER] * (PASSED_OVER_STREAK - 1) + [STREAM, PASSED_OVER], []),
        ([PROBE] * PROBE_STREAK, [Reason.PROBE]),
        ([PROBE, PROBE_OK, PROBE], []),
        # Requests that succeed do not make a wrong answer right.
        ([PROBE, OK, PROBE], [Reason.PROBE]),
        ([OK] * 100 + [STREAM] * 100, []),
    ],
)
def test_what_takes_a_worker_out(evidence: list[Evidence], found: list[Reason]) -> None:
    assert judge(*evidence) == found


def test_errors_far_apart_are_not_in_a_row() -> None:
    assert judge(CUDA, CUDA, CUDA, step_s=STREAK_GAP_S) == [Reason.CUDA]
    assert judge(CUDA, CUDA, CUDA, step_s=STREAK_GAP_S + 1) == []
    assert judge(*[ERROR] * RATE_MIN_FAILURES, step_s=RATE_WINDOW_S / (RATE_MIN_FAILURES - 1)) == []


def test_how_many_cuda_errors_is_configured() -> None:
    assert judge(CUDA, cuda_errors=1) == [Reason.CUDA]


def test_a_worker_that_answers_others_is_busy_and_not_dead() -> None:
    weighing = Judge(Rules())
    weighing.witness("w", "a", OK, 5.0)
    # All of these were sent before that answer, and given up after it.
    for number in range(SILENT_STREAK * 2):
        assert weighing.witness("w", "a", SILENT, 15.0 + number, since=number / 2) is None


def test_a_restarted_worker_is_judged_afresh() -> None:
    weighing = Judge(Rules())
    assert weighing.witness("w", "a", CUDA, 1.0) is None
    assert weighing.witness("w", "a", CUDA, 2.0) is None
    assert weighing.witness("w", "b", CUDA, 3.0) is None


def test_workers_are_judged_apart_and_forgotten() -> None:
    weighing = Judge(Rules())
    for worker in ("w1", "w2", "w3"):
        assert weighing.witness(worker, "a", CUDA, 1.0) is None
    weighing.forget("w1")
    assert len(weighing) == 2


def report(cuda: int = 0, oom: int = 0, last: str = "", incarnation: str = "a") -> WorkerState:
    state = WorkerState(id="w", incarnation=incarnation)
    state.errors.cuda, state.errors.out_of_memory, state.errors.last = cuda, oom, last
    return state


def test_counters_of_the_worker_are_evidence_when_they_rise() -> None:
    weighing = Judge(Rules())
    # What it had before we came is history.
    assert weighing.reported(report(cuda=7, oom=2), 1.0) is None
    assert weighing.reported(report(cuda=9, oom=2), 2.0) is None
    found = weighing.reported(report(cuda=10, oom=2, last="CUDA error: boom"), 3.0)
    assert found == Finding(Reason.CUDA, "3 CUDA errors in a row: CUDA error: boom")
    found = weighing.reported(report(cuda=10, oom=3, last="CUDA out of memory"), 4.0)
    assert found == Finding(Reason.OOM, "out of memory: CUDA out of memory")
    assert weighing.reported(report(cuda=10, oom=3), 5.0) is None
    # A new process counts from zero.
    assert weighing.reported(report(cuda=50, incarnation="b"), 6.0) is None


def test_errors_inside_streams_are_known_from_the_counters_alone() -> None:
    weighing = Judge(Rules())
    weighing.reported(report(), 0.0)
    state = report()
    found = []
    for number in range(RATE_MIN_FAILURES):
        weighing.witness("w", "a", STREAM, number)
        state.errors.other += 1
        found.append(weighing.reported(state, number + 0.2))
    assert [each is None for each in found] == [True] * (RATE_MIN_FAILURES - 1) + [False]


def test_a_worker_without_counters_says_nothing() -> None:
    assert Judge(Rules()).reported(WorkerState(id="w"), 1.0) is None


def test_an_error_that_two_witnesses_saw_counts_once() -> None:
    weighing = Judge(Rules())
    weighing.reported(report(), 0.0)
    for number in (1, 2):
        assert weighing.witness("w", "a", CUDA, number) is None
        assert weighing.reported(report(cuda=number), number + 0.2) is None
    assert weighing.reported(report(cuda=3), 3.0) is not None
    # The answer may come after the report, and an old report after a newer one.
    assert weighing.reported(report(cuda=3, oom=1), 4.0) is not None
    assert weighing.witness("w", "a", OOM, 4.1) is None
    assert weighing.reported(report(cuda=3), 4.2) is None
    assert weighing.reported(report(cuda=3, oom=1), 4.3) is None


# --- the book ---

FOUND = {reason: Finding(reason, f"because of {reason}") for reason in Reason}
FLEET = {f"w{number}": "a" for number in range(4)}


def book(**rules: Any) -> IsolationBook:
    return IsolationBook(Rules(**rules), "test", capacity=100)


def phases(kept: IsolationBook, now: float, ready: dict[str, str] | None = None) -> dict[str, Phase]:
    return {worker: each.phase for worker, each in kept.standings(FLEET if ready is None else ready, now).items()}


@pytest.mark.parametrize(
    ("reason", "seconds"),
    [
        # SPEC F1: 10 minutes and 10 seconds. The others: docs/isolation.md.
        (Reason.CUDA, 600.0),
        (Reason.OOM, 10.0),
        (Reason.ERRORS, 30.0),
        (Reason.NO_ANSWERS, 30.0),
        (Reason.UNREACHABLE, 30.0),
        (Reason.PROBE, 60.0),
    ],
)
def test_isolation_then_trial_then_nothing(reason: Reason, seconds: float) -> None:
    kept = book()
    isolation = kept.found("w0", "a", FOUND[reason], 100.0, 5)
    assert isolation is not None
    assert (isolation.text, isolation.since_ms, isolation.by) == (f"because of {reason}", 5, "test")
    assert phases(kept, 100.0 + seconds - 0.01) == {"w0": Phase.ISOLATED}
    assert phases(kept, 100.0 + seconds) == {"w0": Phase.TRIAL}
    assert phases(kept, 100.0 + seconds + 60.0) == {}
    kept.expire(100.0 + seconds + 60.0)
    assert len(kept) == 0


def tried(kept: IsolationBook, evidence: Evidence, now: float, since: float | None = None) -> Isolation | None:
    return kept.tried("w0", "a", evidence, now, int(now), text="boom", since=now if since is None else since)


def test_a_failed_trial_doubles_the_time_up_to_the_longest() -> None:
    kept = book(longest_ms=45_000)
    kept.found("w0", "a", FOUND[Reason.OOM], 0.0, 0)
    ends = []
    now = 10.0
    for _ in range(4):
        again = tried(kept, OOM, now)
        assert again is not None
        assert again.text == "failed its trial (out of memory): boom"
        ends.append(again.until_s - now)
        now = again.until_s
    assert ends == [20.0, 40.0, 45.0, 45.0]


def test_a_trial_ends_after_enough_successes_or_one_probe() -> None:
    kept = book(trial_requests=3)
    kept.found("w0", "a", FOUND[Reason.OOM], 0.0, 0)
    # Sent before the trial, or not on trial yet: proves nothing.
    assert tried(kept, OK, 5.0) is None
    assert tried(kept, OK, 12.0, since=9.0) is None
    assert [tried(kept, OK, 12.0), tried(kept, STREAM, 12.0)] == [None, None]
    assert phases(kept, 12.0) == {"w0": Phase.TRIAL}
    released = tried(kept, OK, 12.0)
    assert released is not None
    assert released.released
    assert phases(kept, 12.0) == {}
    kept.found("w0", "a", FOUND[Reason.OOM], 20.0, 20)
    assert tried(kept, PROBE_OK, 30.0) is not None
    assert phases(kept, 30.0) == {}


def test_the_same_finding_again_lengthens_nothing_and_a_worse_one_does() -> None:
    kept = book()
    kept.found("w0", "a", FOUND[Reason.OOM], 0.0, 0)
    assert kept.found("w0", "a", FOUND[Reason.OOM], 5.0, 5) is None
    assert phases(kept, 10.0) == {"w0": Phase.TRIAL}
    kept = book()
    kept.found("w0", "a", FOUND[Reason.OOM], 0.0, 0)
    assert kept.found("w0", "a", FOUND[Reason.CUDA], 5.0, 5) is not None
    assert kept.found("w0", "a", FOUND[Reason.OOM], 599.0, 6) is None
    assert phases(kept, 604.9) == {"w0": Phase.ISOLATED}


def test_a_new_incarnation_clears_it() -> None:
    kept = book()
    kept.found("w0", "a", FOUND[Reason.CUDA], 0.0, 0)
    assert phases(kept, 1.0, FLEET | {"w0": "b"}) == {}
    # The new process may fail as well.
    assert kept.found("w0", "b", FOUND[Reason.CUDA], 2.0, 2) is not None
    assert phases(kept, 3.0, FLEET | {"w0": "b"}) == {"w0": Phase.ISOLATED}


def test_manual_isolation_and_release() -> None:
    kept = book()
    kept.isolate("w0", 60.0, "looks odd", 0.0, 0, by="api")
    # It outlives a restart, evidence leaves it alone, and it ends without a trial.
    assert phases(kept, 1.0, FLEET | {"w0": "b"}) == {"w0": Phase.ISOLATED}
    assert kept.found("w0", "a", FOUND[Reason.CUDA], 1.0, 1) is None
    assert phases(kept, 60.0) == {}
    kept.found("w1", "a", FOUND[Reason.CUDA], 60.0, 60)
    kept.release("w1", 61.0, 61, by="api")
    assert phases(kept, 61.0) == {}


def test_a_drain_ends_with_the_process_and_is_not_counted() -> None:
    kept = book()
    kept.drain("w0", "a", "driver update", 0.0, 0, by="api")
    # Nothing ends it but a release, a restart, or a whole day; no evidence makes it less.
    assert phases(kept, LONGEST_DRAIN_S - 1.0) == {"w0": Phase.DRAINING}
    assert kept.found("w0", "a", FOUND[Reason.CUDA], 1.0, 1) is None
    assert phases(kept, 1.0, FLEET | {"w0": "b"}) == {}
    # While its process is not ready nothing is known of a restart.
    assert phases(kept, 1.0, {"w1": "a", "w2": "a"}) == {"w0": Phase.DRAINING}
    # It is no evidence against the fleet: of three that are left, one may be taken out besides.
    for number in (1, 2):
        kept.found(f"w{number}", "a", FOUND[Reason.CUDA], 2.0, number)
    assert phases(kept, 2.0) == {"w0": Phase.DRAINING, "w1": Phase.ISOLATED, "w2": Phase.SPARED}
    kept.release("w0", 3.0, 3, by="api")
    assert "w0" not in phases(kept, 3.0)


def test_the_process_after_a_drain_is_judged_like_any_other() -> None:
    kept, other = book(), book()
    drained = kept.drain("w0", "a", "", 0.0, 0, by="api")
    found = kept.found("w0", "b", FOUND[Reason.CUDA], 1.0, 1)
    assert found is not None
    assert phases(kept, 1.0, FLEET | {"w0": "b"}) == {"w0": Phase.ISOLATED}
    # Whoever knows only the drain learns of it, and not the other way round.
    assert merge(drained, found) is merge(found, drained) is found
    other.reconcile([drained], 0.5)
    assert other.reconcile([found], 1.0) == []
    assert phases(other, 1.0, FLEET | {"w0": "b"}) == {"w0": Phase.ISOLATED}


def test_a_drain_that_outlives_restarts_has_to_be_released() -> None:
    kept = book()
    kept.drain("w0", "", "", 0.0, 0, by="api")
    assert phases(kept, 1.0, FLEET | {"w0": "b"}) == {"w0": Phase.DRAINING}


@pytest.mark.parametrize(("workers", "share", "allowed"), [(0, 0.5, 0), (1, 1.0, 0), (2, 0.5, 1), (3, 0.5, 1)])
def test_how_many_may_be_out(workers: int, share: float, allowed: int) -> None:
    assert allowed_at_once(workers, share) == allowed


def test_no_more_than_the_share_and_the_rest_is_spared() -> None:
    kept = book()
    for number in range(4):
        kept.found(f"w{number}", "a", FOUND[Reason.CUDA], 0.0, number)
    found = phases(kept, 1.0)
    assert [found[f"w{number}"] for number in range(4)] == [Phase.ISOLATED] * 2 + [Phase.SPARED] * 2
    # The first to fail stay out; a fleet that shrinks gets one back.
    assert phases(kept, 1.0, {"w0": "a", "w1": "a"}) == {"w0": Phase.ISOLATED, "w1": Phase.SPARED}
    # What operators take out leaves fewer to take.
    kept.isolate("w3", 60.0, "", 1.0, 1, by="api")
    assert list(phases(kept, 1.0).values()).count(Phase.ISOLATED) == 2


def test_a_worker_on_trial_makes_room_for_one_that_is_worse() -> None:
    kept = book()
    kept.found("w0", "a", FOUND[Reason.OOM], 0.0, 0)
    kept.found("w1", "a", FOUND[Reason.OOM], 0.0, 1)
    kept.found("w2", "a", FOUND[Reason.CUDA], 11.0, 2)
    assert phases(kept, 11.0) == {"w2": Phase.ISOLATED, "w0": Phase.TRIAL}


def test_the_book_is_bounded() -> None:
    kept = IsolationBook(Rules(), "test", capacity=2)
    for number in range(5):
        kept.found(f"w{number}", "a", FOUND[Reason.OOM], 0.0, number)
    assert len(kept) == 2


# --- agreeing ---


def isolation(**changes: Any) -> Isolation:
    return replace(Isolation("w0", "a", Reason.OOM, "", 10, 20.0, 80.0, by="x"), **changes)


@pytest.mark.parametrize(
    ("one", "other", "winner"),
    [
        ({"since_ms": 10, "until_s": 20.0}, {"since_ms": 11, "until_s": 19.0}, 0),
        ({"since_ms": 10, "until_s": 20.0}, {"since_ms": 11, "until_s": 600.0}, 1),
        ({"since_ms": 10}, {"since_ms": 11, "released": True}, 1),
        ({"since_ms": 12}, {"since_ms": 11, "released": True}, 0),
        ({"since_ms": 11}, {"since_ms": 11, "released": True}, 1),
        ({"reason": Reason.MANUAL, "until_s": 15.0}, {"since_ms": 99, "until_s": 600.0}, 0),
        ({"incarnation": "a", "until_s": 600.0}, {"incarnation": "b", "since_ms": 11}, 1),
        ({"reason": Reason.MANUAL, "until_s": 600.0}, {"reason": Reason.MANUAL, "since_ms": 11}, 1),
    ],
)
def test_which_of_two_holds(one: dict[str, Any], other: dict[str, Any], winner: int) -> None:
    both = isolation(**one), isolation(by="y", **other)
    assert merge(*both) == both[winner]
    assert merge(*reversed(both)) == both[winner]


def test_the_store_is_told_what_it_lacks_and_believed_where_it_knows_better() -> None:
    mine, theirs = book(), IsolationBook(Rules(), "other", capacity=100)
    own = mine.found("w0", "a", FOUND[Reason.CUDA], 0.0, 1)
    foreign = theirs.found("w1", "a", FOUND[Reason.OOM], 0.0, 2)
    assert own is not None
    assert foreign is not None
    assert mine.reconcile([foreign], 1.0) == [own]
    assert set(phases(mine, 1.0)) == {"w0", "w1"}
    # An emptied store is filled again, a release is not undone.
    assert sorted(each.worker_id for each in mine.reconcile([], 2.0)) == ["w0", "w1"]
    released = theirs.release("w1", 3.0, 3, by="api")
    assert mine.reconcile([own, released], 4.0) == []
    assert set(phases(mine, 4.0)) == {"w0"}
    assert [each.released for each in mine.reconcile([own, foreign], 5.0)] == [True]


def test_a_release_holds_against_a_clock_that_is_ahead() -> None:
    kept = book()
    foreign = isolation(since_ms=1_000_000)
    kept.reconcile([foreign], 1.0)
    kept.release("w0", 2.0, 5, by="api")
    (release,) = kept.reconcile([foreign], 3.0)
    assert merge(foreign, release) == release
    assert phases(kept, 3.0) == {}


# --- properties ---

WORKERS = st.sampled_from([f"w{number}" for number in range(6)])
EVENTS = st.lists(st.tuples(WORKERS, st.sampled_from(list(Evidence)), st.floats(0.0, 40.0)), max_size=80)
SHARES = st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0])


def play(events: list[tuple[str, Evidence, float]], share: float) -> list[dict[str, Phase]]:
    """What follows from a history, after each of its events; the last entry is when all is over."""
    rules = Rules(max_share=share)
    weighing, kept = Judge(rules), IsolationBook(rules, "test", capacity=100)
    ready = {f"w{number}": "a" for number in range(6)}
    now, seen = 0.0, []
    for worker, evidence, pause in events:
        now += pause
        trial = kept.tried(worker, "a", evidence, now, int(now), text="", since=now)
        finding = weighing.witness(worker, "a", evidence, now, since=now)
        if finding is not None and trial is None:
            kept.found(worker, "a", finding, now, int(now))
        seen.append(phases(kept, now, ready))
    seen.append(phases(kept, now + rules.longest_ms / 1_000 + rules.trial_ms / 1_000, ready))
    return seen


@given(EVENTS, SHARES)
def test_isolation_ends_and_never_takes_more_than_the_share(
    events: list[tuple[str, Evidence, float]], share: float
) -> None:
    seen = play(events, share)
    assert seen[-1] == {}
    for found in seen:
        out = [phase for phase in found.values() if phase is not Phase.SPARED]
        assert len(out) <= min(6 * share, 5)
    assert play(events, share) == seen


@given(st.lists(st.sampled_from([OK, STREAM, PROBE_OK]), max_size=50))
def test_success_takes_nobody_out(evidence: list[Evidence]) -> None:
    assert judge(*evidence) == []


# One process makes one value at a time.
VALUES = st.builds(
    lambda since_ms, by, **fields: isolation(since_ms=since_ms * 2 + (by == "x"), by=by, **fields),
    since_ms=st.integers(0, 3),
    by=st.sampled_from(["x", "y"]),
    until_s=st.sampled_from([20.0, 30.0]),
    released=st.booleans(),
    reason=st.sampled_from([Reason.OOM, Reason.MANUAL, Reason.DRAIN]),
    incarnation=st.sampled_from(["a", "b", ""]),
)


@given(VALUES, VALUES)
def test_merging_is_the_same_both_ways(one: Isolation, other: Isolation) -> None:
    assume(one.since_ms != other.since_ms)
    assert merge(one, other) == merge(other, one)


def test_processes_that_hear_in_any_order_agree() -> None:
    values = [
        isolation(by="x"),
        isolation(by="y", since_ms=11, until_s=600.0, gone_s=660.0, reason=Reason.CUDA),
        isolation(by="z", since_ms=12, released=True),
    ]
    results = set()
    for order in permutations(values):
        kept = book()
        for each in order:
            kept.reconcile([each], 1.0)
        results.add(tuple(sorted(phases(kept, 1.0))))
    assert results == {()}
