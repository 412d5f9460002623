"""What is said when Envoy's resources cannot be built: one line that names the cause, however often it is tried."""

import logging
import time
from collections.abc import Callable
from typing import Final

from xds_server.problems import XdsError

# The same cause is named again after this long. Seconds.
REPEAT_S: Final = 10.0
# Causes whose traceback was shown; further ones are named without.
MAX_CAUSES: Final = 64
# Characters of a cause.
_MAX_CAUSE: Final = 500

_log = logging.getLogger(__name__)


class RebuildLog:
    """Tells of failed rebuilds, and of the first good one after them.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown: set[str] = set()
        # The cause that was named last, and when.
        self._named = ("", 0.0)
        # Failed in a row, and how many of them no line was written for.
        self._failed = 0
        self._unsaid = 0

    @property
    def failing(self) -> bool:
        """Whether the last rebuild failed."""
        return self._failed > 0

    def failed(self, error: Exception) -> None:
        """A rebuild failed."""
        self._failed += 1
        text = str(error)
        cause = f"{type(error).__name__}: {text}" if text else type(error).__name__
        cause = cause if len(cause) <= _MAX_CAUSE else f"{cause[:_MAX_CAUSE]}…"
        # What we found ourselves says all; of anything else it must be known where it came from, but once is enough.
        told = isinstance(error, XdsError) or cause in self._shown or len(self._shown) >= MAX_CAUSES
        now = self._clock()
        before, at = self._named
        if told and cause == before and now - at < REPEAT_S:
            self._unsaid += 1
            return
        more = f" (and {self._unsaid} more such failures)" if self._unsaid else ""
        _log.error(
            "cannot build what Envoy is to get, so it keeps what it has: %s%s",
            cause,
            more,
            exc_info=None if told else error,
        )
        if not told:
            self._shown.add(cause)
        self._named = (cause, now)
        self._unsaid = 0

    def built(self) -> None:
        """A rebuild went well."""
        if self._failed:
            _log.warning("Envoy's resources can be built again, after %d failures", self._failed)
        self._failed = self._unsaid = 0
        self._named = ("", 0.0)
