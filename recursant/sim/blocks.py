"""The KV cache in blocks: who holds how many, and the prefix cache in the free ones.

Blocks without a hash are interchangeable, so only their number is kept: a decode step that grows a hundred sequences
touches a counter, not a hundred objects. Blocks with a hash are known by it. A hashed block that nobody holds stays
in the cache until its space is needed; the one unused for longest goes first.

Every block is exactly one of: empty, private (held, no hash of its own), shared (held, hashed) or idle (hashed, not
held). Empty and idle ones are free.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """The KV blocks of one engine."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a pool needs at least one block, not {total}")
        self.total = total
        self._empty = total
        # hash -> holders.
        self._shared: dict[int, int] = {}
        # Insertion order is the order of last use: the first is evicted first. A plain dictionary would look at every
        # entry that it ever evicted to find its first one.
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that can be taken now, cached ones that nobody holds included."""
        return self._empty + len(self._idle)

    @property
    def private(self) -> int:
        """Blocks that are held and have no hash of their own."""
        return self.total - self._empty - len(self._shared) - len(self._idle)

    def take(self, count: int) -> None:
        """Makes `count` free blocks private to the caller; the caller checked `free`.

        Raises:
            ValueError: fewer are free; nothing was taken.
        """
        if count > self._empty:
            if count > self.free:
                raise ValueError(f"{count} blocks wanted, {self.free} free")
            self._evict(count - self._empty)
        self._empty -= count

    def matching(self, hashes: Sequence[int], limit: int) -> tuple[int, int]:
        """How many leading ones of `hashes`, at most `limit`, are cached, and how many of those nobody holds."""
        found = idle = 0
        for key in hashes[:limit]:
            if key in self._idle:
                idle += 1
            elif key not in self._shared:
                break
            found += 1
        return found, idle

    def hold(self, hashes: Sequence[int]) -> None:
        """Holds cached blocks, all of which `matching` found."""
        for key in hashes:
            if key in self._shared:
                self._shared[key] += 1
            else:
                del self._idle[key]
                self._shared[key] = 1

    def share(self, hashes: Iterable[int]) -> list[int]:
        """Gives the caller's private blocks their hashes; it then holds them as shared ones.

        Returns those it gave: where another block has that hash already, the caller's stays private.
        """
        shared, idle = self._shared, self._idle
        new = dict.fromkeys([key for key in hashes if key not in shared and key not in idle], 1)
        shared.update(new)
        return list(new)

    def release(self, hashes: Sequence[int], private: int) -> None:
        """Gives back one holder's blocks: its shared ones, which stay cached, and `private` others.

        The end of a sequence is worth less to others than its beginning, so it becomes idle first.
        """
        shared, idle = self._shared, self._idle
        for key in reversed(hashes):
            holders = shared.pop(key)
            if holders > 1:
                shared[key] = holders - 1
            else:
                idle[key] = None
        self._empty += private

    def forget(self) -> None:
        """Empties the prefix cache of everything that nobody holds."""
        self._empty += len(self._idle)
        self._idle.clear()

    def _evict(self, count: int) -> None:
        for _ in range(count):
            self._idle.popitem(last=False)
        self._empty += count
