"""Outcomes of several seeds as one: means, and how far apart they lie."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bench.fleet_sim.runs import Outcome


@dataclass(frozen=True, slots=True)
class Figure:
    """One number over several seeds.

    Attributes:
        mean: of those that have it.
        low, high: the smallest and the largest.
        each: by seed, in their order.
    """

    mean: float
    low: float
    high: float
    each: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> "Figure":
        """Of at least one number; NaN ones do not count where there are others."""
        each = tuple(values)
        known = [value for value in each if not math.isnan(value)] or [math.nan]
        return cls(sum(known) / len(known), min(known), max(known), each)


@dataclass(frozen=True, slots=True)
class Merged:
    """What the runs of one task gave that differ in the seed alone.

    Attributes:
        first: the one of the first seed: its task, its curves.
        figures: by name of the metric.
    """

    first: Outcome
    figures: dict[str, Figure]

    def mean(self, metric: str) -> float:
        """Over the seeds."""
        return self.figures[metric].mean


class Outcomes:
    """All outcomes, to be asked for."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self.all = list(outcomes)
        together: dict[str, list[Outcome]] = {}
        for outcome in self.all:
            together.setdefault(repr(replace(outcome.task, seed=0)), []).append(outcome)
        self.merged = [_merged(those) for those in together.values()]

    @property
    def seeds(self) -> list[int]:
        """Those that were used."""
        return sorted({outcome.task.seed for outcome in self.all})

    def group(self, name: str) -> list[Merged]:
        """Those of one group."""
        return [each for each in self.merged if each.first.task.group == name]

    def figure(self, group: str, policy: str, metric: str, scenario: str | None = None) -> Figure | None:
        """One number; None where it was not measured."""
        for each in self.group(group):
            task = each.first.task
            if task.policy == policy and scenario in (None, task.scenario) and metric in each.figures:
                found = each.figures[metric]
                return None if math.isnan(found.mean) else found
        return None


def _merged(outcomes: list[Outcome]) -> Merged:
    names = outcomes[0].metrics
    return Merged(outcomes[0], {name: Figure.of(each.metrics[name] for each in outcomes) for name in names})
