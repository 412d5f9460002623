import numpy as np
import pytest

from recursant.fleet.slots import Slots


def test_each_worker_has_a_count_of_its_own() -> None:
    slots = Slots()
    first, second = slots.claim("w1"), slots.claim("w2")
    assert first != second
    assert slots.claim("w1") == first
    slots.add(first, 2)
    slots.add(first, -1)
    assert slots.counts(np.array([first, second])).tolist() == [1, 0]
    assert (slots.count(first), slots.total()) == (1, 1)
    with pytest.raises(ValueError, match="more often"):
        slots.add(second, -1)


def test_a_number_that_does_not_fit_changes_nothing() -> None:
    slots = Slots()
    slot = slots.claim("w1")
    with pytest.raises((ValueError, OverflowError)):
        slots.add(slot, 1, 10, 10**25)
    assert (slots.count(slot), slots.tokens(slot)) == (0, (0, 0))
    slots.add(slot, 1, 10, 20)
    assert (slots.count(slot), slots.tokens(slot)) == (1, (10, 30))


def test_a_slot_is_taken_until_the_last_request_of_a_worker_that_left_has_ended() -> None:
    slots = Slots()
    slot = slots.claim("w1")
    slots.add(slot, 1)
    slots.leave("w1")
    others = [slots.claim(f"other-{n}") for n in range(40)]
    assert slot not in others
    slots.add(slot, -1)
    assert slots.claim("next") == slot


def test_a_worker_that_comes_back_finds_its_count() -> None:
    slots = Slots()
    slot = slots.claim("w1")
    slots.add(slot, 1)
    slots.leave("w1")
    assert slots.claim("w1") == slot
    assert slots.count(slot) == 1
    slots.add(slot, -1)
    assert slots.claim("w2") != slot


def test_an_idle_workers_slot_is_free_at_once() -> None:
    slots = Slots()
    slot = slots.claim("w1")
    slots.leave("w1")
    assert slots.claim("w2") == slot


def test_the_table_grows() -> None:
    slots = Slots()
    taken = [slots.claim(f"w{n}") for n in range(100)]
    assert len(set(taken)) == 100
    for slot in taken:
        slots.add(slot, 1)
    assert slots.total() == 100
