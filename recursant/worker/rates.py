"""Rates from counters that are read now and then."""

from collections import deque
from typing import Final

# SPEC B1: the token rate is that of the last 10 s.
WINDOW_S: Final = 10.0
_MAX_READINGS: Final = 128


class CounterWindow:
    """How much some counters rose over the last ten seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._readings: deque[tuple[float, tuple[float, ...]]] = deque(maxlen=_MAX_READINGS)

    def add(self, now: float, *counters: float) -> None:
        """Take a reading, always of the same counters. One that fell has started afresh, and so does the window."""
        if self._readings and any(new < old for new, old in zip(counters, self._readings[-1][1], strict=True)):
            self._readings.clear()
        self._readings.append((now, counters))
        while now - self._readings[0][0] > self._window_s:
            self._readings.popleft()

    def risen(self) -> tuple[float, ...] | None:
        """Seconds that the window covers, and the rise of each counter; None before the second reading."""
        first_at, first = self._readings[0] if self._readings else (0.0, ())
        last_at, last = self._readings[-1] if self._readings else (0.0, ())
        if last_at <= first_at:
            return None
        return (last_at - first_at, *(new - old for new, old in zip(last, first, strict=True)))
