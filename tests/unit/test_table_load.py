"""What the fleet's table costs while thousands of workers come at once: no change looks at all the others."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fleet_kit import PHI, record

from recursant.fleet.table import FleetTable
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus

WORKERS = 2_000


class Counted(tuple[Model, ...]):
    """A worker's models, which count how often anybody goes through them."""

    __slots__ = ()
    looks = 0

    def __iter__(self) -> Iterator[Any]:
        Counted.looks += 1
        return super().__iter__()


def joined(number: int) -> WorkerRecord:
    endpoint = f"10.1.{number >> 8}.{number & 255}:8000"
    return replace(record(f"w{number}", endpoint=endpoint), models=Counted([PHI]))


@pytest.mark.plain("it counts in a subclass of tuple, which compiled code goes through without asking it")
def test_joining_and_falling_silent_are_looked_at_when_somebody_asks() -> None:
    table = FleetTable()
    Counted.looks = 0
    records = [joined(number) for number in range(WORKERS)]
    for each in records:
        table.upsert(each)
    for each in records[1:]:
        table.upsert(replace(each, status=WorkerStatus.MISSING))
    for each in records[: WORKERS // 2]:
        table.remove(each.worker_id)
    assert Counted.looks == 0
    assert table.served.knows_model(PHI.name)
    assert table.served.knows_family("phi")
    assert table.served.names_of_family("phi") == {PHI.name}
    assert table.served.families_of(PHI.name) == {"phi"}
    assert table.served.row_of_endpoint("10.1.0.0:8000") is None
    last = table.served.row_of_endpoint(records[-1].endpoint or "")
    assert last is not None
    assert table.worker_id(last) == records[-1].worker_id
    # Once for each that is left.
    assert WORKERS // 2 <= Counted.looks <= WORKERS
    table.upsert(joined(0))
    assert table.served.row_of_endpoint("10.1.0.0:8000") is not None
