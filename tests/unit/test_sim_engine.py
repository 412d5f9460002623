"""The engine: budgets, order, preemption, prefix cache, time; by example and by property."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recursant.sim.engine import Engine, StepResult
from recursant.sim.profiles import PROFILES, TINY, EngineProfile, profile_named, with_overrides
from recursant.sim.sequence import EngineRequest, Sequence, SequenceState
from recursant.sim.waiting import SchedulingPolicy

# 8 blocks of 4 tokens; steps of 1 s whatever they hold.
SMALL_CACHE = replace(
    TINY,
    token_times=((0, 1.0), (1, 1.0)),
    sequence_time_s=0.0,
    kv_read_efficiency=1.0,
    kv_bytes_per_token=1,
    bandwidth_bytes_s=1e18,
    block_tokens=4,
    kv_blocks=8,
    max_model_len=32,
    max_num_seqs=4,
    max_num_batched_tokens=16,
)


def drain(engine: Engine, now: float = 0.0, most: int = 10_000) -> list[StepResult]:
    """Steps until nothing is left."""
    results = []
    while engine.has_work:
        result = engine.step(now)
        assert result is not None
        now += result.duration_s
        results.append(result)
        assert len(results) < most, "the engine does not come to an end"
    return results


def finished_ids(results: list[StepResult]) -> list[str]:
    return [sequence.request_id for result in results for sequence in result.finished]


def test_a_request_gets_its_first_token_with_its_last_prefill_chunk() -> None:
    engine = Engine(replace(SMALL_CACHE, max_num_batched_tokens=8))
    engine.add(EngineRequest("a", prompt_tokens=20, output_tokens=3), 0.0)
    results = drain(engine)
    # 20 tokens in chunks of 8, 8 and 4, then two decode steps.
    assert [result.tokens for result in results] == [8, 8, 4, 1, 1]
    assert [len(result.outputs) for result in results] == [0, 0, 1, 1, 1]
    sequence = results[-1].finished[0]
    assert (sequence.arrived, sequence.started, sequence.first_token, sequence.finished) == (0.0, 0.0, 3.0, 5.0)
    assert sequence.generated == 3


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it_whole() -> None:
    profile = replace(SMALL_CACHE, max_num_batched_tokens=32)
    engine = Engine(profile, chunked_prefill=False)
    engine.add(EngineRequest("a", 12, 2), 0.0)
    engine.add(EngineRequest("b", 12, 2), 0.0)
    engine.add(EngineRequest("c", 1, 2), 0.0)
    assert drain(engine)[0].tokens == 25
    with pytest.raises(ValueError, match="without chunked prefill"):
        Engine(SMALL_CACHE, chunked_prefill=False)


def test_no_more_sequences_run_than_allowed() -> None:
    engine = Engine(replace(SMALL_CACHE, max_num_seqs=2))
    for name in "abc":
        engine.add(EngineRequest(name, 2, 2), 0.0)
    engine.step(0.0)
    assert (engine.running, engine.waiting) == (2, 1)
    assert engine.stats().waiting_tokens == 2


def test_a_sequence_runs_until_its_step_ends() -> None:
    engine = Engine(SMALL_CACHE)
    engine.add(EngineRequest("a", 4, 1), 0.0)
    assert engine.begin_step(0.0) == pytest.approx(1.0)
    assert engine.running == 1
    with pytest.raises(RuntimeError, match="has not ended"):
        engine.begin_step(0.5)
    assert finished_ids([engine.end_step(1.0)]) == ["a"]
    assert engine.running == 0
    with pytest.raises(RuntimeError, match="no step"):
        engine.end_step(1.0)


def test_nothing_to_do_is_no_step() -> None:
    assert Engine(SMALL_CACHE).step(0.0) is None


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (EngineRequest("a", 4, 4), "in use"),
        (EngineRequest("b", 0, 4), "at least one"),
        (EngineRequest("b", 4, 0), "at least one"),
        (EngineRequest("b", 30, 3), "max_model_len"),
    ],
)
def test_what_cannot_be_served_is_refused(request_: EngineRequest, message: str) -> None:
    engine = Engine(SMALL_CACHE)
    engine.add(EngineRequest("a", 4, 4), 0.0)
    with pytest.raises(ValueError, match=message):
        engine.add(request_, 0.0)
    assert engine.waiting == 1


def test_a_full_cache_takes_the_blocks_of_the_last_and_it_continues_where_it_was() -> None:
    engine = Engine(SMALL_CACHE)
    # They would grow to 7 and 5 blocks; 8 are there.
    first = engine.add(EngineRequest("first", 12, 14), 0.0)
    last = engine.add(EngineRequest("last", 4, 16), 0.0)
    preempted_at: list[tuple[str, int]] = []
    outputs: dict[str, int] = {"first": 0, "last": 0}
    now = 0.0
    while engine.has_work:
        result = engine.step(now)
        assert result is not None
        now += result.duration_s
        preempted_at += [(sequence.request_id, sequence.generated) for sequence in result.preempted]
        for sequence, count in result.outputs:
            outputs[sequence.request_id] += count
    assert [name for name, _ in preempted_at] == ["last"]
    assert preempted_at[0][1] > 0
    # Nothing is generated twice, nothing is lost.
    assert outputs == {"first": 14, "last": 16}
    assert (first.preemptions, last.preemptions) == (0, 1)
    assert engine.stats().preemptions == 1
    assert engine.stats().blocks_free == 8


def test_a_preempted_sequence_computes_its_prompt_and_its_output_again() -> None:
    engine = Engine(SMALL_CACHE, prefix_caching=False)
    engine.add(EngineRequest("first", 16, 9), 0.0)
    engine.add(EngineRequest("last", 4, 12), 0.0)
    results = drain(engine)
    generated = sum(count for result in results for _, count in result.outputs)
    computed = sum(result.tokens for result in results)
    # Every prompt once and every output but the last of each; what was lost is on top.
    assert generated == 21
    once = 16 + 4 + 21 - 2
    lost = next(result.preempted[0] for result in results if result.preempted)
    assert lost.request_id == "last"
    assert computed > once


def test_priority_decides_who_loses_its_blocks() -> None:
    engine = Engine(SMALL_CACHE, policy=SchedulingPolicy.PRIORITY)
    unimportant = engine.add(EngineRequest("unimportant", 12, 10, priority=5), 0.0)
    important = engine.add(EngineRequest("important", 8, 20, priority=-5), 0.0)
    drain(engine)
    assert (unimportant.preemptions > 0, important.preemptions) == (True, 0)


def test_the_others_go_on_in_the_step_that_throws_one_out() -> None:
    profile = replace(SMALL_CACHE, max_num_batched_tokens=6, max_num_seqs=3)
    engine = Engine(profile, policy=SchedulingPolicy.PRIORITY, prefix_caching=False)
    engine.add(EngineRequest("low", 4, 6, priority=9), 0.0)
    engine.step(0.0)
    engine.add(EngineRequest("middle", 5, 5, priority=5), 1.0)
    engine.step(1.0)
    engine.add(EngineRequest("high", 14, 1, priority=0), 2.0)
    results = drain(engine, 2.0)
    # "low" stands before "middle", which needs its blocks, and "high" after both.
    (result,) = [result for result in results if result.preempted]
    assert [sequence.request_id for sequence in result.preempted] == ["low"]
    assert [sequence.request_id for sequence, _ in result.outputs] == ["middle", "high"]


def test_who_is_thrown_out_gives_its_tokens_of_the_step_back() -> None:
    profile = replace(SMALL_CACHE, kv_blocks=10, max_num_batched_tokens=6, max_num_seqs=3)
    engine = Engine(profile, policy=SchedulingPolicy.PRIORITY, prefix_caching=False)
    engine.add(EngineRequest("low", 14, 7, priority=9), 0.0)
    engine.step(0.0)
    engine.add(EngineRequest("middle", 12, 7, priority=5), 1.0)
    engine.add(EngineRequest("high", 11, 7, priority=0), 1.0)
    results = drain(engine, 1.0)
    # "low" decodes and is part of the step already when "middle" needs its blocks; "high" is still in its prefill
    # and takes whatever the budget leaves.
    (result,) = [result for result in results if result.preempted]
    assert [sequence.request_id for sequence in result.preempted] == ["low"]
    assert result.tokens == 6


def test_priority_first_then_arrival() -> None:
    engine = Engine(replace(SMALL_CACHE, max_num_seqs=1), policy=SchedulingPolicy.PRIORITY)
    for name, priority in (("a", 3), ("b", 1), ("c", 3), ("d", 1), ("e", -7)):
        engine.add(EngineRequest(name, 2, 2, priority=priority), 0.0)
    assert finished_ids(drain(engine)) == ["e", "b", "d", "a", "c"]


def test_fcfs_ignores_the_priority() -> None:
    engine = Engine(replace(SMALL_CACHE, max_num_seqs=1))
    for name, priority in (("a", 3), ("b", 1), ("c", -7)):
        engine.add(EngineRequest(name, 2, 2, priority=priority), 0.0)
    assert finished_ids(drain(engine)) == ["a", "b", "c"]


def test_a_known_prefix_is_not_computed_again() -> None:
    engine = Engine(SMALL_CACHE)
    hashes = [11, 12, 13]
    engine.add(EngineRequest("a", 14, 1, block_hashes=hashes), 0.0)
    drain(engine)
    again = engine.add(EngineRequest("b", 14, 1, block_hashes=hashes), 10.0)
    result = engine.step(10.0)
    assert result is not None
    # Three blocks of four tokens are there.
    assert result.tokens == 2
    assert again.cached_tokens == 12
    stats = engine.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (28, 12)
    assert (stats.prompt_tokens, stats.cached_tokens) == (28, 12)


def test_the_last_prompt_token_is_always_computed() -> None:
    engine = Engine(SMALL_CACHE)
    engine.add(EngineRequest("a", 8, 1, block_hashes=[1, 2]), 0.0)
    drain(engine)
    again = engine.add(EngineRequest("b", 8, 1, block_hashes=[1, 2]), 0.0)
    drain(engine)
    assert again.cached_tokens == 4


def test_requests_of_one_step_share_a_prefix() -> None:
    engine = Engine(SMALL_CACHE)
    engine.add(EngineRequest("a", 9, 1, block_hashes=[1, 2]), 0.0)
    other = engine.add(EngineRequest("b", 9, 1, block_hashes=[1, 2]), 0.0)
    result = engine.step(0.0)
    assert result is not None
    assert result.tokens == 9 + 1
    assert other.cached_tokens == 8


def test_the_prefix_cache_can_be_off_and_can_be_forgotten() -> None:
    off = Engine(SMALL_CACHE, prefix_caching=False)
    on = Engine(SMALL_CACHE)
    for engine in (off, on):
        engine.add(EngineRequest("a", 9, 1, block_hashes=[1, 2]), 0.0)
        drain(engine)
        engine.reset_prefix_cache()
        again = engine.add(EngineRequest("b", 9, 1, block_hashes=[1, 2]), 0.0)
        drain(engine)
        assert again.cached_tokens == 0
    assert off.stats().prefix_queries == 0


def test_abort_frees_at_once_also_during_a_step() -> None:
    engine = Engine(SMALL_CACHE)
    engine.add(EngineRequest("runs", 8, 8), 0.0)
    engine.add(EngineRequest("stays", 4, 2), 0.0)
    engine.begin_step(0.0)
    held = engine.stats().blocks_free
    assert engine.abort("runs")
    assert engine.stats().blocks_free == held + 2
    result = engine.end_step(1.0)
    assert [sequence.request_id for sequence, _ in result.outputs] == ["stays"]
    assert not engine.abort("runs")
    engine.add(EngineRequest("waits", 4, 2), 1.0)
    assert engine.abort("waits")
    drain(engine, 1.0)
    stats = engine.stats()
    assert (stats.aborted, stats.finished, stats.waiting_tokens) == (2, 1, 0)


def test_same_seed_same_times() -> None:
    def durations(seed: int) -> list[float]:
        engine = Engine(profile_named("small"), seed=seed)
        for index in range(5):
            engine.add(EngineRequest(str(index), 100 + index, 20), 0.0)
        return [result.duration_s for result in drain(engine)]

    assert durations(7) == durations(7)
    assert durations(7) != durations(8)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_profiles_hold_together(profile: EngineProfile) -> None:
    engine = Engine(replace(profile, jitter=0.0))
    step = engine.step
    engine.add(EngineRequest("short", 32, 2), 0.0)
    prefill, decode = step(0.0), step(1.0)
    assert prefill is not None
    assert decode is not None
    # More tokens never take less time, and memory never moves faster than it can.
    assert prefill.duration_s >= decode.duration_s > 0
    assert decode.bytes_moved / decode.duration_s <= profile.bandwidth_bytes_s
    context = min(profile.max_model_len - 2, profile.kv_tokens // profile.max_num_seqs)
    full = Engine(replace(profile, jitter=0.0))
    for index in range(profile.max_num_seqs):
        full.add(EngineRequest(str(index), context, 2), 0.0)
    now = 0.0
    for result in drain(full):
        now += result.duration_s
        assert result.bytes_moved / result.duration_s <= profile.bandwidth_bytes_s
    assert profile.peak_token_rate > profile.decode_rate(1, 1)


def test_the_default_profile_feels_like_a_small_fast_device() -> None:
    profile = replace(profile_named("small"), jitter=0.0)
    engine = Engine(profile)
    engine.add(EngineRequest("chat", 1_000, 2), 0.0)
    first, second = engine.step(0.0), engine.step(1.0)
    assert first is not None
    assert second is not None
    assert 0.01 <= first.duration_s <= 0.05
    assert 0.008 <= second.duration_s <= 0.012


def test_published_operator_times_are_met_at_their_knots() -> None:
    # README of the traces: 2,048 tokens take about 147 ms over 32 layers, embedding and residual counted per layer;
    # counted once they are a little less.
    assert profile_named("a100-llama-3-8b").token_time(2_048) == pytest.approx(0.147, rel=0.05)
    assert profile_named("a100-llama-3-8b").token_time(1) == pytest.approx(0.010, rel=0.05)


def test_longer_contexts_make_decode_slower() -> None:
    profile = replace(profile_named("a100-llama-3-8b"), jitter=0.0)
    assert profile.decode_rate(64, 4_000) < profile.decode_rate(64, 100)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_batched_tokens": 4, "max_num_seqs": 8}, "at least max_num_seqs"),
        ({"kv_blocks": 4}, "max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
    ],
)
def test_figures_that_do_not_fit_together_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_overrides(TINY, **changes)
    with pytest.raises(ValueError, match="one of small, tiny"):
        profile_named("large")


def test_merged_decode_steps_end_like_single_ones() -> None:
    profile = replace(profile_named("a100-llama-3-8b"), jitter=0.0)

    def run(horizon: float | None) -> tuple[list[tuple[str, float]], int]:
        engine = Engine(profile)
        for index in range(6):
            engine.add(EngineRequest(str(index), 200 + 30 * index, 40 + 17 * index), 0.0)
        now, calls, ends = 0.0, 0, []
        while engine.has_work:
            result = engine.step(now, None if horizon is None else now + horizon)
            assert result is not None
            now += result.duration_s
            calls += 1
            ends += [(sequence.request_id, sequence.finished or 0.0) for sequence in result.finished]
        assert engine.stats().generated_tokens == sum(40 + 17 * index for index in range(6))
        return ends, calls

    single, single_calls = run(None)
    merged, merged_calls = run(1.0)
    assert merged_calls < single_calls / 5
    assert [name for name, _ in merged] == [name for name, _ in single]
    assert [end for _, end in merged] == pytest.approx([end for _, end in single])


def test_a_first_step_is_never_merged() -> None:
    engine = Engine(SMALL_CACHE)
    sequence = engine.add(EngineRequest("a", 1, 8), 0.0)
    engine.step(0.0, 100.0)
    assert (sequence.generated, sequence.first_token) == (1, 1.0)
    engine.step(1.0, 100.0)
    assert (sequence.generated, sequence.finished) == (8, 8.0)


@pytest.mark.parametrize("horizon", [None, 100.0], ids=["single steps", "merged steps"])
def test_output_whose_hashes_are_known_is_cached_too(horizon: float | None) -> None:
    engine = Engine(SMALL_CACHE)
    turn = EngineRequest("turn 1", 4, 10, block_hashes=[1, 2, 3])
    engine.add(turn, 0.0)
    while engine.has_work:
        engine.step(0.0, horizon)
    # The next turn's prompt is the first one's prompt and answer, and more.
    again = engine.add(EngineRequest("turn 2", 16, 1, block_hashes=[1, 2, 3, 4]), 0.0)
    engine.step(0.0)
    assert again.cached_tokens == 12


def test_merged_steps_end_by_the_horizon() -> None:
    engine = Engine(replace(profile_named("a100-llama-3-8b"), jitter=0.0))
    engine.add(EngineRequest("a", 100, 1_000), 0.0)
    engine.step(0.0)
    for horizon in (0.005, 0.05, 0.5, 5.0):
        single = engine.step(0.0)
        assert single is not None
        duration = engine.begin_step(0.0, horizon)
        assert duration is not None
        assert duration <= max(horizon, single.duration_s * 1.01)
        steps = sum(count for _, count in engine.end_step(duration).outputs)
        assert steps >= int(horizon / single.duration_s) - 1


class Fleet:
    """Drives an engine with arbitrary arrivals and aborts and checks what must hold after every step."""

    def __init__(self, profile: EngineProfile, policy: SchedulingPolicy, *, prefix_caching: bool) -> None:
        self.profile = profile
        self.engine = Engine(profile, policy=policy, prefix_caching=prefix_caching)
        self.alive: dict[str, Sequence] = {}
        self.generated: dict[str, int] = {}
        self.finished: list[str] = []
        self.now = 0.0

    def add(self, request: EngineRequest) -> None:
        self.alive[request.request_id] = self.engine.add(request, self.now)
        self.generated[request.request_id] = 0

    def abort(self, request_id: str) -> None:
        assert self.engine.abort(request_id)
        assert self.alive.pop(request_id).state is SequenceState.ABORTED

    def step(self, *, merge: bool, abort: str | None = None) -> None:
        duration = self.engine.begin_step(self.now, self.now + 5.0 if merge else None)
        assert duration is not None
        assert 0 < self.engine.running <= self.profile.max_num_seqs
        scheduled = [sequence.scheduled for sequence in self.alive.values()]
        assert 0 < sum(scheduled) <= self.profile.max_num_batched_tokens
        self.check_blocks()
        if abort is not None:
            self.abort(abort)
        self.now += duration
        result = self.engine.end_step(self.now)
        for sequence, count in result.outputs:
            assert sequence.request_id in self.alive
            self.generated[sequence.request_id] += count
            # Continues where it was, also after a preemption: never a token twice, never one skipped.
            assert self.generated[sequence.request_id] == sequence.generated <= sequence.output_tokens
        for sequence in result.finished:
            assert sequence.generated == sequence.output_tokens
            assert sequence.state is SequenceState.FINISHED
            del self.alive[sequence.request_id]
            self.finished.append(sequence.request_id)
        self.check_blocks()

    def check_blocks(self) -> None:
        pool = self.engine._scheduler.pool
        held = {key for sequence in self.alive.values() for key in sequence.shared}
        private = sum(sequence.blocks - len(sequence.shared) for sequence in self.alive.values())
        assert pool.private == private
        assert pool.total - pool.free == private + len(held)
        for sequence in self.alive.values():
            if sequence.state is SequenceState.RUNNING:
                assert sequence.blocks * self.profile.block_tokens >= sequence.computed
            else:
                assert (sequence.blocks, sequence.computed, sequence.scheduled) == (0, 0, 0)
        stats = self.engine.stats()
        started = [one for one in self.alive.values() if one.state is SequenceState.RUNNING]
        chunks = sum(sequence.length - sequence.computed - 1 for sequence in started)
        waiting = [one for one in self.alive.values() if one.state is SequenceState.WAITING]
        assert stats.waiting_tokens == sum(sequence.length for sequence in waiting)
        assert stats.uncomputed_tokens == stats.waiting_tokens + chunks
        assert stats.running + stats.waiting == len(self.alive)


profiles = st.builds(
    lambda blocks, seqs, extra: replace(
        SMALL_CACHE,
        kv_blocks=blocks,
        max_model_len=min(32, blocks * 4),
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + extra,
    ),
    st.integers(5, 16),
    st.integers(1, 6),
    st.integers(0, 20),
)


@given(
    profile=profiles,
    policy=st.sampled_from(SchedulingPolicy),
    prefix_caching=st.booleans(),
    data=st.data(),
)
@settings(deadline=None, max_examples=150)
def test_whatever_comes_everything_ends_and_nothing_is_lost(
    profile: EngineProfile, policy: SchedulingPolicy, prefix_caching: bool, data: st.DataObject
) -> None:
    fleet = Fleet(profile, policy, prefix_caching=prefix_caching)
    aborted = 0
    for number in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(0, 4))):
            if fleet.alive:
                victim = None
                if len(fleet.alive) > 1 and data.draw(st.integers(0, 9)) == 0:
                    victim = data.draw(st.sampled_from(sorted(fleet.alive)))
                    aborted += 1
                fleet.step(merge=data.draw(st.booleans()), abort=victim)
        prompt = data.draw(st.integers(1, profile.max_model_len - 1))
        family = data.draw(st.integers(0, 2))
        fleet.add(
            EngineRequest(
                f"r{number:02}",
                prompt,
                data.draw(st.integers(1, profile.max_model_len - prompt)),
                priority=data.draw(st.integers(-2, 2)),
                block_hashes=[100 * family + block for block in range(prompt // profile.block_tokens)],
            )
        )
    for _ in range(2_000):
        if not fleet.alive:
            break
        fleet.step(merge=data.draw(st.booleans()) if len(fleet.alive) < 3 else True)
    assert not fleet.alive, "starved"
    stats = fleet.engine.stats()
    assert stats.finished == len(fleet.finished)
    assert stats.finished + stats.aborted == len(fleet.generated)
    assert stats.aborted == aborted
    assert stats.blocks_free == stats.blocks_total
    assert not fleet.engine.has_work


@given(profile=profiles, prompts=st.lists(st.integers(1, 15), min_size=2, max_size=12))
@settings(deadline=None, max_examples=100)
def test_fcfs_gives_first_tokens_in_the_order_of_arrival(profile: EngineProfile, prompts: list[int]) -> None:
    engine = Engine(profile)
    sequences = [engine.add(EngineRequest(str(index), prompt, 3), 0.0) for index, prompt in enumerate(prompts)]
    drain(engine)
    first_tokens = [sequence.first_token or 0.0 for sequence in sequences]
    assert first_tokens == sorted(first_tokens)


@given(priorities=st.lists(st.integers(-3, 3), min_size=2, max_size=12))
@settings(deadline=None)
def test_with_one_slot_priority_orders_everything(priorities: list[int]) -> None:
    engine = Engine(replace(SMALL_CACHE, max_num_seqs=1), policy=SchedulingPolicy.PRIORITY)
    for index, priority in enumerate(priorities):
        engine.add(EngineRequest(f"{index:02}", 2, 2, priority=priority), 0.0)
    expected = [f"{index:02}" for index, _ in sorted(enumerate(priorities), key=lambda pair: (pair[1], pair[0]))]
    assert finished_ids(drain(engine)) == expected
