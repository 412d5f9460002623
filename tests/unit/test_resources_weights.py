import pytest
from hypothesis import given
from hypothesis import strategies as st

from recursant.v1.worker_state_pb2 import WorkerState
from xds_server.weights import (
    DEFAULT_CAPACITY_TOKENS,
    MAX_WEIGHT,
    QUANTUM_TOKENS,
    capacity_tokens,
    endpoint_weight,
    weight_of_capacity,
)


def test_declared_capacity_comes_first() -> None:
    state = WorkerState(capacity_tokens=128_000, kv_blocks_total=10, kv_block_tokens=16)
    assert capacity_tokens(state) == 128_000
    # The annotation's own example: 128,000 tokens are 125 quanta of 1,024.
    assert endpoint_weight(state) == 125


def test_undeclared_the_kv_cache_counts() -> None:
    assert capacity_tokens(WorkerState(kv_blocks_total=4_000, kv_block_tokens=16)) == 64_000


@pytest.mark.parametrize(
    "state",
    [
        WorkerState(),
        WorkerState(kv_blocks_total=4_000),
        WorkerState(kv_block_tokens=16),
        WorkerState(kv_blocks_total=0, kv_block_tokens=16),
        WorkerState(capacity_tokens=0),
    ],
)
def test_knowing_nothing_the_default_counts(state: WorkerState) -> None:
    assert capacity_tokens(state) == DEFAULT_CAPACITY_TOKENS


def test_twice_the_capacity_is_twice_the_weight() -> None:
    assert weight_of_capacity(256_000) == 2 * weight_of_capacity(128_000)


@given(st.integers(min_value=0, max_value=2**63))
def test_weights_are_what_envoy_takes(tokens: int) -> None:
    assert 1 <= weight_of_capacity(tokens) <= MAX_WEIGHT
    # A locality of the largest fleet (limits.workers) stays within Envoy's 32 bits.
    assert MAX_WEIGHT * 100_000 < 2**32


@given(st.integers(min_value=1, max_value=MAX_WEIGHT * QUANTUM_TOKENS))
def test_a_weight_is_off_by_half_a_quantum_at_most(tokens: int) -> None:
    weight = weight_of_capacity(tokens)
    assert abs(weight * QUANTUM_TOKENS - tokens) <= QUANTUM_TOKENS / 2 or weight == 1
