"""The comparison with other gateways: its arithmetic, and what becomes of one that fails."""

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.gateway.rig import Rig
from bench.peer_servers import COMMANDS, Peer, pinned
from bench.peers import COLUMNS, CONNECTIONS, OURS, Absent, Sample, markdown, rounds_of, row_of

US, OTHER = (Peer(name, "1.0", port, [os.getpid()]) for name, port in ((OURS, 1), ("other", 2)))


class Load:
    """Answers as the load does; `failing` ports do not serve from their `failing`-th run on."""

    def __init__(self, failing: dict[int, int]) -> None:
        self._left = failing

    async def ask(self, *, port: int, requests: int, **_: Any) -> dict[str, Any]:
        if port in self._left:
            self._left[port] -= 1
            if self._left[port] < 0:
                return {"failed": "not 200", "micros": [], "seconds": 1.0}
        return {"failed": None, "micros": [1_000 * port] * requests, "seconds": 2.0}


def rig(failing: dict[int, int]) -> Rig:
    return cast("Rig", SimpleNamespace(load=Load(failing)))


def test_every_peer_is_pinned_and_can_be_started() -> None:
    assert set(pinned()) == set(COMMANDS)
    assert all(requirement.count("==") == 1 for requirement in pinned().values())


def test_a_row_is_the_median_of_the_rounds() -> None:
    samples = [Sample(100.0, 1.0, 9.0, 500.0), Sample(300.0, 2.0, 8.0, 400.0), Sample(110.0, 6.0, 7.0, 100.0)]
    row = row_of(US, 32, samples)
    assert (row.cpu_us_per_request, row.p50_ms, row.p99_ms, row.rps) == (110.0, 2.0, 8.0, 400)
    assert row.resident_mib > 1
    assert (row.server, row.version, row.connections) == (OURS, "1.0", 32)


async def test_all_take_turns_and_rows_are_sorted() -> None:
    absent: list[Absent] = []
    rows = await rounds_of(rig({}), [US, OTHER], absent, rounds=2, share=0.1)
    assert absent == []
    assert [row.connections for row in rows] == [1, 1, 32, 32]
    assert {(row.server, row.p50_ms) for row in rows} == {(OURS, 1.0), ("other", 2.0)}


async def test_a_peer_that_fails_on_the_way_is_reported_and_the_others_go_on() -> None:
    absent: list[Absent] = []
    rows = await rounds_of(rig({2: 3}), [US, OTHER], absent, rounds=2, share=0.1)
    assert [row.server for row in rows] == [OURS] * len(CONNECTIONS)
    assert absent == [Absent("other", "fails: other at 32 connections: not 200")]


async def test_ours_must_not_fail() -> None:
    with pytest.raises(RuntimeError, match="recursant at 1 connections: not 200"):
        await rounds_of(rig({1: 0}), [US, OTHER], [], rounds=1, share=0.1)


def test_the_table_of_the_docs() -> None:
    row = row_of(US, 1, [Sample(100.4, 1.0, 9.0, 500.0)])
    lines = markdown([row]).splitlines()
    assert [each.strip() for each in lines[0].strip("|").split("|")] == list(COLUMNS)
    assert lines[2].startswith("| recursant | 1.0 | 1 | 100 | 1.00 | 9.00 | 500 | ")
