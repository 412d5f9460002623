"""Warnings about what others send us, bounded: a thousand bad reports a second are one line."""

import logging
import time
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 10.0


class QuietLog:
    """Logs one warning per interval and counts the rest, which the next line names."""

    def __init__(
        self, logger: logging.Logger, *, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._clock = clock
        self._last: float | None = None
        self._suppressed = 0

    def warning(self, message: str, *values: object) -> None:
        """Log it, `%s` style, unless the last one was just now."""
        now = self._clock()
        if self._last is not None and now - self._last < self._interval_s:
            self._suppressed += 1
            return
        if self._suppressed:
            message += " (and %s more such warnings)"
            values = (*values, self._suppressed)
        self._last = now
        self._suppressed = 0
        self._logger.warning(message, *values)
