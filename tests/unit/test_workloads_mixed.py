"""Generated loads: the rates, lengths and prefixes that they were asked for, the same for the same seed."""

import random
from collections import Counter, defaultdict
from itertools import pairwise
from statistics import mean, median

import pytest

from recursant.sim.fleet.spec import FaultKind
from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.fault_plans import errors_everywhere, leaking_worker
from recursant.sim.workloads.mixed import MIXED, SHORT_AND_VERY_LONG, Lengths, mixed
from recursant.sim.workloads.poisson import Bursts, arrival_times


def load(seed: int = 1) -> list[Arrival]:
    return list(mixed(MIXED, rate=20.0, seconds=300.0, seed=seed))


def test_a_seed_gives_the_same_load_and_another_seed_another() -> None:
    assert load(1) == load(1)
    assert load(1) != load(2)


def test_shares_and_rate_are_as_asked() -> None:
    arrivals = load()
    # 6,000 expected; 5 standard deviations of a Poisson count.
    assert len(arrivals) == pytest.approx(6_000, abs=5 * 6_000**0.5)
    counts = Counter(arrival.agent_id for arrival in arrivals)
    for agent in MIXED:
        assert counts[agent.agent_id] / len(arrivals) == pytest.approx(agent.share, abs=0.035)
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)
    assert times[0] >= 0.0
    assert times[-1] < 300.0


def test_70_percent_are_short_by_the_rule_of_the_classes_and_30_percent_very_long() -> None:
    arrivals = list(mixed(SHORT_AND_VERY_LONG, rate=20.0, seconds=300.0, seed=3))
    short = [arrival for arrival in arrivals if arrival.prompt_tokens < 512 and arrival.output_tokens < 128]
    assert len(short) / len(arrivals) == pytest.approx(0.7, abs=0.03)
    assert {arrival.agent_id for arrival in short} == {"short"}
    for arrival in arrivals:
        if arrival.agent_id == "long":
            assert arrival.prompt_tokens >= 4_096
            assert arrival.prompt_tokens + arrival.output_tokens <= 8_192


def test_lengths_have_the_median_and_the_percentile_that_they_name() -> None:
    lengths = Lengths(129, 601, 1, 100_000)
    source = random.Random(0)
    drawn = sorted(lengths.draw(source) for _ in range(20_000))
    assert median(drawn) == pytest.approx(129, rel=0.05)
    assert drawn[19_800] == pytest.approx(601, rel=0.1)


def test_conversations_grow_and_share_their_prefixes() -> None:
    turns: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in load():
        if arrival.agent_id == "chat-web":
            turns[arrival.session_id].append(arrival)
    assert mean(len(each) for each in turns.values()) == pytest.approx(3.0, rel=0.15)
    system = {arrival.prefix_blocks[0] for each in turns.values() for arrival in each}
    assert len(system) == 1
    for each in turns.values():
        for before, after in pairwise(each):
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
            assert after.prefix_blocks[: len(before.prefix_blocks)] == before.prefix_blocks
    owners: dict[int, set[str]] = defaultdict(set)
    for session, each in turns.items():
        for arrival in each:
            assert len(arrival.prefix_blocks) == arrival.prompt_tokens // 512
            for block in arrival.prefix_blocks[1:]:
                owners[block].add(session)
    assert all(len(sessions) == 1 for sessions in owners.values())


def test_a_conversation_stays_within_the_context() -> None:
    for arrival in mixed(MIXED[:1], rate=50.0, seconds=100.0, seed=5, max_context=4_096):
        assert arrival.prompt_tokens + arrival.output_tokens <= 4_096


def test_who_stands_alone_has_no_session() -> None:
    assert {arrival.session_id for arrival in load() if arrival.agent_id != "chat-web"} == {""}


def test_bursts_keep_the_mean_rate_and_raise_the_dispersion() -> None:
    bursts = Bursts(factor=4.0, every_s=30.0, seconds=5.0)
    # By hand: 25 of 30 s at r, 5 of 30 s at 4 r are 10 a second together where r = 10 / 1.5.
    assert bursts.calm_rate(10.0) == pytest.approx(10.0 / 1.5)
    seconds = 20_000

    def dispersion(given: Bursts | None) -> tuple[float, float]:
        counts = Counter(int(at) for at in arrival_times(10.0, seconds, random.Random(1), given))
        per_second = [counts[second] for second in range(seconds)]
        rate = mean(per_second)
        return rate, mean((count - rate) ** 2 for count in per_second) / rate

    rate, index = dispersion(None)
    assert rate == pytest.approx(10.0, rel=0.02)
    assert index == pytest.approx(1.0, abs=0.1)  # Poisson
    rate, index = dispersion(bursts)
    assert rate == pytest.approx(10.0, rel=0.1)
    assert index > 3.0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_must_be_above_zero(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        list(mixed(MIXED, rate=rate, seconds=10.0))


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one agent"):
        mixed((), rate=1.0, seconds=1.0)
    with pytest.raises(ValueError, match="median <= p99"):
        Lengths(100, 50, 1, 10)
    with pytest.raises(ValueError, match="bursts"):
        Bursts(every_s=5.0, seconds=5.0)
    with pytest.raises(ValueError, match="0 to 1"):
        errors_everywhere(1.5)
    with pytest.raises(ValueError, match="0 to 1"):
        errors_everywhere(-0.1)


def test_five_percent_of_errors_are_five_percent_whatever_their_kinds() -> None:
    resets, server = errors_everywhere()
    assert (resets.kind, server.kind) == (FaultKind.RESETS, FaultKind.SERVER_ERRORS)
    # A worker draws for one kind after the other.
    assert resets.share + (1 - resets.share) * server.share == pytest.approx(0.05)
    [plain] = errors_everywhere(0.05, FaultKind.RESETS)
    assert (plain.kind, plain.share, plain.worker) == (FaultKind.RESETS, 0.05, None)
    [leak] = leaking_worker(3, at_s=10.0)
    assert (leak.kind, leak.worker, leak.at_s) == (FaultKind.LEAK, 3, 10.0)
