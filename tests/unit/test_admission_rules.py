"""The rules of admission as values: what is allowed, which words ask for a report, and that they change live."""

import re

import pytest
from fleet_kit import record
from hypothesis import given
from hypothesis import strategies as st

from recursant.admission.queue import Held, HoldQueue
from recursant.admission.rules import Admission, ClassRules, SlotShares
from recursant.agents.priority import PriorityClass
from recursant.config.load import ConfigError, parse_config
from recursant.fleet.facts import Fact
from recursant.fleet.table import FleetTable


def asks(text: str, *words: str) -> bool:
    return ClassRules(report_words=words).asks_for_report(text)


@pytest.mark.parametrize(
    ("word", "text", "expected"),
    [
        ("report", "Write a report.", True),
        ("report", "REPORT it", True),
        ("report", "reporting live", False),
        ("report", "a misreport", False),
        ("report", "snake_report", False),
        ("analys*", "an analysis of it", True),
        ("analys*", "psychoanalysis", False),
        ("*analysis", "psychoanalysis", True),
        ("*analysis", "psychoanalysist", False),
        ("*总结*", "请总结一下", True),
        ("总结", "请总结一下", False),
        ("step by step", "do it Step by step!", True),
        # No regular expression: what looks like one is text.
        ("a.c", "abc", False),
        ("a.c", "a.c", True),
        ("(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", False),
        ("[x]", "an [x] here", True),
        ("^x", "a ^x", True),
        ("]", "a ] b", True),
        ("-a", "z -a", True),
    ],
)
def test_words_stand_whole_but_where_a_star_is(word: str, text: str, expected: bool) -> None:
    assert asks(text, word) is expected
    # Others beside it change nothing.
    assert asks(text, "zebra", word, "*yak*", "quagga") is expected


# The rule as it was before it could be configured: the specification's "a summary, an analysis or a report".
SPECIFIED = re.compile(r"\b(?:summar(?:y|ies|i[sz]e\w*)|analy[sz]\w*|reports?)\b", re.IGNORECASE)


@given(
    st.lists(
        st.sampled_from(
            ["summar", "y", "ies", "ise", "ize", "analys", "analyz", "e", "is", "d", "report", "s", " ", ".", "_", "é"]
        ),
        max_size=8,
    ).map("".join)
)
def test_the_default_words_are_those_of_the_specification(text: str) -> None:
    assert ClassRules().asks_for_report(text) is (SPECIFIED.search(text) is not None)


def test_no_words_ask_for_nothing() -> None:
    assert not asks("summary of the analysis report")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "admission: {kv_water_mark: 1.2}",
            "f.yaml:1: admission.kv_water_mark: out of range, got 1.2; allowed: a number",
        ),
        ("admission: {kv_water_mark: 85}", "allowed: a number from 0.05 to 1"),
        ("admission: {slot_shares: {low: 0.95}}", "no class may have a larger share than the classes above it"),
        ("admission: {slot_shares: {low: 0}}", "admission.slot_shares.low: out of range"),
        ("admission:\n  rules:\n    report_words: ['', '*']", "f.yaml:3: admission.rules.report_words[0]"),
        ("admission: {rules: {report_words: [a*b]}}", "a * before or behind them"),
        ("admission: {rules: {short_input_token: 3}}", "did you mean short_input_tokens?"),
        ("admission: {ageing_ms: 0}", "admission.ageing_ms: out of range"),
    ],
)
def test_mistakes_are_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f.yaml")
    assert said in str(caught.value)


def test_another_water_mark_keeps_what_was_sent_since_the_report() -> None:
    table = FleetTable(admission=Admission(kv_water_mark=0.85))
    # 1,000 blocks of 16 tokens, half of them used.
    table.upsert(record("w", kv_blocks_total=1_000, kv_block_tokens=16, kv_cache_usage=0.5, max_num_seqs=10))
    [row] = table.candidates().rows.tolist()
    table.acquire(row, 60, 40)
    table.set_admission(Admission(kv_water_mark=0.6))

    def fact(which: int) -> float:
        return float(table.facts(table.candidates().rows)[which, 0])

    assert fact(Fact.KV_ROOM_TOKENS) == pytest.approx((0.6 - 0.5) * 16_000 - 100)
    table.set_admission(Admission(kv_water_mark=0.9, slot_shares=SlotShares(normal=0.5, low=0.01)))
    assert fact(Fact.KV_ROOM_TOKENS) == pytest.approx((0.9 - 0.5) * 16_000 - 100)
    # Of few slots each class may use one at least.
    places = [fact(Fact.PLACES_LOW + each) for each in PriorityClass]
    assert places == [1.0, 5.0, 10.0, 10.0]
    # The next report goes by the newest, too.
    table.release(row, 60, 40)
    table.upsert(record("w", kv_blocks_total=1_000, kv_block_tokens=16, kv_cache_usage=0.2, max_num_seqs=20))
    assert fact(Fact.KV_ROOM_TOKENS) == pytest.approx((0.9 - 0.2) * 16_000)
    assert fact(Fact.PLACES_NORMAL) == 10.0


def test_a_smaller_queue_sends_nobody_away_and_takes_nobody_in() -> None:
    queue: HoldQueue[str] = HoldQueue(3, ageing_s=4.0)
    low = [Held(name, "a", PriorityClass.LOW, 0.0, 60.0) for name in ("first", "second", "third")]
    for held in low:
        assert queue.push(held) is None
    queue.set_limits(1, ageing_s=1.0)
    assert len(queue) == 3
    fourth = Held("fourth", "a", PriorityClass.LOW, 0.0, 60.0)
    assert queue.push(fourth) is fourth
    # A higher class still takes the place of the youngest.
    assert queue.push(Held("urgent", "b", PriorityClass.HIGH, 0.0, 60.0)) is low[2]
    # What waiting is worth has changed, too.
    assert queue.aged(low[0], 1.0) is PriorityClass.NORMAL
