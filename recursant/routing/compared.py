"""The two numbers that each filter compares, for those who want to see them: a filter gives nothing but its mask.

A property test holds numbers and masks together (tests/unit/test_explain.py).
"""

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import numpy as np

from recursant.fleet.facts import Fact, Facts
from recursant.routing.filters import (
    BANDWIDTH,
    CONTEXT,
    EXPRESS,
    MEMORY,
    SLOTS,
    VRAM,
    WAIT,
    WAIT_SHARE_OF_SLA,
    expected_wait_ms,
    lane_binds,
    unread_tokens,
)
from recursant.routing.need import Express, Need


class Bound(StrEnum):
    """How a worker's number must stand to the request's."""

    AT_LEAST = ">="
    BELOW = "<"
    AT_MOST = "<="


# None where the request asks for nothing of the kind.
Figures = Callable[[Facts, Facts, Facts, Need], tuple[Facts, Facts | float] | None]


def _vram(facts: Facts, _lengths: Facts, _load: Facts, need: Need) -> tuple[Facts, float] | None:
    return (facts[Fact.FREE_VRAM_MB], need.min_vram_mb) if need.min_vram_mb else None


def _bandwidth(facts: Facts, _lengths: Facts, _load: Facts, need: Need) -> tuple[Facts, float] | None:
    return (facts[Fact.BANDWIDTH_HEADROOM_MB_S], need.min_bandwidth_mb_s) if need.min_bandwidth_mb_s else None


def _context(_facts: Facts, lengths: Facts, _load: Facts, need: Need) -> tuple[Facts, float] | None:
    return (lengths, need.context_tokens) if need.context_tokens else None


def _memory(facts: Facts, _lengths: Facts, _load: Facts, need: Need) -> tuple[Facts, float]:
    room = facts[Fact.KV_ROOM_TOKENS]
    return (room - facts[Fact.KV_KEPT_FREE] if need.express == Express.KEEPS_OFF else room), need.kv_tokens


def _slots(facts: Facts, _lengths: Facts, load: Facts, need: Need) -> tuple[Facts, Facts]:
    trial = facts[Fact.TRIAL_PLACES]
    return load, trial if need.count_as is None else np.fmin(trial, facts[Fact.PLACES_LOW + need.count_as])


def _express(facts: Facts, lengths: Facts, load: Facts, need: Need) -> tuple[Facts, Facts] | None:
    if not EXPRESS.asks(need) or not lane_binds(facts, lengths, load, need):
        return None
    long = need.prompt_tokens > facts[Fact.STEP_TOKENS]
    return unread_tokens(facts, np.fmax), np.where(long, facts[Fact.LONG_PROMPT_LIMIT], math.nan)


def _wait(facts: Facts, _lengths: Facts, load: Facts, need: Need) -> tuple[Facts, float] | None:
    if need.latency_sla_ms is None:
        return None
    return expected_wait_ms(facts, load, need.expected_tokens), WAIT_SHARE_OF_SLA * need.latency_sla_ms


COMPARED: Final[Mapping[str, tuple[Bound, Figures]]] = {
    VRAM.name: (Bound.AT_LEAST, _vram),
    BANDWIDTH.name: (Bound.AT_LEAST, _bandwidth),
    CONTEXT.name: (Bound.AT_LEAST, _context),
    MEMORY.name: (Bound.AT_LEAST, _memory),
    SLOTS.name: (Bound.BELOW, _slots),
    EXPRESS.name: (Bound.BELOW, _express),
    WAIT.name: (Bound.AT_MOST, _wait),
}
