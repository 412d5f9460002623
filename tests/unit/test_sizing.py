"""Planning a fleet: the load, the formula against sums by hand, the settings, and the search."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest

from recursant.agents.policy import AgentPolicy
from recursant.sim.cost import CostModel, StepLoad
from recursant.sim.profiles import A100_LLAMA_3_8B, PROFILES, TINY
from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.trace_file import TraceError
from recursant.sizing.check import percentile, trial
from recursant.sizing.estimate import (
    MOST_LOAD,
    Mix,
    least_computed,
    most_requests_s,
    steady_state,
    unloaded_first_token_s,
    workers_at,
)
from recursant.sizing.kinds import kinds_for, kinds_named
from recursant.sizing.load import AgentRate, Group, arrivals_of, busiest, grouped, parse_rate, trace_load
from recursant.sizing.search import best, plan_kind, smallest
from recursant.sizing.settings import EngineSettings, fitting_settings, full_step_s

PROFILE = replace(TINY, jitter=0.0)
CHAT = AgentPolicy(agent_id="chat", latency_sla_ms=500, fallback_strategy="queue_and_retry", retry_max=20)


def group_of(
    rate: float, *, prompt: int = 1_000, output: int = 50, sla_ms: int | None = 500, seconds: int = 10
) -> Group:
    """Equal requests at equal distances."""
    count = round(rate * seconds)
    arrivals = tuple(Arrival(number / rate, "chat", prompt, output) for number in range(count))
    return Group(None, (CHAT.model_copy(update={"latency_sla_ms": sla_ms}),), arrivals, seconds)


# --- the load ---


def test_a_load_is_read_from_its_fields() -> None:
    text = "agent=chat-web, rate=2.5, prompt=1000,output=150,sla_ms=800,family=qwen"
    assert parse_rate(text) == AgentRate("chat-web", 2.5, 1_000, 150, 800, "qwen")
    assert parse_rate("agent=a,rate=1,prompt=10,output=1") == AgentRate("a", 1, 10, 1, None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agent=a,rate=1,prompt=10", "output missing"),
        ("", "FIELD=VALUE"),
        ("agent=a,rate=1,prompt=10,output=1,color=red", "'color=red'"),
        ("agent=a,rate=1,rate=2,prompt=10,output=1", "twice"),
        ("agent=a,rate=0,prompt=10,output=1", "rate must be a number above 0"),
        ("agent=a,rate=nan,prompt=10,output=1", "rate must be"),
        ("agent=a,rate=1,prompt=many,output=1", "'many'"),
        ("agent=a,rate=1,prompt=10,output=0.5", "output must be a number of at least 1"),
        ("agent=,rate=1,prompt=10,output=1", "FIELD=VALUE"),
    ],
)
def test_what_is_wrong_with_a_load_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_rate(text)


def test_requests_of_agents_have_their_rates_and_means() -> None:
    rates = [AgentRate("a", 40, 300, 100, 900), AgentRate("b", 10, 1_000, 20)]
    arrivals = arrivals_of(rates, 500)
    assert arrivals == arrivals_of(rates, 500)
    assert [one.at_s for one in arrivals] == sorted(one.at_s for one in arrivals)
    counts = Counter(one.agent_id for one in arrivals)
    assert counts == {"a": 20_000, "b": 5_000}
    prompts = [one.prompt_tokens for one in arrivals if one.agent_id == "a"]
    # Cut at 8 times the mean, a lognormal distribution of this spread loses 2 % of its mean and 15 % of its deviation.
    assert mean(prompts) == pytest.approx(300, rel=0.05)
    assert stdev(prompts) == pytest.approx(300, rel=0.2)
    assert {one.latency_sla_ms for one in arrivals if one.agent_id == "a"} == {900}
    with pytest.raises(ValueError, match="above 0"):
        rates[0].faster(0)
    assert rates[0].faster(2).rate == 80


def test_the_busiest_window_is_the_one_with_the_most_tokens() -> None:
    arrivals = [
        Arrival(at, "a", tokens, 1) for at, tokens in ((0, 10), (1, 10), (10, 500), (14, 400), (15, 900), (30, 9))
    ]
    window = busiest(arrivals, 5)
    # 14 and 15 s together; 10 s is no longer within 5 s of 15 s.
    assert [(one.at_s, one.prompt_tokens) for one in window] == [(0, 400), (1, 900)]
    assert [one.prompt_tokens for one in busiest(arrivals, 6)] == [500, 400, 900]
    assert busiest(arrivals[:1], 5) == arrivals[:1]


def test_a_trace_is_a_load(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,100,5\n2024-01-01 00:00:04,5000,5\n")
    arrivals = trace_load(path, "by-length", 2.0, 60)
    assert [(one.at_s, one.agent_id) for one in arrivals] == [(0.0, "code-completion"), (2.0, "batch-summary")]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(TraceError, match="no requests"):
        trace_load(path, "chat", 1.0, 60)


def test_agents_are_grouped_by_family_and_what_is_said_of_them_counts_before_their_policy() -> None:
    arrivals = [Arrival(0, name, 10, 1) for name in ("chat", "code", "new")]
    known = [
        AgentPolicy(agent_id="chat", model_family="qwen", latency_sla_ms=800, model="Qwen/Qwen2-7B"),
        AgentPolicy(agent_id="code", model_family="deepseek", latency_sla_ms=2_000, priority=8),
    ]
    rates = [AgentRate("code", 1, 10, 1, sla_ms=1_500, family="qwen")]
    groups = grouped(arrivals, 1, known, rates, default_sla_ms=700)
    assert {group.family: [policy.agent_id for policy in group.policies] for group in groups} == {
        "qwen": ["chat", "code"],
        None: ["new"],
    }
    chat, code = groups[0].policies
    assert (chat.latency_sla_ms, chat.model) == (800, None)
    assert (code.latency_sla_ms, code.priority) == (1_500, 8)
    assert groups[1].policies[0].latency_sla_ms == 700
    assert groups[0].tightest_ms == 800
    assert groups[0].rate == 2


# --- the formula ---


def test_the_steady_state_satisfies_its_equation() -> None:
    mix = Mix.of([Arrival(0, "a", 1_000, 200)])
    # A decoding sequence has 1,000 prompt tokens and, in the mean, half of its answer.
    assert (mix.prompt, mix.output, mix.pairs, mix.context) == (1_000, 200, 500_500, 1_100)
    profile = A100_LLAMA_3_8B
    steady = steady_state(profile, mix, 2.0)
    assert steady is not None
    # In `step_s` seconds 2 x step_s requests come; each has 200 tokens to decode, one a step.
    assert steady.decoding == pytest.approx(2.0 * steady.step_s * 200, rel=1e-3)
    assert steady.tokens == pytest.approx(2.0 * steady.step_s * 1_200, rel=1e-3)
    load = StepLoad(
        tokens=round(steady.tokens),
        attention_pairs=2.0 * steady.step_s * 500_500,
        decode_context=round(steady.decoding * 1_100),
    )
    seconds = CostModel(profile, 0).seconds(load) + steady.decoding * profile.sequence_time_s
    assert steady.step_s == pytest.approx(seconds, rel=0.02)


def test_the_most_that_a_worker_takes_is_where_its_steps_are_full() -> None:
    # Steps of 1 ms and 1 us for each token up to 1,000; nothing else costs.
    profile = replace(
        PROFILE,
        token_times=((0, 0.001), (1_000, 0.002)),
        sequence_time_s=0.0,
        attention_pair_s=0.0,
        kv_bytes_per_token=1,
        max_num_seqs=64,
        max_num_batched_tokens=1_000,
    )
    mix = Mix(prompt=999, output=1, pairs=0, context=1_000)
    # At r requests/s: s = 0.001 + r s 1,000 x 1e-6, so s = 0.001 / (1 - r / 1,000). The budget of 1,000 tokens is
    # full where r s 1,000 = 1,000: r / (1 - r / 1,000) = 1,000, r = 500.
    assert most_requests_s(profile, mix) == pytest.approx(500, rel=0.01)
    assert workers_at(0.7, 1_000, 500) == 3  # 2.86
    assert workers_at(0.7, 0.001, 500) == 1
    assert workers_at(0.7, 1_000, 0.0) is None


def test_the_kv_cache_bounds_a_worker_too() -> None:
    mix = Mix(prompt=100, output=1_000, pairs=0, context=600)
    small = replace(PROFILE, kv_blocks=200, max_model_len=2_000)
    most = most_requests_s(small, mix)
    steady = steady_state(small, mix, most)
    assert steady is not None
    # 85 % of 3,200 tokens.
    assert steady.decoding * 600 == pytest.approx(0.85 * 3_200, rel=0.05)
    assert most < most_requests_s(PROFILE, mix)


def test_an_idle_workers_first_token_is_the_simulated_one() -> None:
    group = group_of(0.1, prompt=5_000, output=2)
    found = trial(group, PROFILE, 1).agents[0]
    assert found.p99_ms == pytest.approx(1_000 * unloaded_first_token_s(PROFILE, 5_000), rel=0.01)


# --- the settings ---


def test_settings_fit_the_load() -> None:
    profile = A100_LLAMA_3_8B
    arrivals = [Arrival(0, "a", 2_000, 200), Arrival(1, "a", 900, 100)]
    settings = fitting_settings(profile, arrivals, 800)
    assert settings.max_model_len == 3_072  # 2,200 up to the next multiple of 1,024
    # (200 x 2,100 + 100 x 950) / 300 tokens of context, 85 % of 448,000: 221 fit, 216 in eights.
    assert settings.max_num_seqs == 216
    # A quarter of 800 ms: 2,048 tokens take about 152 ms, 4,096 about 303.
    assert settings.max_num_batched_tokens == 2_048
    assert full_step_s(profile, 2_048) < 0.2 < full_step_s(profile, 4_096)
    assert fitting_settings(profile, arrivals, 50).max_num_batched_tokens == 512
    assert fitting_settings(profile, arrivals, None).max_num_batched_tokens == 2_048
    assert settings.flags == "--max-model-len 3072 --max-num-seqs 216 --max-num-batched-tokens 2048"
    applied = settings.applied_to(profile)
    assert (applied.max_model_len, applied.max_num_seqs, applied.max_num_batched_tokens) == (3_072, 216, 2_048)


def test_settings_stay_within_the_model_and_its_bounds() -> None:
    arrivals = [Arrival(0, "a", 8_000, 192)]
    assert fitting_settings(A100_LLAMA_3_8B, arrivals, None).max_model_len == 8_192
    short = [Arrival(0, "a", 1, 1)]
    settings = fitting_settings(A100_LLAMA_3_8B, short, 1)
    assert settings == EngineSettings(2_048, 512, 512)
    crowded = replace(PROFILE, kv_blocks=64, max_model_len=1_024)
    assert fitting_settings(crowded, [Arrival(0, "a", 1_000, 20)], None).max_num_seqs == 8


# --- the search ---


@pytest.mark.parametrize("start", [1, 4, 7, 8, 20, 64, 500])
@pytest.mark.parametrize("answer", [1, 2, 7, 8, 33, 64])
def test_the_smallest_number_is_found_from_anywhere(start: int, answer: int) -> None:
    asked: list[int] = []

    def meets(workers: int) -> bool:
        asked.append(workers)
        return workers >= answer

    assert smallest(meets, start, 64) == answer
    assert all(1 <= workers <= 64 for workers in asked)
    assert len(set(asked)) <= 16


def test_fewer_than_the_least_are_never_tried() -> None:
    asked: list[int] = []

    def meets(workers: int) -> bool:
        asked.append(workers)
        return True

    assert smallest(meets, 20, 64, 5) == 5
    assert min(asked) == 5
    assert smallest(meets, 1, 4, 5) is None


def test_a_plan_does_not_load_workers_to_the_brim_though_a_short_simulation_would() -> None:
    group = group_of(120, prompt=2_000, output=100, seconds=5, sla_ms=5_000)
    choice = plan_kind(group, PROFILE)
    assert choice.workers is not None
    assert group.rate / (choice.workers * choice.most_requests_s) <= MOST_LOAD
    assert choice.workers > 1
    crowded = plan_kind(group, PROFILE, most_workers=choice.workers - 1)
    assert "loaded above 85%" in crowded.why_not


def test_nothing_is_found_where_the_most_is_not_enough() -> None:
    assert smallest(lambda _: False, 3, 64) is None


def test_a_plan_is_the_smallest_fleet_that_keeps_the_target() -> None:
    group = group_of(120, prompt=2_000, output=100, seconds=5)
    choice = plan_kind(group, PROFILE)
    assert choice.workers is not None
    assert choice.settings is not None
    tuned = choice.settings.applied_to(PROFILE)
    assert trial(group, tuned, choice.workers).meets(0.99)
    fewest = workers_at(MOST_LOAD, group.rate, choice.most_requests_s)
    assert fewest is not None
    assert choice.workers >= fewest
    if choice.workers > fewest:
        assert not trial(group, tuned, choice.workers - 1).meets(0.99)
    assert choice.result == trial(group, tuned, choice.workers)
    assert choice.devices == choice.workers
    estimate = plan_kind(group, PROFILE, simulate=False)
    assert (estimate.workers, estimate.result) == (choice.estimated, None)
    assert plan_kind(group, PROFILE, simulate=False, most_workers=0).workers is None


def test_kinds_that_cannot_are_told_why() -> None:
    too_long = plan_kind(group_of(1, prompt=20_000), PROFILE)
    assert (too_long.workers, too_long.settings) == (None, None)
    assert "longer than its 16,384 tokens" in too_long.why_not
    too_slow = plan_kind(group_of(1, prompt=10_000, sla_ms=1), PROFILE)
    assert too_slow.workers is None
    assert "even idle" in too_slow.why_not
    too_few = plan_kind(group_of(400, prompt=2_000, output=100, seconds=2, sla_ms=20), PROFILE, most_workers=1)
    assert too_few.workers is None
    assert "loaded above 85%" in too_few.why_not
    # Ten at once, each of which an idle worker could serve in time.
    at_once = replace(group_of(1, sla_ms=7), arrivals=tuple(Arrival(1.0, "chat", 2_000, 5) for _ in range(10)))
    too_late = plan_kind(at_once, PROFILE, most_workers=1)
    assert too_late.workers is None
    assert too_late.why_not.startswith("with 1 of them chat has ")
    assert best([too_long, too_slow, too_few]) is None


def test_the_best_kind_takes_the_fewest_devices() -> None:
    group = group_of(5, seconds=2)
    single = plan_kind(group, PROFILE)
    double = plan_kind(group, replace(PROFILE, name="double", devices=2))
    assert (single.workers, double.devices) == (1, 2)
    assert best([double, single]) is single


def test_cached_prefixes_count_from_their_second_time() -> None:
    arrivals = [
        Arrival(0, "a", 1_100, 1, prefix_blocks=(1, 2)),
        Arrival(1, "a", 1_700, 1, prefix_blocks=(1, 2, 3)),
        Arrival(2, "a", 1_024, 1, prefix_blocks=(1, 2)),
        Arrival(3, "a", 600, 1, prefix_blocks=(4,)),
    ]
    assert least_computed(arrivals) == [1_100, 1_700 - 1_024, 1, 600]
    mix = Mix.of(arrivals[:2])
    # 676 new tokens that look at 1,024 cached ones and, in the mean, at half of themselves.
    assert mix.prompt == (1_100 + 676) / 2
    assert mix.pairs == pytest.approx((1_100 * 1_101 / 2 + 676 * 1_024 + 676 * 677 / 2) / 2)


def test_what_is_refused_or_too_long_is_not_in_time() -> None:
    group = group_of(2, seconds=5)
    longer = Arrival(4.9, "chat", 20_000, 10)
    found = trial(replace(group, arrivals=(*group.arrivals, longer)), PROFILE, 1).agents[0]
    assert found.requests == 11
    assert found.in_time == pytest.approx(10 / 11)
    assert found.shed == pytest.approx(1 / 11)


def test_percentiles_are_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.5) == 50.0
    assert percentile(values, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([], 0.5) != percentile([], 0.5)


def test_kinds_by_name_and_by_family() -> None:
    everything = kinds_named([])
    assert {kind.name for kind in everything} == set(PROFILES) - {"small", "tiny"}
    chosen = kinds_named(["h100-qwen2-7b", "a100-llama-3-8b", "h100-qwen2-7b"])
    assert [kind.name for kind in chosen] == ["h100-qwen2-7b", "a100-llama-3-8b"]
    with pytest.raises(ValueError, match="unknown profile 'b200'"):
        kinds_named(["b200"])
    qwen = Group("Qwen", (CHAT,), (), 1)
    assert [kind.name for kind in kinds_for(qwen, chosen)] == ["h100-qwen2-7b"]
    assert kinds_for(replace(qwen, family=None), chosen) == chosen
    with pytest.raises(ValueError, match="no kind of worker serves family 'whisper', which chat needs"):
        kinds_for(replace(qwen, family="whisper"), chosen)
