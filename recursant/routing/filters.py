"""Which candidates may serve a request (SPEC C1).

A filter gives a boolean mask over the candidates, True where the worker stays, or None where all of them do; and the
same answer for one worker alone, for a ranking that is kept (recursant.routing.ranking). Unknown
facts are NaN, and a comparison with NaN is False, so every filter asks "is it too little?" and keeps the rest: a fact
that a worker cannot report never removes it (DESIGN §9).

That a worker is ready, serves the family and is not exclusive to others is settled before, in
`FleetTable.candidates`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from recursant.fleet.facts import Fact, Facts
from recursant.routing.need import Express, Need

Mask = NDArray[np.bool_]

# The expected wait may use this share of the latency target; the rest is for prefill and the first token.
WAIT_SHARE_OF_SLA: Final = 0.7


@dataclass(frozen=True, slots=True)
class Filter:
    """A named filter.

    Attributes:
        name: as refusals and explanations show it.
        asks: does this need set a limit here? Where it does not, nobody is removed.
        removes: whom the limit removes: `removes(facts, max_model_len, load, need)`, over columns of candidates.
        removes_one: the same of one worker, over its facts as plain numbers; it may remove more where others count.
    """

    name: str
    asks: Callable[[Need], bool]
    removes: Callable[[Facts, Facts, Facts, Need], Mask]
    removes_one: Callable[[Sequence[float], float, float, Need], bool]

    def keep(self, facts: Facts, lengths: Facts, load: Facts, need: Need) -> Mask | None:
        """The mask of whoever stays; None: all of them."""
        if not self.asks(need):
            return None
        removed = self.removes(facts, lengths, load, need)
        # Counting is several times as fast as `any`, and most requests end here.
        return ~removed if np.count_nonzero(removed) else None


# These compare one worker's numbers as they do columns: `&` and `|` serve truth values and masks alike.


def _vram(facts: Any, _length: Any, _load: Any, need: Need) -> Any:
    return facts[Fact.FREE_VRAM_MB] < need.min_vram_mb


def _bandwidth(facts: Any, _length: Any, _load: Any, need: Need) -> Any:
    return facts[Fact.BANDWIDTH_HEADROOM_MB_S] < need.min_bandwidth_mb_s


def _context(_facts: Any, length: Any, _load: Any, need: Need) -> Any:
    return length < need.context_tokens


def _memory(facts: Any, _length: Any, load: Any, need: Need) -> Any:
    # The water-mark protects the requests that run (SPEC E2). A worker with nothing to protect takes anything that
    # it can hold at all, and whether it can is the engine's word: our length is an estimate.
    room = facts[Fact.KV_ROOM_TOKENS]
    if need.express == Express.KEEPS_OFF:
        room = room - facts[Fact.KV_KEPT_FREE]
    return (room < need.kv_tokens) & (load > 0)


def unread_tokens(facts: Any, larger: Callable[[Any, Any], Any]) -> Any:
    """Prompt tokens that a worker has still to read, as far as is known: over columns, or one worker's numbers."""
    return larger(facts[Fact.WAITING_TOKENS] + facts[Fact.PROMPT_TOKENS_SENT], facts[Fact.UNREAD_WORK])


def lane_binds(facts: Facts, lengths: Facts, load: Facts, need: Need) -> bool:
    """Does the express lane leave anybody for this request?

    Where whoever could ever take it is apart, it would wait for nothing but the clock: for it there is no lane.
    """
    never = (need.prompt_tokens > facts[Fact.STEP_TOKENS]) & (facts[Fact.LONG_PROMPT_LIMIT] <= 0)
    for unfit in (_vram, _bandwidth, _context):
        never = never | unfit(facts, lengths, load, need)
    return bool(np.count_nonzero(never) < never.size)


def _express(facts: Facts, lengths: Facts, load: Facts, need: Need) -> Mask:
    long = need.prompt_tokens > facts[Fact.STEP_TOKENS]
    found: Mask = long & (unread_tokens(facts, np.fmax) >= facts[Fact.LONG_PROMPT_LIMIT])
    return found if lane_binds(facts, lengths, load, need) else np.zeros_like(found)


def _express_of_one(facts: Sequence[float], _length: float, _load: float, need: Need) -> bool:
    limit = facts[Fact.LONG_PROMPT_LIMIT]
    # Mostly there is none.
    return limit == limit and need.prompt_tokens > facts[Fact.STEP_TOKENS] and unread_tokens(facts, max) >= limit


def _keeps_off(need: Need) -> bool:
    return need.express == Express.KEEPS_OFF and need.prompt_tokens > 0


def _slots(facts: Any, _length: Any, load: Any, need: Need) -> Any:
    full = load >= facts[Fact.TRIAL_PLACES]
    if need.count_as is not None:
        full = full | (load >= facts[Fact.PLACES_LOW + need.count_as])
    return full


def _wait(facts: Facts, _lengths: Facts, load: Facts, need: Need) -> Mask:
    late: Mask = expected_wait_ms(facts, load, need.expected_tokens) > _longest_wait_ms(need)
    return late


def _wait_of_one(facts: Sequence[float], _length: float, load: float, need: Need) -> bool:
    return expected_wait_of_one_ms(facts, load, need.expected_tokens) > _longest_wait_ms(need)


def _longest_wait_ms(need: Need) -> float:
    return WAIT_SHARE_OF_SLA * (need.latency_sla_ms or 0)


def expected_wait_ms(facts: Facts, load: Facts, expected_tokens: int) -> Facts:
    """How long a new request would wait at each candidate before it runs, in ms.

    Queue tokens / token rate, or the reported mean wait if that is larger (DESIGN §9). Queue tokens are the reported
    ones, or what the requests beyond the worker's slots will generate, for picks that no report has seen yet. An
    unknown rate makes the first part unknown. Where nothing runs, nothing waits, whatever the mean of the past says.
    """
    beyond = np.fmax(load - facts[Fact.SLOTS], 0.0) * expected_tokens
    queued = np.maximum(facts[Fact.WAITING_TOKENS], beyond)
    computed: Facts = queued * 1_000.0 / facts[Fact.PEAK_RATE]
    wait: Facts = np.where(load > 0, np.fmax(computed, facts[Fact.QUEUE_WAIT_MS]), 0.0)
    return wait


def expected_wait_of_one_ms(facts: Sequence[float], load: float, expected_tokens: int) -> float:
    """`expected_wait_ms` of one worker, over its facts as plain numbers."""
    if load <= 0:
        return 0.0
    # The larger of two with an unknown one is the known one: `max` keeps its first argument where it cannot compare.
    beyond = max(0.0, load - facts[Fact.SLOTS]) * expected_tokens
    queued = max(facts[Fact.WAITING_TOKENS], beyond)
    return max(facts[Fact.QUEUE_WAIT_MS], queued * 1_000.0 / facts[Fact.PEAK_RATE])


VRAM: Final = Filter("vram", lambda need: need.min_vram_mb > 0, _vram, _vram)
BANDWIDTH: Final = Filter("bandwidth", lambda need: need.min_bandwidth_mb_s > 0, _bandwidth, _bandwidth)
CONTEXT: Final = Filter("context", lambda need: need.context_tokens > 0, _context, _context)
MEMORY: Final = Filter("memory", lambda _: True, _memory, _memory)
SLOTS: Final = Filter("slots", lambda _: True, _slots, _slots)
EXPRESS: Final = Filter("express", _keeps_off, _express, _express_of_one)
WAIT: Final = Filter("wait", lambda need: need.latency_sla_ms is not None, _wait, _wait_of_one)


def too_little_for_this_one(facts: Sequence[float], length: float, load: float, need: Need) -> bool:
    """Does CONTEXT, MEMORY, EXPRESS or WAIT remove this worker: what compares the lengths of the request itself?"""
    if length < need.context_tokens or _memory(facts, length, load, need):
        return True
    if need.express == Express.KEEPS_OFF and _express_of_one(facts, length, load, need):
        return True
    return need.latency_sla_ms is not None and _wait_of_one(facts, length, load, need)


# In the order of evaluation. A worker that a hard filter removes is never used. The last three pass with
# time: whoever may wait, waits for them.
HARD_FILTERS: Final = (VRAM, BANDWIDTH, CONTEXT, MEMORY, SLOTS, EXPRESS)
# Removes a worker only while another one stays.
SOFT_FILTER: Final = WAIT
