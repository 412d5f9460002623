"""The KV cache: no block is lost, none is held twice, the prefix cache forgets the oldest first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recursant.sim.blocks import BlockPool


def test_taking_and_giving_back_private_blocks() -> None:
    pool = BlockPool(10)
    pool.take(4)
    assert (pool.free, pool.private) == (6, 4)
    pool.release([], 4)
    assert (pool.free, pool.private) == (10, 0)


def test_more_than_is_free_cannot_be_taken() -> None:
    pool = BlockPool(3)
    pool.take(2)
    with pytest.raises(ValueError, match="2 blocks wanted, 1 free"):
        pool.take(2)
    assert pool.free == 1


def test_a_released_hashed_block_is_free_and_still_found() -> None:
    pool = BlockPool(4)
    pool.take(2)
    assert pool.share([101])
    pool.release([101], 1)
    assert pool.free == 4
    assert pool.matching([101, 102], 2) == (1, 1)


def test_a_held_block_is_found_but_not_free() -> None:
    pool = BlockPool(4)
    pool.take(1)
    pool.share([101])
    assert pool.matching([101], 1) == (1, 0)
    pool.hold([101])
    pool.release([101], 0)
    assert pool.free == 3  # the first holder still has it
    pool.release([101], 0)
    assert pool.free == 4


def test_a_hash_belongs_to_one_block() -> None:
    pool = BlockPool(4)
    pool.take(2)
    assert pool.share([101]) == [101]
    assert pool.share([101]) == []
    assert pool.private == 1


def test_a_prefix_ends_at_the_first_unknown_block() -> None:
    pool = BlockPool(4)
    pool.take(2)
    pool.share([1])
    pool.share([3])
    assert pool.matching([1, 2, 3], 3) == (1, 0)
    assert pool.matching([1, 3], 1) == (1, 0)


def test_the_block_unused_for_longest_is_evicted_first_and_ends_go_before_beginnings() -> None:
    pool = BlockPool(4)
    pool.take(2)
    for key in (1, 2):
        pool.share([key])
    pool.release([1, 2], 0)  # idle: 2 before 1
    pool.take(2)
    for key in (3, 4):
        pool.share([key])
    pool.release([3, 4], 0)  # then 4 before 3
    pool.take(1)
    assert pool.matching([2], 1) == (0, 0)
    assert pool.matching([1], 1) == (1, 1)
    pool.take(2)
    assert pool.matching([1], 1) == (0, 0)
    assert pool.matching([4], 1) == (0, 0)
    assert pool.matching([3], 1) == (1, 1)


def test_forgetting_keeps_what_is_held() -> None:
    pool = BlockPool(4)
    pool.take(2)
    pool.share([1])
    pool.share([2])
    pool.release([2], 0)
    pool.forget()
    assert pool.matching([2], 1) == (0, 0)
    assert pool.matching([1], 1) == (1, 0)
    assert pool.free == 3


@given(st.data())
def test_every_block_is_empty_private_shared_or_idle(data: st.DataObject) -> None:
    pool = BlockPool(data.draw(st.integers(1, 12)))
    holders: list[tuple[list[int], int]] = []
    for _ in range(data.draw(st.integers(0, 30))):
        if holders and data.draw(st.booleans()):
            pool.release(*holders.pop(data.draw(st.integers(0, len(holders) - 1))))
        else:
            keys = data.draw(st.lists(st.integers(1, 8), unique=True, max_size=4))
            found, idle = pool.matching(keys, len(keys))
            new = data.draw(st.integers(0, 4))
            if new > pool.free - idle:
                continue
            pool.hold(keys[:found])
            pool.take(new)
            shared, private = keys[:found], new
            fresh = pool.share(keys[found : found + new])
            shared += fresh
            private -= len(fresh)
            holders.append((shared, private))
        held = {key for shared, _ in holders for key in shared}
        assert pool.private == sum(private for _, private in holders)
        assert pool.total - pool.free == pool.private + len(held)
        assert 0 <= pool.free <= pool.total
    for shared, private in holders:
        pool.release(shared, private)
    assert pool.free == pool.total
