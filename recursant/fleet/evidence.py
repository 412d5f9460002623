"""Judges workers by what happened to the requests that they got (SPEC F1). Pure: the time is an argument.

Heartbeats say that a process lives, not that its device works, so only evidence takes a worker out. What a request
did to itself is never evidence: 4xx answers, clients that hang up, a full queue.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from recursant.config.model import Isolation as Rules
from recursant.v1.worker_state_pb2 import WorkerState

# Server errors take a worker out when so many of them came within the window, and they are this share of the answers.
RATE_WINDOW_S: Final = 30.0
RATE_MIN_FAILURES: Final = 5
RATE_SHARE: Final = 0.5
# Answers looked at for that; the oldest give way.
RATE_MAX_ANSWERS: Final = 512
# So many requests in a row without any answer, and nothing answered since the oldest of them was sent.
SILENT_STREAK: Final = 3
# So many in a row for which Envoy had to turn to another worker: connection refused or reset, or a 503.
PASSED_OVER_STREAK: Final = 5
# So many failed probes in a row.
PROBE_STREAK: Final = 2
# Errors further apart than this are not in a row.
STREAK_GAP_S: Final = 600.0
# The status of a stream comes before its first token and proves nothing; so many that ended without an error between
# them count as one answer.
STREAMS_PER_ANSWER: Final = 20
MAX_TEXT_CHARS: Final = 500


class Evidence(StrEnum):
    """What happened to one request, or one probe, at a worker."""

    CUDA_ERROR = "cuda_error"
    OUT_OF_MEMORY = "out_of_memory"
    # Any other 5xx, or one whose body could not be seen.
    SERVER_ERROR = "server_error"
    # No answer within the time that the request may take to its first byte.
    NO_ANSWER = "no_answer"
    # Envoy went on to the next worker of the list, or found none: refused, reset, or 503.
    PASSED_OVER = "passed_over"
    PROBE_FAILED = "probe_failed"
    PROBE_PASSED = "probe_passed"
    # Answered whole, with success.
    ANSWERED = "answered"
    # A stream that began with success has ended.
    STREAM_ENDED = "stream_ended"

    @property
    def is_failure(self) -> bool:
        """Does it speak against the worker?"""
        return self not in (Evidence.PROBE_PASSED, Evidence.ANSWERED, Evidence.STREAM_ENDED)


class Reason(StrEnum):
    """Why a worker is isolated."""

    CUDA = "cuda"
    OOM = "oom"
    ERRORS = "errors"
    NO_ANSWERS = "no_answers"
    UNREACHABLE = "unreachable"
    PROBE = "probe"
    MANUAL = "manual"
    # An operator wants to stop it: it finishes what it has.
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Finding:
    """A worker should be taken out.

    Attributes:
        reason: why.
        text: the evidence in words, with the last error's text.
    """

    reason: Reason
    text: str


@dataclass(slots=True)
class _Counted:
    """One kind of error as counted by two witnesses: the answers that we saw, and the worker's own reports.

    Both see the same errors, the worker's report more of them and later; what counts is the larger number.
    """

    answers: int = 0
    reports: int = 0
    # The report's counter when we first heard of this incarnation.
    base: int | None = None

    def another_answer(self) -> int:
        before = max(self.answers, self.reports)
        self.answers += 1
        return max(self.answers, self.reports) - before

    def reported(self, counter: int) -> int:
        if self.base is None:
            self.base = counter
        before = max(self.answers, self.reports)
        self.reports = counter - self.base
        return max(0, max(self.answers, self.reports) - before)


@dataclass(slots=True)
class _History:
    """What is remembered of one incarnation of a worker. Times in seconds."""

    incarnation: str
    cuda: _Counted = field(default_factory=_Counted)
    oom: _Counted = field(default_factory=_Counted)
    other: _Counted = field(default_factory=_Counted)
    cuda_streak: int = 0
    silent_streak: int = 0
    passed_over_streak: int = 0
    probe_streak: int = 0
    streams: int = 0
    failed_at: float = -1e18
    answered_at: float = -1e18
    # When each answer came, and whether it was a server error.
    answers: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=RATE_MAX_ANSWERS))

    def answered(self, now: float) -> None:
        self.answered_at = now
        self.cuda_streak = self.silent_streak = self.passed_over_streak = self.streams = 0


class Judge:
    """Weighs the evidence. Remembers the workers that it is told of, each until `forget`.

    Args:
        rules: the configured numbers.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._histories: dict[str, _History] = {}

    def witness(
        self, worker_id: str, incarnation: str, evidence: Evidence, now: float, *, text: str = "", since: float = 0.0
    ) -> Finding | None:
        """Take one piece of evidence; is it the one that is too much?

        Args:
            worker_id: whom it is about.
            incarnation: of the worker's process; evidence against another one is forgotten.
            evidence: what happened.
            now: when.
            text: the error's own words.
            since: when the request was sent, in the time of `now`.
        """
        history = self._history(worker_id, incarnation)
        if evidence.is_failure:
            self._failed(history, now)
        match evidence:
            case Evidence.CUDA_ERROR:
                return self._cuda(history, history.cuda.another_answer(), text)
            case Evidence.OUT_OF_MEMORY:
                return self._oom(history.oom.another_answer(), text)
            case Evidence.SERVER_ERROR:
                return self._rate(history, history.other.another_answer(), now, text)
            case Evidence.NO_ANSWER:
                # A worker that answers others is busy, not dead.
                if history.answered_at >= since:
                    return None
                history.silent_streak += 1
                return _streak(Reason.NO_ANSWERS, history.silent_streak, SILENT_STREAK, "unanswered requests", text)
            case Evidence.PASSED_OVER:
                history.passed_over_streak += 1
                streak = history.passed_over_streak
                return _streak(Reason.UNREACHABLE, streak, PASSED_OVER_STREAK, "requests not taken", text)
            case Evidence.PROBE_FAILED:
                history.probe_streak += 1
                return _streak(Reason.PROBE, history.probe_streak, PROBE_STREAK, "failed probes", text)
            case Evidence.STREAM_ENDED:
                history.answers.append((now, False))
                history.streams += 1
                history.passed_over_streak = 0
                if history.streams >= STREAMS_PER_ANSWER:
                    history.answered(now)
            case Evidence.ANSWERED:
                history.answers.append((now, False))
                history.answered(now)
            case Evidence.PROBE_PASSED:
                history.probe_streak = 0
                history.answered(now)
        return None

    def reported(self, state: WorkerState, now: float) -> Finding | None:
        """Take a worker's own counters: what rose since its last report is evidence (errors inside streams, too)."""
        if not state.HasField("errors"):
            return None
        errors = state.errors
        history = self._history(state.id, state.incarnation)
        cuda = history.cuda.reported(errors.cuda)
        oom = history.oom.reported(errors.out_of_memory)
        other = history.other.reported(errors.other)
        if not cuda and not oom and not other:
            return None
        self._failed(history, now)
        # The last error's text may be of any kind.
        return (
            self._cuda(history, cuda, errors.last)
            or self._oom(oom, errors.last)
            or self._rate(history, other, now, errors.last)
        )

    def forget(self, worker_id: str) -> None:
        """A worker has left the fleet."""
        self._histories.pop(worker_id, None)

    def __len__(self) -> int:
        return len(self._histories)

    # --- inside ---

    def _history(self, worker_id: str, incarnation: str) -> _History:
        history = self._histories.get(worker_id)
        if history is None or history.incarnation != incarnation:
            history = self._histories[worker_id] = _History(incarnation)
        return history

    def _failed(self, history: _History, now: float) -> None:
        if now - history.failed_at > STREAK_GAP_S:
            history.cuda_streak = history.silent_streak = history.passed_over_streak = history.probe_streak = 0
        history.failed_at = now
        history.streams = 0

    def _cuda(self, history: _History, more: int, text: str) -> Finding | None:
        history.cuda_streak += more
        if not more or history.cuda_streak < self._rules.cuda_errors:
            return None
        said = f"{history.cuda_streak} CUDA errors in a row"
        history.cuda_streak = 0
        return Finding(Reason.CUDA, _with_text(said, text))

    def _oom(self, more: int, text: str) -> Finding | None:
        if not more:
            return None
        return Finding(Reason.OOM, _with_text("out of memory", text))

    def _rate(self, history: _History, more: int, now: float, text: str) -> Finding | None:
        history.answers.extend([(now, True)] * min(more, RATE_MIN_FAILURES))
        if not more:
            return None
        recent = [failed for at, failed in history.answers if at > now - RATE_WINDOW_S]
        failures = sum(recent)
        if failures < RATE_MIN_FAILURES or failures < RATE_SHARE * len(recent):
            return None
        history.answers.clear()
        said = f"{failures} of {len(recent)} answers within {RATE_WINDOW_S:g} s were server errors"
        return Finding(Reason.ERRORS, _with_text(said, text))


def _streak(reason: Reason, streak: int, limit: int, what: str, text: str) -> Finding | None:
    return Finding(reason, _with_text(f"{streak} {what} in a row", text)) if streak >= limit else None


def _with_text(said: str, text: str) -> str:
    return f"{said}: {text}"[:MAX_TEXT_CHARS] if text else said
