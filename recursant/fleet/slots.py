"""Which row of the fleet table belongs to which worker, and how many requests are in flight there.

A worker keeps its slot while it is known, and after that until its last request has ended: a release never meets
another worker's count. The table grows with the workers that are known or still have requests; both are bounded by
those who tell of them. Where several processes share a host, `SharedSlots` counts for all of them.
"""

import numpy as np
from numpy.typing import NDArray


class Slots:
    """Slots for workers with one in-flight count each."""

    def __init__(self) -> None:
        self._counts: NDArray[np.int32] = np.zeros(16, dtype=np.int32)
        self._slot_of: dict[str, int] = {}
        # Of workers that left while requests were in flight there.
        self._retired: dict[int, str] = {}
        self._free = list(range(15, -1, -1))

    def claim(self, worker_id: str) -> int:
        """The slot of a worker, until `leave`."""
        slot = self._slot_of.get(worker_id)
        if slot is None:
            slot = self._slot_of[worker_id] = self._take(worker_id)
        self._retired.pop(slot, None)
        return slot

    def leave(self, worker_id: str) -> None:
        """The worker is no longer known. Its slot stays taken while requests are in flight there."""
        slot = self._slot_of[worker_id]
        self._retired[slot] = worker_id
        self._free_if_done(slot)

    def add(self, slot: int, delta: int, tokens: int = 0) -> None:
        """Change the count of a slot. `tokens` were sent there with it, for others to know.

        Raises:
            ValueError: it would fall below zero.
        """
        del tokens
        count = int(self._counts[slot]) + delta
        if count < 0:
            raise ValueError(f"slot {slot} was released more often than acquired")
        self._counts[slot] = count
        if slot in self._retired:
            self._free_if_done(slot)

    def count(self, slot: int) -> int:
        """Requests that this process has in flight at a slot."""
        return int(self._counts[slot])

    def counts(self, slots: NDArray[np.intp]) -> NDArray[np.int32]:
        """Requests in flight at each of `slots`, of all processes of this host."""
        found: NDArray[np.int32] = self._counts[slots]
        return found

    def tokens_elsewhere(self, slots: NDArray[np.intp]) -> NDArray[np.int64] | None:
        """Tokens that other processes of this host ever sent to each of `slots`; None where there are no others."""
        del slots
        return None

    def at(self, slot: int) -> tuple[int, int]:
        """Of one slot what `counts` and `tokens_elsewhere` say of many; 0 tokens where there are no others."""
        return int(self._counts[slot]), 0

    def total(self) -> int:
        """Requests that this process has in flight, everywhere."""
        return int(self._counts.sum())

    def _take(self, worker_id: str) -> int:
        """A free slot for a worker."""
        del worker_id
        if not self._free:
            size = self._counts.size
            self._counts = np.concatenate([self._counts, np.zeros(size, dtype=np.int32)])
            self._free.extend(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def _give(self, slot: int) -> None:
        """A slot is free again."""
        self._free.append(slot)

    def _free_if_done(self, slot: int) -> None:
        if self._counts[slot] == 0:
            del self._slot_of[self._retired.pop(slot)]
            self._give(slot)
