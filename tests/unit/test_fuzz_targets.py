"""The targets of `make fuzz`: what is known to hold, without atheris, and a short run of it where it is installed."""

import gc
import logging
import platform
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from fuzz.runner import fuzz
from fuzz.targets import TARGETS, load

RUNS = 200
ROUNDS = 20


@pytest.fixture
def silence() -> Iterator[None]:
    """Nothing is logged: pytest would keep it, with all that its errors refer to."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", TARGETS)
def test_every_promise_holds_for_the_inputs_to_begin_with(name: str) -> None:
    target = load(name)
    for seed in (b"", *target.seeds):
        target.check(seed)


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_leaves_anything_behind(name: str) -> None:
    target = load(name)
    counts = []
    for _ in range(2):
        for _ in range(ROUNDS):
            for seed in target.seeds:
                target.check(seed)
        gc.collect()
        counts.append(sys.getallocatedblocks())
    before, after = counts
    # Caches may still fill; one block for each input would be a leak.
    assert after - before < ROUNDS * len(target.seeds)


@pytest.mark.plain("what is compiled cannot be instrumented")
@pytest.mark.skipif(
    find_spec("atheris") is None,
    reason=f"atheris has no release for Python {platform.python_version()} on {platform.system()} {platform.machine()}",
)
@pytest.mark.parametrize("name", TARGETS)
def test_atheris_finds_nothing_in_a_short_run(name: str, tmp_path: Path) -> None:
    outcome, text = fuzz(name, tmp_path, f"-runs={RUNS}")
    assert outcome.code == 0, text[-4_000:]
    assert outcome.executions >= RUNS
    # The code is instrumented: without coverage, libFuzzer would be guessing.
    assert outcome.features > 0
