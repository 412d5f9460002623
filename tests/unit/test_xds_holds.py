"""Resources refused together are held together, tried again apart, and never remembered twice."""

from xds_server.holds import Holds


def test_a_group_waits_until_one_of_it_changes():
    holds = Holds()
    versions: dict[str, str | None] = {"a": "1", "b": "1", "c": "1"}
    holds.hold({"a": "1", "b": "1"})
    holds.release(versions.get)
    assert not holds
    versions["c"] = "2"
    holds.release(versions.get)
    assert not holds
    versions["a"] = "2"
    holds.release(versions.get)
    assert holds
    assert (holds.take(), holds.take()) == ("b", None)


def test_groups_are_apart():
    holds = Holds()
    holds.hold({"a": "1", "b": "1"})
    holds.hold({"c": "1", "d": "1"})
    holds.release({"a": None, "b": "1", "c": "1", "d": "1"}.get)
    assert holds.take_all() == {"b"}
    assert not holds


def test_what_is_sent_again_has_left_its_group():
    holds = Holds()
    holds.hold({"a": "1", "b": "1", "c": "1"})
    holds.sent(["a"])
    # Its next answer decides about it, so its change says nothing about the others.
    holds.release({"a": "2", "b": "1", "c": "1"}.get)
    assert not holds
    holds.release({"a": "2", "b": "2", "c": "1"}.get)
    assert holds.take_all() == {"c"}


def test_asking_for_refused_content_again_and_again_costs_no_memory():
    holds = Holds()
    for _ in range(100):
        holds.sent(["a", "b"])
        holds.hold({"a": "1", "b": "1"})
    assert len(holds._groups) == 1
