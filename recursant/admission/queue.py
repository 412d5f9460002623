"""Requests that are held until a worker has room (SPEC C4, E3). Pure: time comes in as an argument.

Held requests stand in lanes, one for each agent and class; in a lane, whoever has waited longest is first. When
capacity appears, lanes are asked in turn: the higher aged class first, within a class the lane that was served longest
ago. So a higher class overtakes, agents of one class share, and waiting makes more urgent. Who waits for something that
others of the agent do not need stands in a lane apart, which is asked with the agent's other one. The whole queue is
bounded: when it is full, a newcomer takes the place of the youngest request of the lowest class, if that is lower than
its own.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from recursant.admission.rules import AGEING_MS
from recursant.admission.shares import aged_class
from recursant.agents.priority import PriorityClass

DEFAULT_CAPACITY: Final = 4_096

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class Held(Generic[_T]):
    """One request in the queue. Times are monotonic seconds.

    Attributes:
        item: whatever the caller needs to go on with it.
        agent: for fairness within a class.
        priority_class: its own class, before ageing.
        since_s: when it began to wait.
        until_s: how long it may wait here.
        apart: it waits for more than others of its agent and class, and must not keep them waiting.
    """

    item: _T
    agent: str
    priority_class: PriorityClass
    since_s: float
    until_s: float
    apart: bool = False


# Class, agent, and whether it stands apart.
_Key = tuple[PriorityClass, str, bool]
_Lane = OrderedDict[int, Held[_T]]


class HoldQueue(Generic[_T]):
    """All held requests of one process, or of those of a host.

    Args:
        capacity: the most requests at one time.
        ageing_s: seconds of waiting that count as one class more.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY, ageing_s: float = AGEING_MS / 1_000) -> None:
        self.set_limits(capacity, ageing_s)
        self._lanes: dict[_Key, _Lane[_T]] = {}
        self._served: dict[_Key, int] = {}
        self._turn = 0
        self._size = 0
        # Nobody's time is over before; in a long queue, looking at everybody's each time would cost more than the rest.
        self._nothing_before = math.inf

    def __len__(self) -> int:
        return self._size

    def set_limits(self, capacity: int, ageing_s: float) -> None:
        """Other limits, as in the constructor. Nobody who waits has to leave: a smaller queue comes by itself."""
        self._capacity = capacity
        self._ageing_s = ageing_s

    def aged(self, held: Held[_T], now: float) -> PriorityClass:
        """The class that a held request counts as now."""
        return aged_class(held.priority_class, now - held.since_s, self._ageing_s)

    def push(self, held: Held[_T]) -> Held[_T] | None:
        """Take a request in. Gives back the one that had to leave for it: another, itself, or nobody (None)."""
        out: Held[_T] | None = None
        if self._size >= self._capacity:
            lowest = min((key for key in self._lanes), default=None)
            if lowest is None or lowest[0] >= held.priority_class:
                return held
            out = next(reversed(self._lanes[lowest].values()))
            self.remove(out)
        key = (held.priority_class, held.agent, held.apart)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = OrderedDict()
            # A lane that was away does not bring old claims along.
            self._served[key] = self._turn
        late = bool(lane) and next(reversed(lane.values())).since_s > held.since_s
        lane[id(held)] = held
        self._nothing_before = min(self._nothing_before, held.until_s)
        if late:
            # It waited elsewhere before: nobody loses their place by that.
            ordered = sorted(lane.values(), key=lambda each: each.since_s)
            self._lanes[key] = OrderedDict((id(each), each) for each in ordered)
        self._size += 1
        return out

    def remove(self, held: Held[_T]) -> bool:
        """Take a request out, wherever it stands. False if it is not here."""
        key = (held.priority_class, held.agent, held.apart)
        lane = self._lanes.get(key)
        if lane is None or lane.pop(id(held), None) is None:
            return False
        self._size -= 1
        if not lane:
            del self._lanes[key]
            del self._served[key]
        return True

    def heads(self, now: float, ready: Callable[[Held[_T]], bool] | None = None) -> Iterator[Held[_T]]:
        """The first of each lane, in the order in which they should be served now.

        The caller may remove what it is given, and calls `served` for it then.

        Args:
            now: the time.
            ready: who can be served at all; by default everybody.
        """
        if ready is None:
            firsts = [(key, next(iter(lane.values()))) for key, lane in self._lanes.items()]
        else:
            found = [(key, next(filter(ready, lane.values()), None)) for key, lane in self._lanes.items()]
            firsts = [(key, held) for key, held in found if held is not None]
        firsts.sort(
            key=lambda pair: (
                -self.aged(pair[1], now),
                self._served[pair[0]],
                pair[1].since_s,
            )
        )
        for _, held in firsts:
            yield held

    def served(self, held: Held[_T]) -> None:
        """A request was placed: both lanes of its agent go to the back of their class."""
        self._turn += 1
        for apart in (False, True):
            key = (held.priority_class, held.agent, apart)
            if key in self._served:
                self._served[key] = self._turn

    def expired(self, now: float) -> list[Held[_T]]:
        """Take out everything whose time is over."""
        if now < self._nothing_before:
            return []
        over = [held for lane in self._lanes.values() for held in lane.values() if held.until_s <= now]
        for held in over:
            self.remove(held)
        self._nothing_before = min(
            (held.until_s for lane in self._lanes.values() for held in lane.values()), default=math.inf
        )
        return over

    def next_expiry(self) -> float | None:
        """When to ask `expired` again, which then finds something or names a later time; None while nothing waits."""
        return self._nothing_before if self._size else None

    def depth(self) -> dict[str, int]:
        """How many wait, by the label of their own class; every class named."""
        depth = {each.label: 0 for each in PriorityClass}
        for (priority_class, _, _), lane in self._lanes.items():
            depth[priority_class.label] += len(lane)
        return depth
