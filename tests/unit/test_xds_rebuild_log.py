"""What the log says when Envoy's resources cannot be built."""

import logging

import pytest

from xds_server.problems import InconsistentSnapshotError
from xds_server.rebuild_log import MAX_CAUSES, REPEAT_S, RebuildLog


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def raised(error: Exception) -> Exception:
    """The error with a traceback, as an `except` has it."""
    try:
        raise error
    except type(error) as caught:
        return caught


def test_an_unexpected_cause_has_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = RebuildLog(clock)
    for _ in range(5):
        log.failed(raised(KeyError("weight")))
    (only,) = caplog.records
    assert only.levelno == logging.ERROR
    assert only.getMessage() == "cannot build what Envoy is to get, so it keeps what it has: KeyError: 'weight'"
    assert only.exc_info is not None
    assert log.failing
    clock.now += REPEAT_S
    log.failed(raised(KeyError("weight")))
    again = caplog.records[1]
    assert again.exc_info is None
    assert again.getMessage().endswith("KeyError: 'weight' (and 4 more such failures)")


def test_each_cause_is_named_when_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    log = RebuildLog(Clock())
    for error in (ValueError("one"), ValueError("two"), ValueError("one"), ValueError("one")):
        log.failed(raised(error))
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["one", "two", "one"]
    assert [record.exc_info is not None for record in caplog.records] == [True, True, False]


def test_what_we_found_ourselves_needs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    RebuildLog(Clock()).failed(raised(InconsistentSnapshotError(["Cluster 'a' exists twice"])))
    (only,) = caplog.records
    assert only.exc_info is None
    assert "InconsistentSnapshotError: Cluster 'a' exists twice" in only.getMessage()


def test_the_next_good_one_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    log = RebuildLog(Clock())
    log.built()
    assert caplog.records == []
    log.failed(raised(ValueError("one")))
    log.failed(raised(ValueError("one")))
    log.built()
    log.built()
    assert not log.failing
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "Envoy's resources can be built again, after 2 failures"
    ]
    # What comes after that is news, though its traceback is known.
    log.failed(raised(ValueError("one")))
    assert caplog.records[-1].levelno == logging.ERROR
    assert caplog.records[-1].exc_info is None


def test_causes_without_end_are_named_and_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    log = RebuildLog(Clock())
    for number in range(MAX_CAUSES + 10):
        log.failed(raised(ValueError(f"cause {number} {'x' * 10_000}")))
    assert len(caplog.records) == MAX_CAUSES + 10
    assert sum(record.exc_info is not None for record in caplog.records) == MAX_CAUSES
    assert max(len(record.getMessage()) for record in caplog.records) < 700
