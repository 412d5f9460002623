"""Slots whose counts all extproc processes of one host share."""

import numpy as np
from numpy.typing import NDArray

from recursant.fleet.counts_file import CountsFile
from recursant.fleet.slots import Slots


class SharedSlots(Slots):
    """Slots that are columns of a `CountsFile`: the same worker has the same slot in every process.

    `claim` raises `ColumnsFullError` where the file has no column left.

    Args:
        file: this process's part in it.
    """

    alone = False

    def __init__(self, file: CountsFile) -> None:
        super().__init__()
        self._file = file
        self._counts = file.counts[file.row]
        self._prompts = file.prompts[file.row]
        self._tokens = file.tokens[file.row]
        self._look()
        self._released = int(file.released[file.row])
        # Row by row: for a few processes that is several times faster than a sum over the matrix.
        others = [row for row in range(len(file.counts)) if row != file.row]
        self._other_counts = [file.counts[row] for row in others]
        self._other_prompts = [file.prompts[row] for row in others]
        self._other_tokens = [file.tokens[row] for row in others]

    def add(self, slot: int, delta: int, prompt_tokens: int = 0, answer_tokens: int = 0) -> None:
        """See `Slots.add`."""
        super().add(slot, delta, prompt_tokens, answer_tokens)
        if delta < 0:
            self._released -= delta
            self._file.released[self._file.row] = self._released

    def counts(self, slots: NDArray[np.intp]) -> NDArray[np.int32]:
        """See `Slots.counts`. Another process may be one pick ahead of what it has counted."""
        found: NDArray[np.int32] = self._counts.take(slots)
        for row in self._other_counts:
            found += row.take(slots)
        return found

    def tokens_elsewhere(self, slots: NDArray[np.intp]) -> NDArray[np.int64] | None:
        """See `Slots.tokens_elsewhere`."""
        found: NDArray[np.int64] | None = None
        for row in self._other_tokens:
            found = row.take(slots) if found is None else found + row.take(slots)
        return found

    def elsewhere(self, slots: NDArray[np.intp]) -> NDArray[np.int64] | None:
        """See `Slots.elsewhere`."""
        found = np.zeros((2, slots.size), dtype=np.int64)
        for counts, tokens in zip(self._other_counts, self._other_tokens, strict=True):
            found[0] += counts.take(slots)
            found[1] += tokens.take(slots)
        return found

    def at(self, slot: int) -> tuple[int, int, int]:
        """See `Slots.at`."""
        in_flight = int(self._counts[slot]) + sum(int(row[slot]) for row in self._other_counts)
        prompts = sum(int(row[slot]) for row in self._other_prompts)
        return in_flight, prompts, sum(int(row[slot]) for row in self._other_tokens)

    def released_anywhere(self) -> int:
        """How many places all processes gave back, ever; a change means that there may be room."""
        return int(self._file.released.sum())

    def _take(self, worker_id: str) -> int:
        return self._file.claim(worker_id)

    def _give(self, slot: int) -> None:
        self._file.leave(slot)
