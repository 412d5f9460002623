"""The short form of `make soak`: the whole product under mixed load, workers dying, clients hanging up."""

import pytest

from bench.soak import soak

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

MINUTES = 0.8


async def test_nothing_stays_behind_after_mixed_load() -> None:
    """In flight back to zero, no descriptor left, no process restarted, memory within bounds."""
    report = await soak(MINUTES)
    assert report.problems == []
    assert report.kills > 0
    assert report.policy_changes > 0
    assert any(outcome.startswith("hang_up") for outcome in report.outcomes)
