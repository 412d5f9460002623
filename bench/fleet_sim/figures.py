"""The reference figures of the specification: which run shows which, and under which policy it was before."""

from dataclasses import dataclass
from typing import Any, Final

from bench.fleet_sim import plan
from bench.fleet_sim.outcomes import Figure, Outcomes
from bench.fleet_sim.policies import ADAPTIVE, NO_RETRIES, OTHERS, ROUND_ROBIN

WEIGHTED: Final = "weighted by capacity"


@dataclass(frozen=True, slots=True)
class Reference:
    """One figure.

    Attributes:
        spec_before, spec_after: as the specification has them, in the figure's unit.
        metric: of `Summary`.
        groups: of runs; of several the one in which ours is worst counts.
        before, ours: the policies.
        scenario: where the group has several.
        most: it must be at most `spec_after`, not at least.
    """

    spec_before: float
    spec_after: float
    metric: str
    groups: tuple[str, ...]
    before: str = ROUND_ROBIN
    ours: str = ADAPTIVE
    scenario: str | None = None
    most: bool = True

    def met(self, value: float) -> bool:
        """Does a value satisfy it?"""
        return value <= self.spec_after if self.most else value >= self.spec_after


REFERENCES: Final = {
    "mixed_p99_ms": Reference(2_100, 680, "p99_ms", (plan.REFERENCE,)),
    "mixed_utilisation": Reference(0.42, 0.76, "utilisation", (plan.HIGHEST,), most=False),
    "oom_rate": Reference(0.032, 0.0007, "oom_rate", (plan.MEMORY,)),
    "p99_stddev_ms": Reference(210, 38, "p99_stddev_ms", (plan.MEMORY,)),
    "utilisation_spread": Reference(
        0.35, 0.08, "utilisation_spread", (plan.COMPARISON,), ours=WEIGHTED, scenario="uneven workers"
    ),
    "success_rate": Reference(0.947, 0.992, "success", tuple(plan.ERRORS), before=NO_RETRIES, most=False),
    "recovery_s": Reference(47, 2.3, "recovery_s", (plan.KILL,), before=NO_RETRIES),
}


@dataclass(frozen=True, slots=True)
class Found:
    """What the runs say of a figure; None where they were not made.

    Attributes:
        best_other: the best of the policies that are compared with ours, where they were run.
    """

    before: Figure | None
    ours: Figure | None
    best_other: tuple[float, str] | None
    group: str

    def verdict(self, reference: Reference) -> str:
        """Met under every seed, in the mean only, or not."""
        if self.ours is None:
            return "—"
        if all(map(reference.met, self.ours.each)):
            return "yes"
        return "in the mean" if reference.met(self.ours.mean) else "**no**"


def found_of(reference: Reference, outcomes: Outcomes) -> Found:
    """What was found of one figure."""
    every = [_found_in(reference, group, outcomes) for group in reference.groups]
    known = [found for found in every if found.ours is not None] or every
    worst = max if reference.most else min
    return worst(known, key=lambda found: found.ours.mean if found.ours is not None else 0.0)


def _found_in(reference: Reference, group: str, outcomes: Outcomes) -> Found:
    def figure(policy: str) -> Figure | None:
        return outcomes.figure(group, policy, reference.metric, reference.scenario)

    others = [(found.mean, name) for name in OTHERS if name != reference.ours and (found := figure(name)) is not None]
    best = (min if reference.most else max)(others) if others else None
    return Found(figure(reference.before), figure(reference.ours), best, group)


def as_json(outcomes: Outcomes) -> dict[str, dict[str, Any]]:
    """The figures as the file has them: `ours` is the mean over the seeds, `ours_range` its smallest and largest."""
    rows: dict[str, dict[str, Any]] = {}
    for name, reference in REFERENCES.items():
        found = found_of(reference, outcomes)
        rows[name] = {
            "before": None if found.before is None else short(found.before.mean),
            "before_policy": reference.before,
            "after": float(reference.spec_after),
            "ours": None if found.ours is None else short(found.ours.mean),
            "ours_policy": reference.ours,
            "ours_range": None if found.ours is None else [short(found.ours.low), short(found.ours.high)],
        }
    return rows


def short(value: float) -> float | None:
    """A number with five digits, which is what is known of it; None for NaN."""
    return None if value != value else float(f"{value:.5g}")
