"""Which candidates may serve a request (SPEC C1).

A filter gives a boolean mask over the candidates, True where the worker stays, or None where all of them do. Unknown
facts are NaN, and a comparison with NaN is False, so every filter asks "is it too little?" and keeps the rest: a fact
that a worker cannot report never removes it (DESIGN §9).

That a worker is ready, serves the family and is not exclusive to others is settled before, in
`FleetTable.candidates`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from recursant.fleet.table import Fact, Facts
from recursant.routing.need import Need

Mask = NDArray[np.bool_]

# The expected wait may use this share of the latency target; the rest is for prefill and the first token.
WAIT_SHARE_OF_SLA: Final = 0.7


@dataclass(frozen=True, slots=True)
class Filter:
    """A named filter: `keep(facts, max_model_len, load, need)`."""

    name: str
    keep: Callable[[Facts, Facts, Facts, Need], Mask | None]


def _vram(facts: Facts, _lengths: Facts, _load: Facts, need: Need) -> Mask | None:
    if need.min_vram_mb == 0:
        return None
    return _but(facts[Fact.FREE_VRAM_MB] < need.min_vram_mb)


def _bandwidth(facts: Facts, _lengths: Facts, _load: Facts, need: Need) -> Mask | None:
    if need.min_bandwidth_mb_s == 0:
        return None
    return _but(facts[Fact.BANDWIDTH_HEADROOM_MB_S] < need.min_bandwidth_mb_s)


def _context(_facts: Facts, lengths: Facts, _load: Facts, need: Need) -> Mask | None:
    tokens = need.context_tokens
    return _but(lengths < tokens) if tokens else None


def _memory(facts: Facts, _lengths: Facts, load: Facts, need: Need) -> Mask | None:
    # The water-mark protects the requests that run (SPEC E2). A worker with nothing to protect takes anything that
    # it can hold at all, and whether it can is the engine's word: our length is an estimate.
    short = facts[Fact.KV_ROOM_TOKENS] < need.kv_tokens
    return _but(short & (load > 0)) if np.count_nonzero(short) else None


def _slots(facts: Facts, _lengths: Facts, load: Facts, need: Need) -> Mask | None:
    full = load >= facts[Fact.TRIAL_PLACES]
    if need.count_as is not None:
        full |= load >= facts[Fact.PLACES_LOW + need.count_as]
    return _but(full)


def _wait(facts: Facts, _lengths: Facts, load: Facts, need: Need) -> Mask | None:
    if need.latency_sla_ms is None:
        return None
    wait = expected_wait_ms(facts, load, need.expected_tokens)
    return _but(wait > WAIT_SHARE_OF_SLA * need.latency_sla_ms)


def _but(removed: Mask) -> Mask | None:
    """The mask that keeps everybody but these."""
    # Counting is several times as fast as `any`, and most requests end here.
    return ~removed if np.count_nonzero(removed) else None


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


VRAM: Final = Filter("vram", _vram)
BANDWIDTH: Final = Filter("bandwidth", _bandwidth)
CONTEXT: Final = Filter("context", _context)
MEMORY: Final = Filter("memory", _memory)
SLOTS: Final = Filter("slots", _slots)
WAIT: Final = Filter("wait", _wait)

# In the order of evaluation. A worker that a hard filter removes is never used. The last two pass with time:
# whoever may wait, waits for them.
HARD_FILTERS: Final = (VRAM, BANDWIDTH, CONTEXT, MEMORY, SLOTS)
# Removes a worker only while another one stays.
SOFT_FILTER: Final = WAIT
