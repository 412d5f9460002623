"""How good each candidate is (SPEC C2, DESIGN §9): 0.6 x speed + 0.4 x room in the queue, the weights configurable."""

import numpy as np

from recursant.config.model import ScoreWeights
from recursant.fleet.table import Fact, Facts


def load_of(facts: Facts) -> Facts:
    """Requests at each candidate, counting the picks that its last report cannot have seen.

    The report, plus what we sent and minus what ended since that report; and never less than what we have there
    ourselves. After a restart of ours our own count is too small, and the report fills in.
    """
    in_flight = facts[Fact.IN_FLIGHT]
    since_report = in_flight - facts[Fact.IN_FLIGHT_AT_BEAT]
    load: Facts = np.maximum(in_flight, facts[Fact.REPORTED] + since_report)
    return load


def speed_term(facts: Facts, load: Facts) -> Facts:
    """Token rate that each candidate could give this request, over the best one's: 0..1.

    The rate is the worker's peak shared by its requests and this one. Dividing each by the request's expected
    tokens, as the formula of the spec has it, cancels in the normalisation. A worker of unknown peak counts as the
    mean of the known ones.
    """
    peak = facts[Fact.PEAK_RATE]
    unknown = np.isnan(peak)
    if np.count_nonzero(unknown):
        known = peak[~unknown]
        peak = np.where(unknown, known.mean() if known.size else 1.0, peak)
    rate = peak / (load + 1.0)
    # The plain reduction: the method of the array goes through Python.
    best = np.maximum.reduce(rate)
    if best <= 0:
        return np.zeros_like(rate)
    term: Facts = rate / best
    return term


def queue_term(facts: Facts, load: Facts) -> Facts:
    """Room that is left in each candidate's queue: 1 when empty, 0 when full or beyond."""
    term: Facts = np.maximum(1.0 - load / facts[Fact.MAX_QUEUE], 0.0)
    return term


def score(facts: Facts, load: Facts, weights: ScoreWeights) -> Facts:
    """The score of each candidate, larger = better."""
    total: Facts = weights.token_rate * speed_term(facts, load) + weights.queue * queue_term(facts, load)
    return total
