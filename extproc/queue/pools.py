"""Which workers a request could go to, as bits that processes compare: the columns are the same in all of them."""

from typing import Final

import numpy as np

from extproc.queue.owner import Wanted
from recursant.fleet.candidates import CandidateSet
from recursant.fleet.table import FleetTable

# Kept between changes of the fleet; each belongs to a family or model name that agents or clients use.
_MAX_KEPT: Final = 1_024


class Pools:
    """The candidates of what requests want, as bits.

    Args:
        table: the fleet, with columns of a shared file as its rows.
    """

    def __init__(self, table: FleetTable) -> None:
        self._table = table
        self._kept: dict[Wanted, tuple[CandidateSet, int]] = {}

    def columns(self, wanted: Wanted) -> int:
        """A bit for each worker that could serve this, by its column."""
        family, model, exclusive = wanted
        found = self._table.candidates(family=family, model=model, exclusive=exclusive)
        kept = self._kept.get(wanted)
        # The table makes another set when the fleet changes.
        if kept is not None and kept[0] is found:
            return kept[1]
        bits = np.zeros(int(found.rows.max(initial=-1)) + 1, dtype=np.uint8)
        bits[found.rows] = 1
        columns = int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[wanted] = (found, columns)
        return columns
