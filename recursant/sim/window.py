"""Sums over the last seconds, in bounded memory."""


class SlidingSum:
    """The sum of what was added in the last `seconds`, to the precision of a slot."""

    def __init__(self, seconds: float = 10.0, slots: int = 100) -> None:
        self.seconds = seconds
        self._slot_s = seconds / slots
        self._sums = [0.0] * slots
        # The number of the newest slot since time 0, and the time of the first value.
        self._newest = 0
        self._since: float | None = None

    def add(self, now: float, value: float) -> None:
        """Adds a value at `now`, in seconds, which does not go back."""
        if self._since is None:
            self.start(now)
        self._advance(now)
        self._sums[self._newest % len(self._sums)] += value

    def start(self, now: float) -> None:
        """Says from when on there was something to count."""
        self._since = now
        self._newest = int(now / self._slot_s)

    def total(self, now: float) -> float:
        """The sum over the window that ends at `now`."""
        self._advance(now)
        return sum(self._sums)

    def rate(self, now: float) -> float:
        """The sum for each second of the window; of what has passed, at least a second, where that is less."""
        if self._since is None:
            return 0.0
        return self.total(now) / max(1.0, min(self.seconds, now - self._since))

    def _advance(self, now: float) -> None:
        newest = int(now / self._slot_s)
        passed = newest - self._newest
        if passed <= 0:
            return
        slots = len(self._sums)
        for step in range(1, min(passed, slots) + 1):
            self._sums[(self._newest + step) % slots] = 0.0
        self._newest = newest
