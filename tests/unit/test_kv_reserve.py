"""What is kept free of a worker's KV cache for the requests in flight there: exact, and enough."""

import random
from pathlib import Path

import pytest
from fleet_kit import record, table_of
from hypothesis import given, settings
from hypothesis import strategies as st

from recursant.admission.memory import END_MARK, CacheReport
from recursant.admission.rules import WATER_MARK
from recursant.config.model import ScoreWeights
from recursant.fleet.counts_file import CountsFile
from recursant.fleet.facts import Fact
from recursant.fleet.shared_slots import SharedSlots
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import WorkerRecord
from recursant.routing.need import Need
from recursant.routing.picker import Pick, pick

BLOCKS, BLOCK_TOKENS = 100, 16
TOKENS = BLOCKS * BLOCK_TOKENS
# What may be used now, and what may be held when all requests have ended: 1,360 and 1,440 tokens.
NOW, AT_END = WATER_MARK * TOKENS, END_MARK * TOKENS


def worker(used: int = 0, running: int = 0, *, incarnation: str = "first") -> WorkerRecord:
    """A worker of 1,600 tokens of KV cache."""
    return record(
        "w1",
        kv_blocks_total=BLOCKS,
        kv_block_tokens=BLOCK_TOKENS,
        kv_cache_usage=used / TOKENS,
        running_requests=running,
        max_num_seqs=64,
        incarnation=incarnation,
    )


def room(table: FleetTable) -> float:
    return float(table.facts(table.candidates().rows)[Fact.KV_ROOM_TOKENS, 0])


def test_a_beat_does_not_forget_what_running_requests_will_still_write() -> None:
    table = table_of(worker())
    [row] = table.candidates().rows.tolist()
    for _ in range(2):
        table.acquire(row, 200, 300)
    # Both have their prompts in, and 10 tokens of their answers.
    table.upsert(worker(used=420, running=2))
    assert room(table) == AT_END - 1_000
    # One ends, with all of its answer; the next beat sees it gone.
    table.upsert(worker(used=1_000, running=2))
    table.release(row, 200, 300)
    assert room(table) == NOW - 1_000
    table.upsert(worker(used=500, running=1))
    assert room(table) == NOW - 500
    table.release(row, 200, 300)
    table.upsert(worker())
    assert room(table) == NOW


@pytest.mark.parametrize(
    ("used", "running", "waiting", "at_end"),
    [
        # One has its prompt in; the other waits in the engine, is on its way there, or waits behind a probe.
        (400, 1, 1, 1_200),
        (400, 1, 0, 1_200),
        (420, 2, 0, 1_200),
        (420, 2, 1, 1_220),
        # One has half of its prompt in: an engine reads a long one piece by piece.
        (600, 2, 0, 1_200),
    ],
)
def test_a_prompt_that_is_not_in_the_cache_yet_counts_though_the_engine_has_it(
    used: int, running: int, waiting: int, at_end: int
) -> None:
    table = table_of(worker())
    [row] = table.candidates().rows.tolist()
    for _ in range(2):
        table.acquire(row, 400, 200)
    beat = worker(used, running)
    # As vLLM, it does not say how long the prompts are that it has still to read.
    beat.state.waiting_requests = waiting
    table.upsert(beat)
    # A third one of 600 would need more than there is.
    assert room(table) == AT_END - at_end


def test_what_takes_the_place_of_another_one_counts_once_until_the_next_beat() -> None:
    table = table_of(worker())
    [row] = table.candidates().rows.tolist()
    table.acquire(row, 200, 300)
    table.upsert(worker(used=400, running=1))
    table.release(row, 200, 300)
    # Its 400 tokens are in the report still.
    assert room(table) == NOW - 400
    table.acquire(row, 300, 200)
    assert room(table) == NOW - 400 - 100
    table.acquire(row, 100, 150)
    # All that is there comes to 750 at its end.
    assert room(table) == AT_END - 750


def test_a_worker_that_comes_back_still_counts_with_what_has_not_ended() -> None:
    table = table_of(worker())
    [row] = table.candidates().rows.tolist()
    table.acquire(row, 200, 300)
    table.remove("w1")
    table.upsert(worker(incarnation="second"))
    assert table.candidates().rows.tolist() == [row]
    assert room(table) == AT_END - 500
    table.release(row, 200, 300)
    assert room(table) == NOW


def test_a_request_that_ends_after_its_worker_left_leaves_nothing() -> None:
    table = table_of(worker())
    [row] = table.candidates().rows.tolist()
    table.acquire(row, 200, 300)
    table.remove("w1")
    table.release(row, 200, 300)
    table.upsert(worker())
    assert room(table) == NOW


def test_a_release_with_other_numbers_is_refused_and_changes_nothing() -> None:
    table = table_of(worker())
    [row] = table.candidates().rows.tolist()
    table.acquire(row, 200, 300)
    for wrong in ((0, 0), (200, 301), (201, 299), (200, 299)):
        with pytest.raises(ValueError, match="other tokens"):
            table.release(row, *wrong)
    assert table.in_flight_total() == 1
    table.release(row, 200, 300)
    assert room(table) == NOW


lengths = st.tuples(st.integers(0, 500), st.integers(0, 500))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), lengths),
        st.tuples(st.just("end"), st.integers(0, 100)),
        st.tuples(st.just("beat"), st.tuples(st.integers(0, TOKENS), st.integers(0, 5))),
        st.just(("leave", 0)),
        st.just(("restart", 0)),
    ),
    max_size=40,
)


@given(steps)
def test_the_sums_are_those_of_the_requests_in_flight_whatever_happens(
    steps: list[tuple[str, object]],
) -> None:
    table = table_of(worker())
    here = True
    flying: list[tuple[int, tuple[int, int]]] = []
    for step in steps:
        match step:
            case ("send", (int(prompt), int(answer))) if here:
                [row] = table.candidates().rows.tolist()
                table.acquire(row, prompt, answer)
                flying.append((row, (prompt, answer)))
            case ("end", int(which)) if flying:
                row, tokens = flying.pop(which % len(flying))
                table.release(row, *tokens)
            case ("beat", (int(used), int(running))):
                table.upsert(worker(used, running))
                here = True
            case ("restart", _):
                table.upsert(worker(incarnation="other"))
                here = True
            case ("leave", _):
                table.remove("w1")
                here = False
    # A beat of an idle engine tells whether anything is left behind.
    table.upsert(worker())
    assert room(table) == min(NOW, AT_END - sum(sum(tokens) for _, tokens in flying))
    for row, tokens in flying:
        table.release(row, *tokens)
    table.upsert(worker())
    assert (room(table), table.in_flight_total()) == (NOW, 0)


@given(
    st.integers(0, TOKENS),
    st.integers(0, 500),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 2_000),
    st.integers(0, 2_000),
    st.integers(0, 500),
)
def test_what_is_used_leaves_no_more_room_and_more_in_flight_makes_none(
    used: int, waiting: int, running: int, in_flight: int, prompts: int, answers: int, more: int
) -> None:
    state = worker(used, running).state
    state.waiting_tokens = waiting
    cache = CacheReport.of(state, in_flight)
    assert cache is not None
    free = cache.room(WATER_MARK, prompts, answers)
    assert NOW - used - waiting - prompts - answers <= free <= NOW - used - waiting
    # One more that was sent since the beat, whatever its length, takes no less than nothing and no more than it holds.
    assert free - 2 * more <= cache.room(WATER_MARK, prompts + more, answers + more, (more, more)) <= free


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 64))
def test_an_engine_whose_requests_keep_to_their_lengths_never_needs_more_than_it_has(
    seed: int, beat_every: int
) -> None:
    """Requests come as often as they are let in, write a token a step, and end; beats come now and then."""
    rng = random.Random(seed)
    table = table_of(worker())
    running: list[list[int]] = []
    for step in range(400):
        prompt, answer = rng.randint(1, 400), rng.randint(1, 400)
        need = Need(family="qwen", prompt_tokens=prompt, expected_tokens=answer)
        found = pick(table, need, weights=ScoreWeights(), candidates=1, rng=rng)
        if isinstance(found, Pick):
            table.acquire(found.rows[0], need.prompt_tokens, need.answer_tokens)
            running.append([prompt, answer, 0])
        for request in running:
            request[2] += 1
        for request in [each for each in running if each[2] >= each[1]]:
            running.remove(request)
            table.release(0, request[0], request[1])
        # Every sequence has blocks of its own: the last one is not full.
        blocks = sum(-(-(prompt + written) // BLOCK_TOKENS) for prompt, _, written in running)
        assert blocks <= BLOCKS
        if step % beat_every == 0:
            table.upsert(worker(blocks * BLOCK_TOKENS, len(running)))


def test_another_process_takes_room_at_once_and_gives_it_back(tmp_path: Path) -> None:
    files = [CountsFile(tmp_path / "inflight", process=number, processes=2, columns=4) for number in (1, 2)]
    one, two = (FleetTable(SharedSlots(file)) for file in files)
    for table in (one, two):
        table.upsert(worker())
    [row] = one.candidates().rows.tolist()
    two.acquire(row, 200, 300)
    # The other one sees it from outside, as sent since the beat, and there it counts to the lower mark.
    assert (room(one), room(two)) == (NOW - 500, NOW - 500)
    # A beat of when the prompt was in: the answer is still to come, for both.
    for table in (one, two):
        table.upsert(worker(used=200, running=1))
    assert (room(one), room(two)) == (AT_END - 500, AT_END - 500)
    # Given back, and taken by another one: no more is there than at the beat.
    two.release(row, 200, 300)
    two.acquire(row, 300, 100)
    assert room(one) == AT_END - 500
    two.release(row, 300, 100)
    two.acquire(row, 200, 300)
    one.acquire(row, 100, 100)
    assert (room(one), room(two)) == (AT_END - 700, AT_END - 700)
    two.release(row, 200, 300)
    one.release(row, 100, 100)
    for table in (one, two):
        table.upsert(worker())
    assert (room(one), room(two)) == (NOW, NOW)


def test_what_a_killed_process_had_is_seen_with_the_next_beat(tmp_path: Path) -> None:
    ours, theirs = (CountsFile(tmp_path / "inflight", process=number, processes=2, columns=4) for number in (1, 2))
    one, two = FleetTable(SharedSlots(ours)), FleetTable(SharedSlots(theirs))
    for table in (one, two):
        table.upsert(worker())
    two.acquire(0, 200, 300)
    one.upsert(worker(used=250, running=1))
    theirs.close()
    # Its request still runs there, and belongs to nobody: from the next beat on it counts with what it holds.
    one.upsert(worker(used=300, running=1))
    assert room(one) == NOW - 300
