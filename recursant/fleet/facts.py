"""The columns of the fleet table, and what is read from a report into them."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from recursant.v1.worker_state_pb2 import WorkerState

Facts = NDArray[np.float64]
Rows = NDArray[np.intp]

# vLLM's own default for max_num_seqs, for workers that declare neither max_queue nor max_num_seqs.
DEFAULT_MAX_NUM_SEQS: Final = 256.0
# vLLM's own default for max_num_batched_tokens.
DEFAULT_STEP_TOKENS: Final = 2_048.0
# Weight of the newest token rate in a busy worker's learnt peak: about the last ten beats count.
PEAK_RATE_SMOOTHING: Final = 0.1
# Tokens per second that a worker is believed.
SLOWEST_RATE: Final = 0.001
FASTEST_RATE: Final = 1e7
UNKNOWN: Final = math.nan


class Fact:
    """The columns. NaN stands for "the worker cannot know".

    Plain numbers: with those of an enumeration, each look takes four times as long.
    """

    # Running and waiting requests, as last reported.
    REPORTED: Final = 0
    # Requests that the processes of this host have in flight there.
    IN_FLIGHT: Final = 1
    # IN_FLIGHT at the moment of the last beat: what came and went since is not in the worker's report yet.
    IN_FLIGHT_AT_BEAT: Final = 2
    # Requests that it runs at once, unknown where not declared; and the longest queue that it wants.
    SLOTS: Final = 3
    MAX_QUEUE: Final = 4
    # Generated tokens per second when busy: declared, or learnt.
    PEAK_RATE: Final = 5
    WAITING_TOKENS: Final = 6
    QUEUE_WAIT_MS: Final = 7
    FREE_VRAM_MB: Final = 8
    BANDWIDTH_HEADROOM_MB_S: Final = 9
    # Tokens that its KV cache takes below the water-mark, what its requests will still write taken off.
    KV_ROOM_TOKENS: Final = 10
    # Up to how many requests each priority class may fill it: PLACES_LOW + class.
    PLACES_LOW: Final = 11
    PLACES_NORMAL: Final = 12
    PLACES_HIGH: Final = 13
    PLACES_CRITICAL: Final = 14
    # For all classes together, while the worker is on trial after an isolation.
    TRIAL_PLACES: Final = 15
    # Tokens of what other processes of this host had in flight there at the moment of the last beat.
    TOKENS_ELSEWHERE_AT_BEAT: Final = 16
    # Prompt tokens that this process sent there since the last beat; and tokens that its KV cache holds: as of the
    # last beat, and what we sent there since.
    PROMPT_TOKENS_SENT: Final = 17
    KV_HELD_TOKENS: Final = 18
    # Of PROMPT_TOKENS_SENT, what the worker is believed to have cached.
    CACHED_TOKENS_SENT: Final = 19
    # Work of the prompts that this process sent there and that are not answered yet (recursant.fleet.prompts).
    UNREAD_WORK: Final = 20
    # The express lane (recursant.routing.express). Tokens of a step of its engine; below how many unread tokens it
    # takes a long prompt of a low class, unknown for any; what an urgent request finds there beyond what is known, in
    # prompt tokens; KV tokens that low classes leave free.
    STEP_TOKENS: Final = 21
    LONG_PROMPT_LIMIT: Final = 22
    EXPRESS_WORK: Final = 23
    KV_KEPT_FREE: Final = 24

    COUNT: Final = 25


def read_report(column: Facts, state: WorkerState, *, afresh: bool) -> None:
    """Take what a report says by itself into the column of its worker.

    Args:
        column: of `Fact.COUNT` numbers.
        state: the report.
        afresh: the worker is another one than before: what was learnt of that one counts no more.
    """
    column[Fact.REPORTED] = state.running_requests + state.waiting_requests
    column[Fact.SLOTS] = float(state.max_num_seqs) if state.max_num_seqs else UNKNOWN
    column[Fact.MAX_QUEUE] = float(state.max_queue) or float(state.max_num_seqs) or DEFAULT_MAX_NUM_SEQS
    column[Fact.PEAK_RATE] = peak_rate(state, UNKNOWN if afresh else float(column[Fact.PEAK_RATE]))
    column[Fact.STEP_TOKENS] = state.max_num_batched_tokens or DEFAULT_STEP_TOKENS
    column[Fact.WAITING_TOKENS] = state.waiting_tokens
    column[Fact.QUEUE_WAIT_MS] = state.queue_wait_ms
    column[Fact.FREE_VRAM_MB] = state.free_vram_mb if state.HasField("free_vram_mb") else UNKNOWN
    if state.HasField("bandwidth_total_mb_s") and state.HasField("bandwidth_used_mb_s"):
        column[Fact.BANDWIDTH_HEADROOM_MB_S] = state.bandwidth_total_mb_s - state.bandwidth_used_mb_s
    else:
        column[Fact.BANDWIDTH_HEADROOM_MB_S] = UNKNOWN


def peak_rate(state: WorkerState, learnt: float) -> float:
    """Tokens per second that the worker reaches when busy (DESIGN §9): declared, or learnt while it is busy."""
    if state.HasField("peak_token_rate") and state.peak_token_rate > 0:
        return _sane(state.peak_token_rate)
    if state.running_requests == 0 or not state.HasField("token_rate") or state.token_rate <= 0:
        return learnt
    if math.isnan(learnt) or state.token_rate > learnt:
        return _sane(state.token_rate)
    return learnt + PEAK_RATE_SMOOTHING * (state.token_rate - learnt)


def _sane(rate: float) -> float:
    """A rate that arithmetic can be done with: what lies beyond is a mistake of the worker's, not a fact."""
    return min(max(rate, SLOWEST_RATE), FASTEST_RATE)
