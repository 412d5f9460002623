"""The memory pre-check (SPEC E2): how much a worker's KV cache can take and keep its head above water.

In tokens: the cache holds `kv_blocks_total x kv_block_tokens` of them. What is used comes with each beat; what was sent
since that beat is taken off by our own estimates, so that a burst is seen at once.
"""

import math
from typing import Final

from recursant.v1.worker_state_pb2 import WorkerState

# Fewer tokens of output than this are no answer: then the request is refused, whatever its policy says of shaping.
LEAST_SHAPED_TOKENS: Final = 16


def shaped_output(room: float, prompt_tokens: int) -> int | None:
    """The bound on the output that makes a request fit into `room` KV tokens; None where no answer would fit."""
    left = math.floor(room) - prompt_tokens
    return left if left >= LEAST_SHAPED_TOKENS else None


def kv_tokens(state: WorkerState) -> int:
    """How many tokens a worker's KV cache holds; 0 where it does not say."""
    return state.kv_blocks_total * state.kv_block_tokens


def room_tokens(state: WorkerState, water_mark: float) -> float:
    """KV tokens that a worker can still take below the water-mark; NaN where it does not report its cache.

    Below zero where it is past the mark already.

    Args:
        state: the worker's report.
        water_mark: the share of its cache that requests may take, 0 to 1.
    """
    total = kv_tokens(state)
    if total == 0 or not state.HasField("kv_cache_usage"):
        return math.nan
    # What waits in the engine holds nothing yet, and will.
    return (water_mark - state.kv_cache_usage) * total - state.waiting_tokens


def held_tokens(state: WorkerState) -> float:
    """KV tokens that a worker's cache holds; NaN where it does not report its cache."""
    total = kv_tokens(state)
    return state.kv_cache_usage * total if total and state.HasField("kv_cache_usage") else math.nan
