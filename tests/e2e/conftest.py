"""Fixtures of the end-to-end tests."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.stack import MakeStack, Stack

_STACKS = pytest.StashKey[list[Stack]]()


@pytest.fixture(scope="session")
def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The product behind `stack`."""
    shared = Stack(tmp_path_factory.mktemp("stack"), workers=4)
    try:
        yield shared.start()
    finally:
        shared.close()


@pytest.fixture
def stack(shared_stack: Stack, request: pytest.FixtureRequest) -> Stack:
    """One running product for all tests that only use it: four workers, the built-in configuration."""
    request.node.stash[_STACKS] = [shared_stack]
    return shared_stack


@pytest.fixture
def make_stack(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeStack]:
    """Starts products of this test's own: `make_stack(workers=3, args=[...], config="...")`."""
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
    """Show with a failed test what its product said."""
    report = yield
    if report.when == "call" and report.failed:
        for each in item.stash.get(_STACKS, []):
            report.sections.append(("recursant up", each.describe()))
    return report
