"""Prompts that workers have still to read count where they are, for as long as they are unread and no longer."""

import random
from collections.abc import Sequence

from fleet_kit import record, table_of
from hypothesis import given
from hypothesis import strategies as st

from recursant.config.model import ScoreWeights
from recursant.fleet.facts import Fact
from recursant.fleet.prompts import ATTENTION_DOUBLES_AT, LEAST_S, SLOWEST_PREFILL_TOKENS_S, Prompts, prefill_work
from recursant.fleet.table import FleetTable
from recursant.routing.need import Need
from recursant.routing.picker import Pick, pick_afresh
from recursant.routing.ranking import RankedPicker

ADAPTIVE = ScoreWeights(profile="adaptive")


def unread(table: FleetTable, row: int = 0) -> float:
    return table.facts_of_one(row)[Fact.UNREAD_WORK]


def test_a_short_prompt_is_its_length_and_a_long_one_twice_that() -> None:
    assert prefill_work(0) == 0
    assert prefill_work(100) == 100
    assert prefill_work(ATTENTION_DOUBLES_AT) == 2 * ATTENTION_DOUBLES_AT
    # 1,000 tokens after 9,000 cached ones: they still look at all of those.
    assert prefill_work(10_000, 9_000) == 1_000 + (10_000**2 - 9_000**2) // ATTENTION_DOUBLES_AT


def test_it_counts_until_the_answer_begins() -> None:
    table = table_of(record("w1"))
    prompts = Prompts(table)
    first, second = prompts.sent(0, 1_000, 0, now=0.0), prompts.sent(0, 500, 100, now=0.0)
    assert unread(table) == prefill_work(1_000) + prefill_work(500, 100)
    prompts.read(first)
    prompts.read(first)
    assert unread(table) == prefill_work(500, 100)
    prompts.read(second)
    assert unread(table) == 0


def test_reports_do_not_change_it_but_the_end_of_its_time_does() -> None:
    table = table_of(record("w1"))
    prompts = Prompts(table)
    long = 8 * SLOWEST_PREFILL_TOKENS_S
    prompt = prompts.sent(0, long, 0, now=0.0)
    prompts.sent(0, 10, 0, now=0.0)
    table.upsert(record("w1"))
    assert unread(table) == prefill_work(long) + 10
    prompts.expire(LEAST_S)
    assert unread(table) == prefill_work(long)
    prompts.expire(prefill_work(long) / SLOWEST_PREFILL_TOKENS_S)
    assert unread(table) == 0
    prompts.read(prompt)
    assert unread(table) == 0


def test_a_worker_that_reads_a_long_prompt_gets_no_short_one_though_it_reports_nothing() -> None:
    table = table_of(record("w1", running_requests=1), record("w2", running_requests=3))
    found = pick_afresh(table, Need(prompt_tokens=100), ADAPTIVE, 2, 0.5)
    assert isinstance(found, Pick)
    assert table.worker_id(found.rows[0]) == "w1"
    Prompts(table).sent(found.rows[0], 50_000, 0, now=0.0)
    found = pick_afresh(table, Need(prompt_tokens=100), ADAPTIVE, 2, 0.5)
    assert isinstance(found, Pick)
    assert table.worker_id(found.rows[0]) == "w2"


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["send", "read", "wait"]), st.integers(0, 3), st.integers(1, 60_000)), max_size=40
    )
)
def test_whatever_happens_nothing_stays_counted_and_rankings_follow(steps: Sequence[tuple[str, int, int]]) -> None:
    table = table_of(*(record(f"w{number}") for number in range(1, 5)))
    prompts = Prompts(table)
    ranked, draws = RankedPicker(table, random.Random(5)), random.Random(5)
    under_way = []
    now = 0.0
    for action, row, tokens in steps:
        match action:
            case "send":
                under_way.append(prompts.sent(row, tokens, tokens // 2, now))
            case "read" if under_way:
                prompts.read(under_way.pop(row % len(under_way)))
            case _:
                now += tokens / 10_000
                prompts.expire(now)
        assert all(unread(table, each) >= 0 for each in range(4))
        afresh = pick_afresh(table, Need(prompt_tokens=100), ADAPTIVE, 3, draws.random())
        assert ranked.pick(Need(prompt_tokens=100), ADAPTIVE, 3) == afresh
    for prompt in under_way:
        prompts.read(prompt)
    assert [unread(table, each) for each in range(4)] == [0.0] * 4
