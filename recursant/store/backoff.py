"""How long to wait before trying again."""

import random
from typing import Final

_SYSTEM: Final = random.SystemRandom()


class Backoff:
    """Exponential waits with jitter: each is drawn from the upper half of a bound that doubles up to `longest`.

    The jitter keeps a fleet that lost its server at one moment from coming back at one moment.
    """

    def __init__(self, first: float, longest: float, *, rng: random.Random = _SYSTEM) -> None:
        """Both bounds in seconds."""
        self._first = first
        self._longest = longest
        self._bound = first
        self._rng = rng

    def next(self) -> float:
        """Seconds to wait now."""
        bound = self._bound
        self._bound = min(bound * 2, self._longest)
        return bound * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It worked: the next failure starts from the beginning."""
        self._bound = self._first
