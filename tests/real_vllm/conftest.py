"""Fixtures: one gateway, and behind it three real vLLM servers with different settings."""

import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_rig import Fleet
from harness.stack import MakeStack, Stack
from vllm_rig import HOME, MODEL_DIR, say

# Where vLLM's start is part of a test, it is most of its time.
TEST_S = 600
_STACKS = pytest.StashKey[list[Stack]]()


def pytest_configure() -> None:
    # Whoever ends the tests ends the engines, too: they outlive a server that is killed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture(scope="session")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The servers behind `fleet`, started once."""
    assert MODEL_DIR.exists(), f"{HOME} is not there: run these tests with `make test-vllm`"
    fleet = Fleet(tmp_path_factory.mktemp("vllm"))
    try:
        yield fleet.start()
    finally:
        fleet.close()


@pytest.fixture
def fleet(shared_fleet: Fleet, request: pytest.FixtureRequest) -> Fleet:
    """The whole product in front of real vLLM, everything idle and ready."""
    request.node.stash[_STACKS] = [shared_fleet.stack]
    shared_fleet.wait_rested()
    return shared_fleet


@pytest.fixture
def make_stack(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeStack]:
    """Starts products of this test's own."""
    stacks: list[Stack] = []
    request.node.stash[_STACKS] = stacks

    def make(*, started: bool = True, **options: Any) -> Stack:
        new = Stack(tmp_path / f"stack-{len(stacks)}", **options)
        stacks.append(new)
        return new.start() if started else new

    try:
        yield make
    finally:
        for each in reversed(stacks):
            each.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test what its product said; say of each how long it took."""
    report = yield
    if report.when == "call":
        say(f"{report.outcome} {item.name} in {report.duration:.1f} s")
        if report.failed:
            for each in item.stash.get(_STACKS, []):
                report.sections.append(("recursant up", each.describe()))
    return report
