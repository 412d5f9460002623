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
        # Those that keep the simulation alive; the others, such as heartbeats, do not.
        self._pending = 0
        self._idle: set[int] = set()

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
            self.on_the_side(self.now + interval, again)

        self.on_the_side(first, again)

    def on_the_side(self, when: float, action: Callable[..., None], *arguments: Any) -> None:
        """The same as `at` for what alone does not keep the simulation going: news, not work."""
        self._asked += 1
        self._idle.add(self._asked)
        heapq.heappush(self._heap, (max(when, self.now), self._asked, action, arguments))

    def run(self, until: float | None = None) -> None:
        """Let time pass until `until`, or until nothing is left but what happens on the side."""
        heap = self._heap
        pop = heapq.heappop
        idle = self._idle
        while heap and (self._pending or until is not None):
            if until is not None and heap[0][0] > until:
                self.now = until
                return
            self.now, number, action, arguments = pop(heap)
            if number in idle:
                idle.remove(number)
            else:
                self._pending -= 1
            action(*arguments)
