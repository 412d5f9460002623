"""How good each candidate is (SPEC C2, DESIGN §9).

Profile `classic`: 0.6 x speed + 0.4 x room in the queue, the weights configurable. It counts requests, so a prompt of
8,000 tokens weighs as much as one of 80. Profile `adaptive` compares the work that is ahead of the first token.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from recursant.config.model import ScoreWeights
from recursant.fleet.facts import Fact, Facts

# Of the profile `adaptive`, in prompt tokens; found with the fleet simulation (docs/simulation.md).
WORK_OF_A_REQUEST: Final = 100.0
WORK_OF_A_HELD_TOKEN: Final = 0.02
# What every first token takes: the step by itself. It keeps a slow idle worker behind a fast one that is nearly idle.
LEAST_WORK: Final = 128.0


def load_of(facts: Facts) -> Facts:
    """Requests at each candidate, counting the picks that its last report cannot have seen.

    The report, plus what we sent and minus what ended since that report; and never less than what we have there
    ourselves. After a restart of ours our own count is too small, and the report fills in.
    """
    in_flight = facts[Fact.IN_FLIGHT]
    since_report = in_flight - facts[Fact.IN_FLIGHT_AT_BEAT]
    load: Facts = np.maximum(in_flight, facts[Fact.REPORTED] + since_report)
    return load


def load_of_one(facts: Sequence[float]) -> float:
    """`load_of` one worker, over its facts as plain numbers."""
    in_flight = facts[Fact.IN_FLIGHT]
    return max(in_flight, facts[Fact.REPORTED] + (in_flight - facts[Fact.IN_FLIGHT_AT_BEAT]))


def speed_term(facts: Facts, load: Facts) -> Facts:
    """Token rate that each candidate could give this request, over the best one's: 0..1.

    The rate is the worker's peak shared by its requests and this one. Dividing each by the request's expected
    tokens, as the formula of the spec has it, cancels in the normalisation. A worker of unknown peak counts as the
    mean of the known ones.
    """
    return _over_best(_rate(peaks(facts), load))


def queue_term(facts: Facts, load: Facts) -> Facts:
    """Room that is left in each candidate's queue: 1 when empty, 0 when full or beyond."""
    term: Facts = _queue(facts, load, np.fmax)
    return term


def score(facts: Facts, load: Facts, weights: ScoreWeights, prompt_tokens: int = 0, *, urgent: bool = False) -> Facts:
    """The score of each candidate, larger = better, by the profile in force.

    Args:
        facts: of the candidates.
        load: their requests.
        weights: with the profile.
        prompt_tokens: of the request.
        urgent: it rather goes to the express lane.
    """
    first, second = terms(facts, peaks(facts), load, weights, np.fmax, urgent=urgent)
    return combined(first, second, weights, prompt_tokens)


def terms(
    facts: Any, peak: Any, load: Any, weights: ScoreWeights, larger: Callable[[Any, Any], Any], *, urgent: bool
) -> tuple[Any, Any]:
    """What of a score depends on the candidate alone: two numbers of each, for `combined`.

    Over columns of candidates, with `np.fmax` for `larger`; or over one worker's facts as plain numbers, with `max`.
    Of an unknown number and another one both give the other, where it comes first.
    """
    if weights.profile == "adaptive":
        work = _work(facts, load, larger)
        return (work + facts[Fact.EXPRESS_WORK] if urgent else work), peak
    return _rate(peak, load), weights.queue * _queue(facts, load, larger)


def combined(first: Facts, second: Facts, weights: ScoreWeights, prompt_tokens: int) -> Facts:
    """The scores, from the `terms` of all candidates."""
    if depends_on_prompt(weights):
        work = _over_fastest(prompt_tokens + first, second)
        least: Facts = np.minimum.reduce(work) / work
        return least
    total: Facts = weights.token_rate * _over_best(first) + second
    return total


def depends_on_prompt(weights: ScoreWeights) -> bool:
    """Does `combined` look at the length of the prompt?"""
    return weights.profile == "adaptive"


def combined_of_one(first: float, second: float, best: float, weights: ScoreWeights) -> float:
    """`combined` of one candidate, where it does not depend on the prompt; `best` is the largest first term of all."""
    return weights.token_rate * (first / best if best > 0 else 0.0) + second


def cost_of_few(
    facts: Sequence[Sequence[float]], weights: ScoreWeights, prompt_tokens: int, bonuses: Sequence[float]
) -> list[float]:
    """How far each of a few workers is from the best, in the unit of the profile, less a bonus of each.

    Over their facts as plain numbers: for so few they are faster than columns. The express lane has no part in it: a
    session that moved with the lane would lose its cache at every turn.
    """
    loads = [load_of_one(each) for each in facts]
    known = [each[Fact.PEAK_RATE] for each in facts if each[Fact.PEAK_RATE] == each[Fact.PEAK_RATE]]
    mean = sum(known) / len(known) if known else 1.0
    rates = [each[Fact.PEAK_RATE] if each[Fact.PEAK_RATE] == each[Fact.PEAK_RATE] else mean for each in facts]
    found = [
        terms(each, rate, load, weights, max, urgent=False)
        for each, rate, load in zip(facts, rates, loads, strict=True)
    ]
    if weights.profile == "adaptive":
        fastest = max(rates)
        return [
            (prompt_tokens - bonus + work) * (fastest / rate)
            for (work, rate), bonus in zip(found, bonuses, strict=True)
        ]
    best = max(rate for rate, _ in found)
    speed = weights.token_rate / best if best > 0 else 0.0
    return [-(speed * rate + room) - bonus for (rate, room), bonus in zip(found, bonuses, strict=True)]


def peaks(facts: Facts) -> Facts:
    """The peak rate of each candidate; of unknown ones the mean of the known."""
    peak = facts[Fact.PEAK_RATE]
    unknown = np.isnan(peak)
    if np.count_nonzero(unknown):
        known = peak[~unknown]
        peak = np.where(unknown, known.mean() if known.size else 1.0, peak)
    found: Facts = peak
    return found


def _rate(peak: Any, load: Any) -> Any:
    return peak / (load + 1.0)


def _queue(facts: Any, load: Any, larger: Callable[[Any, Any], Any]) -> Any:
    return larger(0.0, 1.0 - load / facts[Fact.MAX_QUEUE])


def _work(facts: Any, load: Any, larger: Callable[[Any, Any], Any]) -> Any:
    """What is before a request's own prompt at each candidate, in prompt tokens.

    Prompts that wait there, are being read, or were sent since the last beat; a little for every request there, as
    each has its part of every step; and a little for what the cache holds, which every step reads.
    """
    sent = facts[Fact.PROMPT_TOKENS_SENT] - facts[Fact.CACHED_TOKENS_SENT]
    # What we know ourselves to be unread, where that is more: not every report tells of a prompt that is being read.
    ahead = larger(facts[Fact.WAITING_TOKENS] + sent, facts[Fact.UNREAD_WORK])
    held = larger(0.0, facts[Fact.KV_HELD_TOKENS])
    return LEAST_WORK + ahead + WORK_OF_A_REQUEST * load + WORK_OF_A_HELD_TOKEN * held


def _over_best(rate: Facts) -> Facts:
    # The plain reduction: the method of the array goes through Python.
    best = np.maximum.reduce(rate)
    if best <= 0:
        return np.zeros_like(rate)
    term: Facts = rate / best
    return term


def _over_fastest(work: Facts, peak: Facts) -> Facts:
    slowness: Facts = np.maximum.reduce(peak) / peak
    total: Facts = work * slowness
    return total
