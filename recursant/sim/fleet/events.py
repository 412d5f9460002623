"""Virtual time: what happens when. Events of one moment happen in the order in which they were asked for."""

import heapq
from collections.abc import Callable
from typing import Any


class Events:
    """The agenda of a simulation. Times are seconds since its start."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0
        # Those that keep the simulation alive: regular ones, such as heartbeats, do not.
        self._pending = 0
        self._regular: set[int] = set()

    def clock(self) -> float:
        """The time, for code that asks a clock."""
        return self.now

    def at(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        """Have `action` called at `when`, or now if that has passed."""
        self._asked += 1
        self._pending += 1
        heapq.heappush(self._heap, (max(when, self.now), self._asked, action, arguments))

    def every(self, interval: float, first: float, action: Callable[[], None]) -> None:
        """Have `action` called every `interval` seconds from `first` on, for as long as anything else happens."""

        def again() -> None:
            action()
            self._put_regular(self.now + interval, again)

        self._put_regular(first, again)

    def run(self, until: float | None = None) -> None:
        """Let time pass until `until`, or until only regular events are left."""
        heap = self._heap
        pop = heapq.heappop
        regular = self._regular
        while heap and (self._pending or until is not None):
            if until is not None and heap[0][0] > until:
                self.now = until
                return
            self.now, number, action, arguments = pop(heap)
            if number in regular:
                regular.remove(number)
            else:
                self._pending -= 1
            action(*arguments)

    def _put_regular(self, when: float, action: Callable[[], None]) -> None:
        self._asked += 1
        self._regular.add(self._asked)
        heapq.heappush(self._heap, (when, self._asked, action, ()))
