"""When to push: the first change after quiet at once, the following ones together. Pure, time is an argument."""


class Debounce:
    """Spaces pushes out.

    Args:
        interval_s: from one push to the next, at least.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._last: float | None = None
        self._due: float | None = None

    @property
    def due_at(self) -> float | None:
        """When to push; None while nothing has changed."""
        return self._due

    def changed(self, now: float) -> None:
        """Something changed. Later changes do not put the push off any further."""
        if self._due is None:
            self._due = now if self._last is None else max(now, self._last + self._interval_s)

    def pushed(self, now: float) -> None:
        """The push was made."""
        self._due, self._last = None, now
