"""Waiting before trying again, and warnings that do not flood."""

import logging
import random

import pytest

from recursant.store.backoff import Backoff
from recursant.store.quiet_log import QuietLog


def test_waits_double_up_to_the_longest_and_are_jittered() -> None:
    backoff = Backoff(0.1, 1.0, rng=random.Random(1))
    waits = [backoff.next() for _ in range(6)]
    for wait, bound in zip(waits, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0], strict=True):
        assert bound / 2 <= wait <= bound
    assert waits[4] != waits[5]
    backoff.reset()
    assert backoff.next() <= 0.1


def test_one_warning_an_interval_that_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = QuietLog(logging.getLogger("quiet"), interval_s=10, clock=lambda: now)
    for _ in range(5):
        log.warning("bad %s", "report")
    assert [record.getMessage() for record in caplog.records] == ["bad report"]
    now = 10.0
    log.warning("worse")
    now = 20.0
    log.warning("again")
    assert [record.getMessage() for record in caplog.records][1:] == ["worse (and 4 more such warnings)", "again"]
