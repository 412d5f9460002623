"""Merged decode steps that are cut short give what single steps give."""

from dataclasses import replace

import pytest

from recursant.sim.engine import Engine
from recursant.sim.profiles import A100_LLAMA_3_8B, TINY
from recursant.sim.sequence import EngineRequest, Sequence

PROFILE = replace(A100_LLAMA_3_8B, jitter=0.0)


def _times(*sequences: Sequence) -> list[float]:
    return [at or 0.0 for sequence in sequences for at in (sequence.first_token, sequence.finished)]


def _single_steps(second_at: float) -> tuple[list[float], int]:
    """First tokens and ends of two requests, the second of which comes while the first decodes."""
    engine = Engine(PROFILE)
    first = engine.add(EngineRequest("a", 300, 200), 0.0)
    now, second = 0.0, None
    while engine.has_work or second is None:
        duration = engine.begin_step(now)
        assert duration is not None
        end = now + duration
        if second is None and end >= second_at:
            second = engine.add(EngineRequest("b", 500, 50), second_at)
        engine.end_step(end)
        now = end
    return [
        first.first_token or 0,
        first.finished or 0,
        second.first_token or 0,
        second.finished or 0,
    ], engine.pool.free


def _merged_steps(second_at: float) -> tuple[list[float], int]:
    engine = Engine(PROFILE)
    first = engine.add(EngineRequest("a", 300, 200), 0.0)
    now, second = 0.0, None
    while engine.has_work or second is None:
        duration = engine.begin_step(now, 1e9)
        assert duration is not None
        if second is None and now <= second_at <= now + duration:
            duration = engine.cut_step(second_at) or duration
            second = engine.add(EngineRequest("b", 500, 50), second_at)
        now += duration
        engine.end_step(now)
    return [
        first.first_token or 0,
        first.finished or 0,
        second.first_token or 0,
        second.finished or 0,
    ], engine.pool.free


@pytest.mark.parametrize("second_at", [0.1, 0.5, 0.777, 1.5])
def test_a_cut_run_of_steps_equals_single_ones(second_at: float) -> None:
    merged, free = _merged_steps(second_at)
    single, free_single = _single_steps(second_at)
    assert merged == pytest.approx(single, rel=1e-9)
    assert free == free_single == PROFILE.kv_blocks


def test_a_single_step_is_not_cut() -> None:
    engine = Engine(PROFILE)
    engine.add(EngineRequest("a", 300, 10), 0.0)
    assert engine.cut_step(0.0) is None
    engine.begin_step(0.0)
    assert engine.cut_step(0.001) is None


def test_a_cut_gives_back_the_blocks_of_the_steps_that_are_not_taken() -> None:
    # 100 prompt tokens hold 7 blocks of 16; up to 112 tokens fit into them.
    engine = Engine(replace(TINY, jitter=0.0))
    engine.add(EngineRequest("a", 100, 1_000), 0.0)
    engine.step(0.0)
    began = 0.01
    engine.begin_step(began, 1e9)
    assert engine.pool.total - engine.pool.free > 60
    shorter = engine.cut_step(began + 0.0001)
    assert shorter is not None
    assert engine.pool.total - engine.pool.free == 7
