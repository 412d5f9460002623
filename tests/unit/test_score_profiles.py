"""The profile `adaptive` of the score, by hand."""

import random

import numpy as np
import pytest
from fleet_kit import record, table_of

from recursant.config.model import ScoreWeights
from recursant.fleet.facts import Fact
from recursant.fleet.table import FleetTable
from recursant.routing.need import Need
from recursant.routing.picker import Pick, pick
from recursant.routing.scorers import LEAST_WORK, WORK_OF_A_HELD_TOKEN, WORK_OF_A_REQUEST, load_of, peaks, score, terms

ADAPTIVE = ScoreWeights(profile="adaptive")
KV = {"kv_blocks_total": 1_000, "kv_blocks_free": 1_000, "kv_block_tokens": 16, "kv_cache_usage": 0.0}


def best(table: FleetTable, prompt: int = 100, weights: ScoreWeights = ADAPTIVE) -> str:
    found = pick(table, Need(family="qwen", prompt_tokens=prompt), weights=weights, candidates=1, rng=random.Random(1))
    assert isinstance(found, Pick)
    return table.worker_id(found.rows[0])


def test_the_work_ahead_is_what_waits_what_was_sent_and_what_is_there() -> None:
    state = {"peak_token_rate": 1_000.0, "waiting_tokens": 300, "running_requests": 2, "max_num_seqs": 64}
    table = table_of(record("w1", **{**KV, "kv_cache_usage": 0.25}, **state))
    rows = table.candidates(family="qwen").rows
    table.acquire(int(rows[0]), prompt_tokens=500, answer_tokens=200)
    facts = table.facts(rows)
    held = 0.25 * 16_000 + 700
    wanted = LEAST_WORK + (300 + 500) + 3 * WORK_OF_A_REQUEST + held * WORK_OF_A_HELD_TOKEN
    work, _ = terms(facts, peaks(facts), load_of(facts), ADAPTIVE, np.fmax, urgent=False)
    assert work == pytest.approx([wanted])
    # The next report has seen it all.
    table.upsert(record("w1", **{**KV, "kv_cache_usage": 0.25}, **state))
    assert table.facts(rows)[Fact.PROMPT_TOKENS_SENT] == pytest.approx([0.0])
    assert table.facts(rows)[Fact.KV_HELD_TOKENS] == pytest.approx([4_000.0])


def test_a_long_prompt_weighs_more_than_several_short_ones() -> None:
    table = table_of(
        record("w1", peak_token_rate=1_000.0, running_requests=1, waiting_tokens=8_000, max_num_seqs=64),
        record("w2", peak_token_rate=1_000.0, running_requests=4, waiting_tokens=0, max_num_seqs=64),
    )
    assert best(table) == "w2"
    assert best(table, weights=ScoreWeights()) == "w1"


def test_a_fast_worker_may_have_more_ahead_than_a_slow_one() -> None:
    table = table_of(
        record("w1", peak_token_rate=4_000.0, running_requests=1, waiting_tokens=1_000, max_num_seqs=64),
        record("w2", peak_token_rate=1_000.0, running_requests=0, waiting_tokens=0, max_num_seqs=64),
    )
    # 100 + 128 + 1,000 + 100 on the fast one; 4 x (100 + 128) on the slow one.
    assert best(table, 100) == "w2"
    # With 2,000 tokens of its own: 3,228 against 8,512.
    assert best(table, 2_000) == "w1"


def test_the_best_candidate_has_the_score_1_and_unknown_facts_count_as_nothing() -> None:
    table = table_of(record("w1", max_num_seqs=64), record("w2", running_requests=3, max_num_seqs=64))
    rows = table.candidates(family="qwen").rows
    facts = table.facts(rows)
    scores = score(facts, load_of(facts), ADAPTIVE, 72)
    assert np.max(scores) == 1.0
    # 72 + 128, and 3 x 100 more.
    assert np.min(scores) == pytest.approx(200 / 500)
