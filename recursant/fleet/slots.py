"""Which row of the fleet table belongs to which worker, how many requests are in flight there, and of what length.

A worker keeps its slot while it is known, and after that until its last request has ended: a release never meets
another worker's count. The table grows with the workers that are known or still have requests; both are bounded by
those who tell of them. Where several processes share a host, `SharedSlots` counts for all of them.
"""

import numpy as np
from numpy.typing import NDArray


class Slots:
    """Slots for workers, each with its requests in flight, their prompt tokens, and the tokens that they may hold."""

    # No other process counts here.
    alone = True

    def __init__(self) -> None:
        self._counts: NDArray[np.int32] = np.zeros(16, dtype=np.int32)
        self._prompts: NDArray[np.int64] = np.zeros(16, dtype=np.int64)
        # Prompts and answers.
        self._tokens: NDArray[np.int64] = np.zeros(16, dtype=np.int64)
        self._look()
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

    def _look(self) -> None:
        """The same memory, for single numbers: numpy takes several times as long."""
        self._count = self._counts.data
        self._prompt = self._prompts.data
        self._token = self._tokens.data

    def add(self, slot: int, delta: int, prompt_tokens: int = 0, answer_tokens: int = 0) -> None:
        """Change the count of a slot, and the tokens of its requests; all three of one sign.

        Raises:
            ValueError: something would fall below zero, or tokens would be left where no request is.
        """
        count = self._count[slot] + delta
        if count < 0:
            raise ValueError(f"slot {slot} was released more often than acquired")
        prompts = self._prompt[slot] + prompt_tokens
        tokens = self._token[slot] + prompt_tokens + answer_tokens
        if not 0 <= prompts <= tokens or (tokens and not count):
            raise ValueError(f"slot {slot} was released with other tokens than acquired")
        # The largest first: where it is too large for its place, nothing has changed.
        self._token[slot] = tokens
        self._prompt[slot] = prompts
        self._count[slot] = count
        if slot in self._retired:
            self._free_if_done(slot)

    def count(self, slot: int) -> int:
        """Requests that this process has in flight at a slot."""
        return self._count[slot]

    def counts(self, slots: NDArray[np.intp]) -> NDArray[np.int32]:
        """Requests in flight at each of `slots`, of all processes of this host."""
        found: NDArray[np.int32] = self._counts[slots]
        return found

    def tokens(self, slot: int) -> tuple[int, int]:
        """Of what this process has in flight at a slot: the prompt tokens, and those of prompts and answers."""
        return self._prompt[slot], self._token[slot]

    def tokens_elsewhere(self, slots: NDArray[np.intp]) -> NDArray[np.int64] | None:
        """Prompt and answer tokens of what other processes of this host have in flight; None where there are none."""
        del slots
        return None

    def elsewhere(self, slots: NDArray[np.intp]) -> NDArray[np.int64] | None:
        """All that others of this host write for `slots`, to be compared with an earlier look; None without others."""
        del slots
        return None

    def at(self, slot: int) -> tuple[int, int, int]:
        """Of one slot: requests in flight, of all processes; and of the others what `tokens` says of this one."""
        return self._count[slot], 0, 0

    def total(self) -> int:
        """Requests that this process has in flight, everywhere."""
        return int(self._counts.sum())

    def _take(self, worker_id: str) -> int:
        """A free slot for a worker."""
        del worker_id
        if not self._free:
            size = self._counts.size
            self._counts = np.concatenate([self._counts, np.zeros(size, dtype=np.int32)])
            self._prompts = np.concatenate([self._prompts, np.zeros(size, dtype=np.int64)])
            self._tokens = np.concatenate([self._tokens, np.zeros(size, dtype=np.int64)])
            self._look()
            self._free.extend(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def _give(self, slot: int) -> None:
        """A slot is free again."""
        self._free.append(slot)

    def _free_if_done(self, slot: int) -> None:
        if self._counts[slot] == 0:
            del self._slot_of[self._retired.pop(slot)]
            self._give(slot)
