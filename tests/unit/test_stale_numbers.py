"""What a pick makes of numbers that are old: the requests in flight are ours, and always new."""

import random
from collections import Counter

from fleet_kit import record, table_of

from recursant.agents.priority import PriorityClass
from recursant.config.model import ScoreWeights
from recursant.fleet.table import FleetTable
from recursant.routing.need import Need
from recursant.routing.picker import Pick, pick

NEED = Need(family="qwen", count_as=PriorityClass.HIGH)


def place(table: FleetTable, rng: random.Random) -> str:
    """Pick and count, as the gateway does."""
    found = pick(table, NEED, weights=ScoreWeights(), candidates=2, rng=rng)
    assert isinstance(found, Pick)
    table.acquire(found.rows[0])
    return table.worker_id(found.rows[0])


def test_a_worker_with_old_idle_numbers_does_not_attract_everything() -> None:
    table = table_of(record("w1", max_num_seqs=64), record("w2", max_num_seqs=64))
    rng = random.Random(5)
    placed: Counter[str] = Counter()
    for _ in range(60):
        placed[place(table, rng)] += 1
        # One tells the truth after every request; the other was idle when it spoke last.
        table.upsert(record("w2", max_num_seqs=64, running_requests=placed["w2"]))
    assert abs(placed["w1"] - placed["w2"]) <= 2


def test_without_reports_least_in_flight_decides() -> None:
    table = table_of(record("w1"), record("w2"), record("w3"))
    rng = random.Random(6)
    for _ in range(20):
        table.acquire(0)
    placed = Counter(place(table, rng) for _ in range(30))
    # The first has twenty already: the others are filled first.
    assert placed["w1"] == 0
    assert abs(placed["w2"] - placed["w3"]) <= 1


def test_old_busy_numbers_do_not_shut_a_worker_out_for_ever() -> None:
    # It said to be busy, and fell silent; all that it had of ours has ended since.
    table = table_of(record("w1", running_requests=0), record("w2", running_requests=0))
    rng = random.Random(7)
    rows = [0] * 8
    for row in rows:
        table.acquire(row)
    table.upsert(record("w1", running_requests=8))
    for row in rows:
        table.release(row)
    placed = Counter(place(table, rng) for _ in range(20))
    assert abs(placed["w1"] - placed["w2"]) <= 2
