"""Figures: what the rounds gave, and the rows that are published."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.gateway.cases import DIRECT, NOOPS, OURS, PLAIN, Case


@dataclass
class Samples:
    """What the rounds gave for one case, one entry a round."""

    cpu_us: list[float] = field(default_factory=list)
    envoy_us: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    rps: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """One line of the table: medians over the rounds.

    Attributes:
        cpu_us_per_request: of the process under test, all its threads, user and system: the ext_proc server
            (heartbeats taken off), Envoy for `envoy-only`, the backend for `direct`.
        envoy_us_per_request: of Envoy.
        added_p50_ms, added_p99_ms: over plain Envoy, the median of the rounds' differences.
    """

    server: str
    mode: str
    workers: int
    connections: int
    cpu_us_per_request: float
    p50_ms: float
    p99_ms: float
    rps: float
    envoy_us_per_request: float
    added_p50_ms: float | None
    added_p99_ms: float | None


@dataclass(frozen=True)
class Beats:
    """What heartbeats cost an extproc process that has nothing else to do."""

    server: str
    workers: int
    beats_per_s: float
    cpu_us_per_s: float


def row_of(case: Case, samples: Mapping[Case, Samples]) -> Row:
    """The row of a case, from the samples of all."""
    found = samples[case]
    plain = samples[Case(case.mode, case.workers, case.connections, PLAIN)]

    def added(mine: list[float], theirs: list[float]) -> float | None:
        if case.server in (PLAIN, DIRECT):
            return None
        return round(statistics.median(a - b for a, b in zip(mine, theirs, strict=True)), 3)

    return Row(
        case.server,
        case.mode,
        case.workers,
        case.connections,
        round(statistics.median(found.cpu_us), 1),
        round(statistics.median(found.p50_ms), 3),
        round(statistics.median(found.p99_ms), 3),
        round(statistics.median(found.rps)),
        round(statistics.median(found.envoy_us), 1),
        added(found.p50_ms, plain.p50_ms),
        added(found.p99_ms, plain.p99_ms),
    )


def ratio(row: Row, rows: list[Row], noop: str) -> float | None:
    """CPU time against a no-op of the same mode and connections; None where there is nothing to compare."""
    if row.server not in OURS and row.server not in NOOPS:
        return None
    for each in rows:
        if (each.server, each.mode, each.connections) == (noop, row.mode, row.connections):
            return row.cpu_us_per_request / each.cpu_us_per_request
    return None
