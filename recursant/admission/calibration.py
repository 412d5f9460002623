"""How long prompts and answers are, learnt for each model family (SPEC E2). Pure.

A prompt's length is known before the worker sees it only as the length of its body. How many tokens that makes differs
by tokenizer, language and kind of request, so it is measured: the mean length of the bodies that this process sent to
a worker, over the mean number of prompt tokens of the requests that the worker says it has finished. Both are means, so
that requests which came to the worker past this process do no harm where they are of the same kind, and a request that
is counted in one window here and in the next one there does little.

How long an answer will be is known only as its bound, which many clients set far higher than they need. So two means
are learnt in the same windows: the length of answers, and what that is as a share of what was expected of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from recursant.routing.need import DEFAULT_EXPECTED_TOKENS

# Before anything is measured: English text on byte-pair tokenizers is about four characters a token.
DEFAULT_BYTES_PER_TOKEN: Final = 4.0
# Beyond these no measurement is believed.
LEAST_BYTES_PER_TOKEN: Final = 1.0
MOST_BYTES_PER_TOKEN: Final = 16.0
# A window is used once both sides have finished this many requests in it.
MIN_REQUESTS: Final = 8
# And only where the worker has finished at most this many times as many as we have seen: beyond that, what it reports
# is about other people's requests.
MOST_OTHERS: Final = 16
# Weight of the newest window, among windows of equally long prompts.
SMOOTHING: Final = 0.2
# Families that are kept apart; a fleet has a handful.
MAX_FAMILIES: Final = 256
# The last bits of a division.
_NOISE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of one family.

    Attributes:
        bytes_per_token: bytes of a request body for each prompt token.
        error: mean distance of the estimate from the truth, as a share of the truth; windows count, newer ones more.
        windows: how many were measured.
        answer_tokens: mean length of the answers; None where no worker tells.
        answer_share: the same over the mean of what was expected of them, at most 1.
    """

    bytes_per_token: float
    error: float
    windows: int
    answer_tokens: float | None = None
    answer_share: float | None = None


@dataclass(slots=True)
class _Window:
    """What has been seen of one worker since its last measurement.

    Attributes:
        incarnation: of the worker.
        start: requests, prompt tokens and answer tokens that it had finished when the window began.
        requests: that this process has seen finished there.
        body_bytes: of those.
        expected_tokens: the answers of those.
        family: of all of those; None before the first, "" where they differ.
    """

    incarnation: str
    start: tuple[int, int, int | None]
    requests: int = 0
    body_bytes: int = 0
    expected_tokens: int = 0
    family: str | None = None


@dataclass(slots=True)
class _Mean:
    """A ratio of two sums over windows, newer ones more: what is long has the weight of its length.

    Prompts of five tokens in bodies of a hundred bytes say little of those that fill a KV cache.
    """

    over: float = 0.0
    under: float = 0.0

    def add(self, over: float, under: float) -> float:
        """Take one more window in; gives the ratio."""
        if self.under == 0:
            # As if it had always been so.
            self.over, self.under = over / SMOOTHING, under / SMOOTHING
        else:
            self.over += over - SMOOTHING * self.over
            self.under += under - SMOOTHING * self.under
        return self.over / self.under


@dataclass(slots=True)
class _Sums:
    """Of one family: bytes over prompt tokens, answer tokens over answers, and over what was expected of them."""

    prompts: _Mean = field(default_factory=_Mean)
    answers: _Mean = field(default_factory=_Mean)
    shares: _Mean = field(default_factory=_Mean)


class Calibration:
    """The lengths of every family. One per process; not safe for threads."""

    def __init__(self) -> None:
        self._bytes_per_token: dict[str, float] = {}
        self._estimates: dict[str, Estimate] = {}
        self._sums: dict[str, _Sums] = {}
        self._windows: dict[str, _Window] = {}

    def bytes_per_token(self, family: str) -> float:
        """The ratio in force. On the path of every request: one look into a dictionary."""
        return self._bytes_per_token.get(family, DEFAULT_BYTES_PER_TOKEN)

    def tokens(self, family: str, body_bytes: int) -> int:
        """Prompt tokens that a body of this length is taken to hold."""
        # What is a whole number up to the last bits of a division is that number.
        return int(body_bytes / self._bytes_per_token.get(family, DEFAULT_BYTES_PER_TOKEN) + _NOISE)

    def answer_tokens(self, family: str, bound: int | None) -> int:
        """How long an answer will probably be: what stays free for it in a KV cache while it is written.

        The larger of the mean length and the mean share of what is expected, so that short answers do not make long
        ones look short, and never more than the bound. Before anything is measured, what is expected of a request
        without a bound.

        Args:
            family: of the model.
            bound: the most tokens of output; None: as many as it likes.
        """
        known = self._estimates.get(family)
        if known is None or known.answer_tokens is None or known.answer_share is None:
            likely = DEFAULT_EXPECTED_TOKENS
        else:
            expected = DEFAULT_EXPECTED_TOKENS if bound is None else bound
            likely = math.ceil(max(known.answer_tokens, known.answer_share * expected) - _NOISE)
        return likely if bound is None else min(likely, bound)

    def estimates(self) -> Mapping[str, Estimate]:
        """Every family that was measured; a copy."""
        return self._estimates.copy()

    def estimate(self, family: str) -> Estimate | None:
        """What was measured of one family; None: nothing yet."""
        return self._estimates.get(family)

    def finished(self, worker_id: str, family: str, body_bytes: int, expected_tokens: int) -> None:
        """A request that this process sent to a worker has its answer.

        Args:
            worker_id: who served it. One that does not report what it has finished is passed over.
            family: of the model that served it; "" where that is not known.
            body_bytes: length of its body.
            expected_tokens: of its answer, before that was known: its bound, where it had one.
        """
        window = self._windows.get(worker_id)
        if window is None:
            return
        window.requests += 1
        window.body_bytes += body_bytes
        window.expected_tokens += expected_tokens
        if window.family != family:
            window.family = family if window.family is None else ""

    def reported(
        self, worker_id: str, incarnation: str, requests: int, prompt_tokens: int, answer_tokens: int | None = None
    ) -> None:
        """A worker has said how many requests it has finished since its start, and their tokens.

        Args:
            worker_id: of the worker.
            incarnation: of its process; another one counts from zero.
            requests: finished since then.
            prompt_tokens: of those.
            answer_tokens: what was generated for those; None where it does not say.
        """
        now = (requests, prompt_tokens, answer_tokens)
        window = self._windows.get(worker_id)
        if window is None or window.incarnation != incarnation:
            self._windows[worker_id] = _Window(incarnation, now)
            return
        theirs = requests - window.start[0]
        tokens = prompt_tokens - window.start[1]
        ours = window.requests
        if theirs < 0 or tokens < 0:
            self._windows[worker_id] = _Window(incarnation, now)
        elif theirs >= MIN_REQUESTS and ours >= MIN_REQUESTS:
            if window.family and tokens > 0 and ours <= theirs * MOST_OTHERS and theirs <= ours * MOST_OTHERS:
                self._learn(window.family, window.body_bytes / ours, tokens / theirs)
                before = window.start[2]
                if answer_tokens is not None and before is not None and answer_tokens >= before:
                    self._learn_answers(window.family, (answer_tokens - before) / theirs, window.expected_tokens / ours)
            self._windows[worker_id] = _Window(incarnation, now)
        elif max(theirs, ours) >= MIN_REQUESTS * MOST_OTHERS:
            # One side counts and the other does not.
            self._windows[worker_id] = _Window(incarnation, now)

    def forget(self, worker_id: str) -> None:
        """A worker has left the fleet."""
        self._windows.pop(worker_id, None)

    def _learn(self, family: str, body_bytes: float, tokens: float) -> None:
        known = self._estimates.get(family)
        if known is None and len(self._estimates) >= MAX_FAMILIES:
            return
        measured = body_bytes / tokens
        error = abs(measured / self.bytes_per_token(family) - 1)
        sums = self._sums.setdefault(family, _Sums())
        ratio = sums.prompts.add(_within(measured) * tokens, tokens)
        if known is None:
            found = Estimate(ratio, error, 1)
        else:
            found = replace(
                known,
                bytes_per_token=ratio,
                error=known.error + SMOOTHING * (error - known.error),
                windows=known.windows + 1,
            )
        self._estimates[family] = found
        self._bytes_per_token[family] = found.bytes_per_token

    def _learn_answers(self, family: str, length: float, expected: float) -> None:
        known, sums = self._estimates.get(family), self._sums.get(family)
        if known is None or sums is None:
            return
        self._estimates[family] = replace(
            known,
            answer_tokens=sums.answers.add(length, 1.0),
            # Of no bound at all every length would be the whole.
            answer_share=sums.shares.add(min(length, expected), expected) if expected else known.answer_share,
        )


def _within(ratio: float) -> float:
    return min(max(ratio, LEAST_BYTES_PER_TOKEN), MOST_BYTES_PER_TOKEN)
