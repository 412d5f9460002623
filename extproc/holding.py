"""Runs the desk on the event loop: soon after capacity appeared, and when the next time is over. No polling."""

import asyncio
from collections.abc import Callable
from typing import Final

# Reports come by the hundred: they wake the desk together, this late at the most. Seconds.
REPORTS_TOGETHER_S: Final = 0.02
_CLOCK_STEP_S: Final = 0.001


class DeskRunner:
    """Calls `run(now)` when woken, and again at the time that it names.

    Args:
        run: `Desk.run`.
        clock: the time that `run` lives in, monotonic seconds as the event loop's.
    """

    def __init__(self, run: Callable[[float], float | None], clock: Callable[[], float]) -> None:
        self._run = run
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._later_at = 0.0

    def wake(self) -> None:
        """Run within this turn of the loop; many calls are one run."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._now)

    def wake_for_report(self) -> None:
        """Run soon, together with what other reports bring."""
        self._at(self._clock() + REPORTS_TOGETHER_S)

    def stop(self) -> None:
        """Run no more."""
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()

    def _now(self) -> None:
        self._soon = None
        if self._later is not None:
            self._later.cancel()
            self._later = None
        following = self._run(self._clock())
        if following is not None:
            self._at(following)

    def _at(self, when: float) -> None:
        if self._later is not None:
            if self._later_at <= when:
                return
            self._later.cancel()
        self._later_at = when
        # The loop's clock counts in whole milliseconds: rather a little late than too early, and again.
        self._later = self._loop.call_at(when + _CLOCK_STEP_S, self._now)
