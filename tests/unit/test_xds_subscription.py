"""What a stream wants of one type, as the xDS document says it, request by request."""

from typing import Any

import pytest

from xds_server.problems import LimitExceededError
from xds_server.subscription import Mode, Subscription

# Each step: the names in the request, then (mode, covers everything, names), asked, released.
SOTW = {
    "an empty list means everything while no name was ever given": [
        ([], (Mode.LEGACY, True, set()), {"*"}, set()),
        ([], (Mode.LEGACY, True, set()), set(), set()),
    ],
    "an empty list means nothing once a name was given": [
        (["a"], (Mode.NAMED, False, {"a"}), {"a"}, set()),
        ([], (Mode.NAMED, False, set()), set(), {"a"}),
        ([], (Mode.NAMED, False, set()), set(), set()),
    ],
    "a new list replaces the old one": [
        (["a", "b"], (Mode.NAMED, False, {"a", "b"}), {"a", "b"}, set()),
        (["b", "c"], (Mode.NAMED, False, {"b", "c"}), {"c"}, {"a"}),
    ],
    "a name given twice is one name": [
        (["a", "a"], (Mode.NAMED, False, {"a"}), {"a"}, set()),
    ],
    "a name that left and returns is asked for again": [
        (["a"], (Mode.NAMED, False, {"a"}), {"a"}, set()),
        ([], (Mode.NAMED, False, set()), set(), {"a"}),
        (["a"], (Mode.NAMED, False, {"a"}), {"a"}, set()),
    ],
    "the implicit wildcard ends with the first name": [
        ([], (Mode.LEGACY, True, set()), {"*"}, set()),
        (["a"], (Mode.NAMED, False, {"a"}), set(), {"*"}),
    ],
    "the explicit wildcard and names side by side": [
        (["*", "a"], (Mode.WILDCARD, True, {"a"}), {"*", "a"}, set()),
        (["*"], (Mode.WILDCARD, True, set()), set(), {"a"}),
        (["a"], (Mode.NAMED, False, {"a"}), set(), {"*"}),
        ([], (Mode.NAMED, False, set()), set(), {"a"}),
    ],
    "from the implicit to the explicit wildcard nothing changes": [
        ([], (Mode.LEGACY, True, set()), {"*"}, set()),
        (["*"], (Mode.WILDCARD, True, set()), set(), set()),
        ([], (Mode.NAMED, False, set()), set(), {"*"}),
    ],
}

# Each step: subscribe, unsubscribe, then as above.
DELTA = {
    "a first request without names means everything": [
        ([], [], (Mode.LEGACY, True, set()), {"*"}, set()),
        ([], [], (Mode.LEGACY, True, set()), set(), set()),
    ],
    "the implicit wildcard outlives later names and ends with '*' only": [
        ([], [], (Mode.LEGACY, True, set()), {"*"}, set()),
        (["a"], [], (Mode.LEGACY, True, {"a"}), {"a"}, set()),
        ([], ["*"], (Mode.NAMED, False, {"a"}), set(), {"*"}),
        ([], ["a"], (Mode.NAMED, False, set()), set(), {"a"}),
        ([], [], (Mode.NAMED, False, set()), set(), set()),
    ],
    "a first request with names means these": [
        (["a", "b"], [], (Mode.NAMED, False, {"a", "b"}), {"a", "b"}, set()),
        (["c"], ["a"], (Mode.NAMED, False, {"b", "c"}), {"c"}, {"a"}),
    ],
    "a subscribed name may be asked for again": [
        (["a"], [], (Mode.NAMED, False, {"a"}), {"a"}, set()),
        (["a"], [], (Mode.NAMED, False, {"a"}), {"a"}, set()),
    ],
    "the explicit wildcard on and off": [
        (["*"], [], (Mode.WILDCARD, True, set()), {"*"}, set()),
        (["a"], [], (Mode.WILDCARD, True, {"a"}), {"a"}, set()),
        ([], ["*"], (Mode.NAMED, False, {"a"}), set(), {"*"}),
        (["*"], [], (Mode.WILDCARD, True, {"a"}), {"*"}, set()),
    ],
    "a name under a wildcard can be unsubscribed": [
        (["*", "a"], [], (Mode.WILDCARD, True, {"a"}), {"*", "a"}, set()),
        ([], ["a"], (Mode.WILDCARD, True, set()), set(), {"a"}),
    ],
    "unknown names may be unsubscribed": [
        (["a"], [], (Mode.NAMED, False, {"a"}), {"a"}, set()),
        ([], ["b", "*"], (Mode.NAMED, False, {"a"}), set(), set()),
    ],
    "in one request unsubscribing has the last word": [
        (["a", "b"], ["a"], (Mode.NAMED, False, {"b"}), {"b"}, {"a"}),
    ],
}


@pytest.mark.parametrize("steps", SOTW.values(), ids=SOTW.keys())
def test_state_of_the_world(steps: list[Any]):
    subscription = Subscription(max_names=10)
    for names, (mode, covers_all, kept), asked, released in steps:
        change = subscription.replace(names)
        assert (subscription.mode, subscription.covers_all, subscription.names) == (mode, covers_all, kept)
        assert (change.asked, change.released) == (asked, released)


@pytest.mark.parametrize("steps", DELTA.values(), ids=DELTA.keys())
def test_delta(steps: list[Any]):
    subscription = Subscription(max_names=10)
    for subscribe, unsubscribe, (mode, covers_all, kept), asked, released in steps:
        change = subscription.update(subscribe, unsubscribe)
        assert (subscription.mode, subscription.covers_all, subscription.names) == (mode, covers_all, kept)
        assert (change.asked, change.released) == (asked, released)


def test_a_stale_request_only_takes_names_away():
    subscription = Subscription(max_names=10)
    subscription.replace(["a", "b"])
    change = subscription.narrow(["b", "c"])
    assert (subscription.names, change.asked, change.released) == ({"b"}, set(), {"a"})
    subscription.replace(["*", "a"])
    change = subscription.narrow([])
    assert (subscription.names, change.released) == ({"a"}, set())


def test_silent_before_the_first_request():
    subscription = Subscription(max_names=1)
    assert subscription.mode is Mode.SILENT
    assert not subscription.wants("a")


def test_wants():
    subscription = Subscription(max_names=10)
    subscription.update(["*", "a"], [])
    assert subscription.wants("a")
    assert subscription.wants("b")
    # The sign for everything is no resource's name.
    assert not subscription.wants("*")
    subscription.update([], ["*"])
    assert subscription.wants("a")
    assert not subscription.wants("b")


def test_names_are_bounded():
    subscription = Subscription(max_names=2)
    subscription.replace(["a", "b"])
    with pytest.raises(LimitExceededError, match="3 names in one subscription, allowed are 2"):
        subscription.replace(["a", "b", "c"])
    subscription = Subscription(max_names=2)
    subscription.update(["a"], [])
    subscription.update(["b"], [])
    with pytest.raises(LimitExceededError):
        subscription.update(["c"], [])
    subscription.update(["c"], ["a"])
    assert subscription.names == {"b", "c"}
