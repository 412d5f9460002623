"""Where sessions and prefixes were sent: two bounded tables with an end for every entry (SPEC C8, D1). Pure.

Both hold beliefs, not facts: a worker may have evicted what it was sent. So an entry is only ever a bonus, it ends some
time after its last use, and it ends at once when its worker starts anew, with an empty cache.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# Workers that are remembered for one block of a prompt, those that were sent it last.
WORKERS_OF_A_BLOCK: Final = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session was sent last.

    Attributes:
        worker_id: the worker.
        tokens: of the session that it is believed to hold: prompt and answer.
        at_s: when, monotonic seconds.
    """

    worker_id: str
    tokens: int
    at_s: float


class SessionTable:
    """The worker of each session. The least recently used go first when it is full.

    Args:
        capacity: sessions that are kept.
        ttl_s: how long one is kept after its last request.
    """

    def __init__(self, capacity: int, ttl_s: float) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._places: OrderedDict[bytes, Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def set_bounds(self, capacity: int, ttl_s: float) -> None:
        """Other bounds, from now on."""
        self._capacity, self._ttl_s = capacity, ttl_s
        self._shrink()

    def get(self, session: bytes, now: float) -> Place | None:
        """Where a session was sent last; None where that is not known, or too long ago."""
        place = self._places.get(session)
        return None if place is None or now - place.at_s >= self._ttl_s else place

    def put(self, session: bytes, place: Place) -> None:
        """A session was sent somewhere."""
        places = self._places
        places[session] = place
        places.move_to_end(session)
        if len(places) > self._capacity:
            self._shrink()
        # One for one: whatever has ended goes, and no call takes long.
        oldest = next(iter(places.values()), None)
        if oldest is not None and place.at_s - oldest.at_s >= self._ttl_s:
            places.popitem(last=False)

    def items(self) -> Iterator[tuple[bytes, Place]]:
        """All of them, the least recently used first."""
        return iter(self._places.items())

    def _shrink(self) -> None:
        while len(self._places) > self._capacity:
            self._places.popitem(last=False)


class PrefixIndex:
    """Which workers were sent which blocks of prompts. The least recently used blocks go first when it is full.

    A block is known by a hash that is chained with all blocks before it, so one block stands for a whole prefix.

    Args:
        capacity: blocks that are kept.
        ttl_s: how long a worker is believed to hold a block after it was last sent there.
    """

    def __init__(self, capacity: int, ttl_s: float) -> None:
        self._capacity = capacity
        self._ttl_s = ttl_s
        # The workers of each block, the newest first, with the time that each was sent it.
        self._blocks: OrderedDict[int, tuple[tuple[str, float], ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def set_bounds(self, capacity: int, ttl_s: float) -> None:
        """Other bounds, from now on."""
        self._capacity, self._ttl_s = capacity, ttl_s
        self._shrink()

    def matches(self, blocks: Sequence[int], now: float) -> dict[str, tuple[int, float]]:
        """How many blocks from the beginning each worker was sent, and when the last of those; longest match first."""
        found: dict[str, tuple[int, float]] = {}
        index, oldest = self._blocks, now - self._ttl_s
        for count, block in enumerate(blocks, 1):
            # The chain makes looking at the blocks before needless: whoever was sent this one was sent them, too.
            holders = index.get(block)
            if holders is None:
                break
            for worker, at_s in holders:
                if at_s > oldest:
                    found[worker] = (count, at_s)
        return dict(sorted(found.items(), key=lambda item: -item[1][0]))

    def put(self, blocks: Sequence[int], worker_id: str, now: float) -> None:
        """A prompt of these blocks was sent to a worker."""
        index = self._blocks
        newest = ((worker_id, now),)
        # The last block first: when the index is full, the ends of prompts go before their beginnings.
        for block in reversed(blocks):
            before = index.get(block, ())
            others = tuple(each for each in before if each[0] != worker_id)
            index[block] = newest + others[: WORKERS_OF_A_BLOCK - 1]
            index.move_to_end(block)
        self._shrink()

    def _shrink(self) -> None:
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
