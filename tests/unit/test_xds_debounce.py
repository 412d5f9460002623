"""The first change after quiet is pushed at once, what follows within the interval together."""

from hypothesis import given
from hypothesis import strategies as st

from xds_server.debounce import Debounce


def test_quiet_is_quiet():
    assert Debounce(0.1).due_at is None


def test_the_first_change_is_due_at_once():
    debounce = Debounce(0.1)
    debounce.changed(5.0)
    assert debounce.due_at == 5.0
    debounce.pushed(5.0)
    assert debounce.due_at is None


def test_changes_within_the_interval_wait_for_its_end_together():
    debounce = Debounce(0.1)
    debounce.changed(5.0)
    debounce.pushed(5.0)
    debounce.changed(5.03)
    debounce.changed(5.09)
    assert debounce.due_at == 5.1
    debounce.pushed(5.1)
    assert debounce.due_at is None


def test_after_quiet_a_change_is_due_at_once_again():
    debounce = Debounce(0.1)
    debounce.changed(5.0)
    debounce.pushed(5.0)
    debounce.changed(5.2)
    assert debounce.due_at == 5.2


@given(changes=st.lists(st.floats(0, 10), min_size=1), interval=st.floats(0.01, 1.0))
def test_no_change_waits_longer_than_the_interval_and_no_two_pushes_are_closer(changes: list[float], interval: float):
    debounce = Debounce(interval)
    pushes: list[float] = []
    waiting: list[float] = []

    def push_until(now: float) -> None:
        while debounce.due_at is not None and debounce.due_at <= now:
            due = debounce.due_at
            # To the precision of the clock.
            assert all(due - change <= interval * 1.000001 for change in waiting)
            assert not pushes or due - pushes[-1] >= interval * 0.999999
            debounce.pushed(due)
            pushes.append(due)
            waiting.clear()

    for change in sorted(changes):
        push_until(change)
        debounce.changed(change)
        waiting.append(change)
    push_until(float("inf"))
    assert not waiting
