"""The queue of sequences that wait to run: by arrival, or by priority and then arrival."""

import heapq
from collections import deque
from enum import StrEnum
from typing import Protocol

from recursant.sim.sequence import Sequence


class SchedulingPolicy(StrEnum):
    """vLLM's `--scheduling-policy`."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class WaitingQueue(Protocol):
    """What the engine needs of a queue."""

    def __len__(self) -> int: ...

    def add(self, sequence: Sequence) -> None:
        """Puts a new sequence in its place."""
        ...

    def put_back(self, sequence: Sequence) -> None:
        """Puts a preempted sequence in its place: it had its turn already."""
        ...

    def head(self) -> Sequence:
        """The one whose turn it is; the queue is not empty."""
        ...

    def pop(self) -> Sequence:
        """Takes the head out."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Takes any one out: its client left."""
        ...


class ArrivalQueue:
    """First come, first served; preempted ones go back to the front."""

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, sequence: Sequence) -> None:
        """See WaitingQueue."""
        self._queue.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """See WaitingQueue."""
        self._queue.appendleft(sequence)

    def head(self) -> Sequence:
        """See WaitingQueue."""
        return self._queue[0]

    def pop(self) -> Sequence:
        """See WaitingQueue."""
        return self._queue.popleft()

    def remove(self, sequence: Sequence) -> None:
        """See WaitingQueue."""
        self._queue.remove(sequence)


class PriorityQueue:
    """Smaller priority first, then earlier arrival; a preempted one keeps both."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, sequence: Sequence) -> None:
        """See WaitingQueue."""
        heapq.heappush(self._heap, (sequence.priority, sequence.order, sequence))

    put_back = add

    def head(self) -> Sequence:
        """See WaitingQueue."""
        return self._heap[0][2]

    def pop(self) -> Sequence:
        """See WaitingQueue."""
        return heapq.heappop(self._heap)[2]

    def remove(self, sequence: Sequence) -> None:
        """See WaitingQueue."""
        self._heap.remove((sequence.priority, sequence.order, sequence))
        heapq.heapify(self._heap)


def queue_for(policy: SchedulingPolicy) -> WaitingQueue:
    """The queue that a policy asks for."""
    return PriorityQueue() if policy is SchedulingPolicy.PRIORITY else ArrivalQueue()
