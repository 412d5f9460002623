"""The arithmetic of the gateway benchmark: which rows there are, their medians, their ratios."""

from itertools import pairwise

import pytest

from bench.gateway.cases import (
    DIRECT,
    GRPCIO,
    LEAN,
    MODES,
    NOOP,
    NOOP_GO,
    NOOPS,
    OURS,
    PLAIN,
    WORKERS,
    Case,
    cases_of,
    rotated,
)
from bench.gateway.rows import Row, Samples, ratio, row_of
from bench.gateway.table import COLUMNS, document, markdown

HEADERS = MODES[0]


def row(server: str, cpu_us: float, *, mode: str = "headers", connections: int = 1) -> Row:
    return Row(server, mode, 100, connections, cpu_us, 0.5, 1.25, 1_000, 200.0, None, 0.25)


def test_yardsticks_have_a_row_at_the_usual_fleet_alone() -> None:
    found = cases_of(HEADERS, OURS, NOOPS)
    for connections in HEADERS.connections:
        for workers in WORKERS:
            servers = {each.server for each in found if (each.connections, each.workers) == (connections, workers)}
            assert servers == ({*OURS, PLAIN, *NOOPS, DIRECT} if workers == 100 else {*OURS, PLAIN})


def test_what_cannot_be_had_has_no_row() -> None:
    servers = {each.server for each in cases_of(HEADERS, (LEAN, GRPCIO), (NOOP,))}
    assert servers == {LEAN, GRPCIO, PLAIN, NOOP, DIRECT}


def test_each_round_begins_with_another_server_and_keeps_what_is_compared_together() -> None:
    cases = cases_of(HEADERS, OURS, NOOPS)
    turns = [rotated(cases, turn) for turn in range(7)]
    for turn in turns:
        assert sorted(turn) == sorted(cases)
        groups = [(each.workers, each.connections) for each in turn]
        changes = sum(a != b for a, b in pairwise(groups))
        assert changes == len(set(groups)) - 1
    assert len({turn[0].server for turn in turns}) == len([*OURS, PLAIN])


def test_a_row_is_the_median_of_the_rounds_and_what_is_added_that_of_their_differences() -> None:
    mine, plain = (Case("headers", 100, 1, server) for server in (LEAN, PLAIN))
    samples = {
        mine: Samples([90.0, 100.0, 200.0], [300.0] * 3, [0.5, 1.0, 3.0], [2.0] * 3, [900.0, 1_000.0, 1_100.0]),
        plain: Samples([50.0] * 3, [50.0] * 3, [0.25, 0.5, 2.75], [1.0, 1.5, 3.0], [5_000.0] * 3),
    }
    found = row_of(mine, samples)
    assert (found.cpu_us_per_request, found.p50_ms, found.rps) == (100.0, 1.0, 1_000)
    # Differences of the rounds: 0.25, 0.5, 0.25 and 1, 0.5, -1; not the difference of the medians.
    assert (found.added_p50_ms, found.added_p99_ms) == (0.25, 0.5)
    assert row_of(plain, samples).added_p50_ms is None


def test_ratios_are_within_a_mode_and_a_number_of_clients() -> None:
    rows = [row(LEAN, 100.0), row(NOOP, 400.0), row(NOOP_GO, 80.0), row(NOOP, 1.0, connections=32)]
    assert ratio(rows[0], rows, NOOP) == pytest.approx(0.25)
    assert ratio(rows[0], rows, NOOP_GO) == pytest.approx(1.25)
    assert ratio(rows[1], rows, NOOP_GO) == pytest.approx(5.0)
    assert ratio(rows[3], rows, NOOP_GO) is None
    assert ratio(row(PLAIN, 50.0), rows, NOOP) is None


def test_the_table_of_the_docs() -> None:
    rows = [row(LEAN, 100.0), row(NOOP, 400.0), *(row(LEAN, 50.0, connections=clients) for clients in (4, 32))]
    rows += [row(LEAN, 100.0, mode="body-1m", connections=clients) for clients in (1, 8)]
    lines = markdown(rows, rows[:1]).splitlines()
    assert [each.strip() for each in lines[0].strip("|").split("|")] == list(COLUMNS)
    assert lines[2] == "| headers | 100 | 1 | lean | 100 | 0.25 |  | 200 | 0.50 | 1.25 |  | +0.25 | 1000 |"
    alone, rest = document(rows).split("## A few clients")
    few, saturated = rest.split("## Saturated")

    def clients_in(text: str) -> list[tuple[str, str]]:
        rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "| lean |" in line]
        return [(cells[1], cells[3]) for cells in rows]

    assert clients_in(alone) == [("headers", "1"), ("body-1m", "1")]
    assert clients_in(few) == [("headers", "4")]
    assert clients_in(saturated) == [("headers", "32"), ("body-1m", "8")]
