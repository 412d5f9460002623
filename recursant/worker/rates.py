"""Rates from counters that are read now and then. Pure."""

from collections import deque
from typing import Final

# SPEC B1: the token rate is that of the last 10 s.
WINDOW_S: Final = 10.0
_MAX_READINGS: Final = 128
# What a worker reached counts for at least half of this, and no longer than it: it may be slower now. Seconds.
PEAK_WINDOW_S: Final = 120.0


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


class PeakRate:
    """Generated tokens per second that a worker reaches when busy, by what it did in the last minutes.

    The rate of ten seconds says little of a worker that had one short request in them. The time between two tokens of
    one request does: while it generates, it generates at least so fast.
    """

    def __init__(self, window_s: float = PEAK_WINDOW_S) -> None:
        self._half_s = window_s / 2
        self._began = 0.0
        # Of this half of the window, and of the one before.
        self._best = 0.0
        self._before = 0.0

    def add(self, now: float, token_rate: float | None, token_seconds: float | None) -> float | None:
        """Take what was seen of the last ten seconds; the peak, or None while nothing was generated.

        Args:
            now: of a monotonic clock, in seconds.
            token_rate: generated tokens per second, all requests together.
            token_seconds: mean time between two tokens of a request.
        """
        if now - self._began >= self._half_s:
            idle = now - self._began >= 2 * self._half_s
            self._before, self._best = (0.0 if idle else self._best), 0.0
            self._began = now
        speed = 1 / token_seconds if token_seconds else 0.0
        self._best = max(self._best, token_rate or 0.0, speed)
        return max(self._best, self._before) or None
