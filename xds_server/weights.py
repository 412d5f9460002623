"""From a worker's declared token capacity to its EDS weight (SPEC C7)."""

from typing import Final

from recursant.v1.worker_state_pb2 import WorkerState

# One unit of weight. An absolute quantum, not a share of the fleet: a worker that joins, leaves or changes moves
# nobody else's weight, and small changes of capacity move none at all.
QUANTUM_TOKENS: Final = 1_024
# For workers that declare nothing and whose KV cache is unknown: the KV cache of a 7B model on a 24 GB GPU, roughly.
DEFAULT_CAPACITY_TOKENS: Final = 65_536
# Envoy wants the weights of a locality to sum up below 2^32; 100,000 workers (limits.workers) of this weight do.
MAX_WEIGHT: Final = 40_000


def capacity_tokens(state: WorkerState) -> int:
    """The tokens that a worker takes at once: declared, else its KV cache's, else the default."""
    if state.HasField("capacity_tokens") and state.capacity_tokens > 0:
        return state.capacity_tokens
    if state.HasField("kv_blocks_total") and state.HasField("kv_block_tokens"):
        tokens = state.kv_blocks_total * state.kv_block_tokens
        if tokens > 0:
            return tokens
    return DEFAULT_CAPACITY_TOKENS


def weight_of_capacity(tokens: int) -> int:
    """Capacity in quanta, rounded to the nearest, from 1 (Envoy refuses 0) to `MAX_WEIGHT`."""
    return min(MAX_WEIGHT, max(1, (tokens + QUANTUM_TOKENS // 2) // QUANTUM_TOKENS))


def endpoint_weight(state: WorkerState) -> int:
    """The `load_balancing_weight` of a worker's endpoint."""
    return weight_of_capacity(capacity_tokens(state))
