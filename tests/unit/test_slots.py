from pathlib import Path

import numpy as np
import pytest

from recursant.fleet.slots import Slots, SlotsFullError


def rows(*numbers: int) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    return np.array(numbers, dtype=np.intp)


def test_one_process_counts_for_itself() -> None:
    slots = Slots(4)
    first, second = slots.claim("w1"), slots.claim("w2")
    assert first != second
    assert slots.claim("w1") == first
    assert (slots.add(first, 1), slots.add(first, 1), slots.add(first, -1)) == (1, 2, 1)
    assert slots.totals(rows(first, second)).tolist() == [1, 0]
    with pytest.raises(ValueError, match="more often"):
        slots.add(second, -1)


def test_processes_see_each_others_counts(tmp_path: Path) -> None:
    one, two = (Slots(4, processes=2, index=index, path=tmp_path / "slots") for index in range(2))
    slot = one.claim("w1")
    assert two.claim("w1") == slot
    one.add(slot, 3)
    two.add(slot, 2)
    assert one.total(slot) == two.total(slot) == 5
    assert two.totals(rows(slot)).tolist() == [5]
    assert (one.own(slot), two.own_total()) == (3, 2)


def test_a_process_that_died_takes_its_counts_with_it(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    one, two = (Slots(4, processes=2, index=index, path=path) for index in range(2))
    slot = one.claim("w1")
    two.claim("w1")
    one.add(slot, 3)
    two.add(slot, 2)
    again = Slots(4, processes=2, index=0, path=path)
    assert again.total(slot) == two.total(slot) == 2
    assert again.claim("w1") == slot
    two.forget(1)
    assert again.total(slot) == 0


def test_a_slot_is_free_when_nobody_knows_the_worker_and_nothing_is_in_flight(tmp_path: Path) -> None:
    one, two = (Slots(1, processes=2, index=index, path=tmp_path / "slots") for index in range(2))
    slot = one.claim("w1")
    two.claim("w1")
    two.add(slot, 1)
    one.release_claim(slot)
    with pytest.raises(SlotsFullError):
        one.claim("w2")
    two.release_claim(slot)
    with pytest.raises(SlotsFullError):
        one.claim("w2")
    two.add(slot, -1)
    assert one.claim("w2") == slot


@pytest.mark.parametrize("worker_id", ["", "x" * 129, "é" * 65])
def test_ids_are_bounded(worker_id: str) -> None:
    with pytest.raises(ValueError, match="1 to 128 bytes"):
        Slots(1).claim(worker_id)


def test_a_file_of_other_sizes_is_refused(tmp_path: Path) -> None:
    Slots(4, processes=2, path=tmp_path / "slots")
    with pytest.raises(ValueError, match="another number"):
        Slots(8, processes=2, path=tmp_path / "slots")
    with pytest.raises(ValueError, match="process 2 of 2"):
        Slots(4, processes=2, index=2)
