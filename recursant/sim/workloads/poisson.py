"""When requests come: at random, at a steady rate or in bursts."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# A burst every so often, and so long, in the mean. Our choice: long against a request, short against an autoscaler.
BURST_EVERY_S: Final = 30.0
BURST_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Bursts:
    """A rate that jumps: calm for a while, then `factor` times the calm rate. Both last exponentially long.

    Attributes:
        factor: of a burst's rate to the calm one.
        every_s: from the beginning of a burst to that of the next, in the mean.
        seconds: length of a burst, in the mean.
    """

    factor: float = 4.0
    every_s: float = BURST_EVERY_S
    seconds: float = BURST_S

    def __post_init__(self) -> None:
        if self.factor < 1 or not 0 < self.seconds < self.every_s:
            raise ValueError("bursts need a factor of at least 1 and must be shorter than the time between them")

    def calm_rate(self, mean_rate: float) -> float:
        """The rate outside bursts that gives `mean_rate` over all."""
        share = self.seconds / self.every_s
        return mean_rate / (1 - share + share * self.factor)


def arrival_times(rate: float, seconds: float, draw: random.Random, bursts: Bursts | None = None) -> Iterator[float]:
    """Seconds at which requests come, up to `seconds`: a Poisson process of `rate` a second in the mean.

    With `bursts` its rate jumps between two levels; the mean stays.

    Raises:
        ValueError: `rate` is not above 0.
    """
    if not rate > 0:
        raise ValueError(f"a rate must be above 0, not {rate:g}")
    if bursts is None:
        at = draw.expovariate(rate)
        while at < seconds:
            yield at
            at += draw.expovariate(rate)
        return
    calm = bursts.calm_rate(rate)
    bursting = False
    begins = 0.0
    while begins < seconds:
        mean = bursts.seconds if bursting else bursts.every_s - bursts.seconds
        ends = begins + draw.expovariate(1 / mean)
        level = calm * bursts.factor if bursting else calm
        # A Poisson process forgets, so each level may begin anew.
        at = begins + draw.expovariate(level)
        while at < min(ends, seconds):
            yield at
            at += draw.expovariate(level)
        begins, bursting = ends, not bursting
