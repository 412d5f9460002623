"""Sequences that decode, kept as a group: what a step does to all of them alike is done once, not for each.

A sequence that decodes computes one token in every step, whatever the others do. So how many tokens it has follows from
the steps that passed since it joined, and only the moments at which one differs from the rest are looked at: when it
needs another KV block, when it is done, and when it is taken out.
"""

import heapq

from recursant.sim.sequence import Sequence


class DecodeGroup:
    """The decoding sequences of one engine.

    Attributes:
        clock: steps that the group has made.
        ahead: steps of those in progress for which its blocks are taken already; 0 between two steps.
        count: sequences in it.
        context: tokens whose KV they have, all together.
        newest: the last place in the order of running that any of them had.
    """

    def __init__(self, block_tokens: int) -> None:
        self.clock = 0
        self.ahead = 0
        self.count = 0
        self.context = 0
        self.newest = -1
        self.block_tokens = block_tokens
        # How many of them take a block at the steps of each remainder of the clock.
        self._growing = [0] * block_tokens
        # (step after which it is done, place, sequence); whoever left before stays until then.
        self._ends: list[tuple[int, int, Sequence]] = []

    def takes(self, sequence: Sequence) -> bool:
        """Whether a running sequence may join: it has its first token, all that it lacks is the KV of its last one, and
        nothing of it is left to offer to the prefix cache."""
        computed = sequence.computed
        return (
            sequence.generated > 0
            and sequence.length - computed == 1
            and sequence.visited >= len(sequence.hashes)
            and sequence.blocks == -(-computed // self.block_tokens)
        )

    def join(self, sequence: Sequence) -> None:
        """Takes a sequence in, between two steps."""
        computed = sequence.computed
        self.count += 1
        self.context += computed
        self._growing[(self.clock - computed) % self.block_tokens] += 1
        self.newest = max(self.newest, sequence.place)
        end = self.clock + sequence.output_tokens - sequence.generated
        sequence.enter(self)
        heapq.heappush(self._ends, (end, sequence.place, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Takes one of its sequences out, with what it has by now; the steps in progress do not count for it."""
        sequence.leave()
        computed = sequence.computed
        self.count -= 1
        self.context -= computed
        self._growing[(self.clock - computed) % self.block_tokens] -= 1

    def blocks_to_grow(self, steps: int) -> int:
        """Blocks that the next `steps` steps take."""
        turns, rest = divmod(steps, self.block_tokens)
        blocks = turns * self.count
        for step in range(self.clock, self.clock + rest):
            blocks += self._growing[step % self.block_tokens]
        return blocks

    def steps_to_next_end(self) -> int:
        """Steps after which the first of them is done; the group is not empty."""
        ends = self._ends
        while not self._is_live(*ends[0]):
            heapq.heappop(ends)
        return ends[0][0] - self.clock

    def advance(self, steps: int) -> list[Sequence]:
        """So many steps have passed: takes out whoever is done, in the order of running."""
        self.clock += steps
        self.context += steps * self.count
        self.ahead = 0
        done: list[Sequence] = []
        ends = self._ends
        while ends and ends[0][0] <= self.clock:
            entry = heapq.heappop(ends)
            if self._is_live(*entry):
                self.leave(entry[2])
                done.append(entry[2])
        return done

    def _is_live(self, _end: int, place: int, sequence: Sequence) -> bool:
        # Who left and came back has another place.
        return sequence.group is self and sequence.place == place
