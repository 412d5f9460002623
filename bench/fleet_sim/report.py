"""Outcomes as rows, tables and plots."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.fleet_sim import plan, svg
from bench.fleet_sim.policies import ADAPTIVE, CLASSIC, COMPARED, NO_RETRIES, OTHERS, ROUND_ROBIN
from bench.fleet_sim.runs import Outcome
from bench.fleet_sim.scenarios import SCENARIOS

Cell = str | float | int | None
# SPEC, reference figures: what is to be reached.
TARGETS: dict[str, tuple[str, str]] = {
    "mixed_p99_ms": ("2100", "≤ 680"),
    "mixed_utilisation": ("0.42", "≥ 0.76"),
    "oom_rate": ("0.032", "≤ 0.0007"),
    "p99_stddev_ms": ("210", "≤ 38"),
    "utilisation_spread": ("0.35", "≤ 0.08"),
    "success_rate": ("0.947", "≥ 0.992"),
    "recovery_s": ("47", "≤ 2.3"),
}


class Outcomes:
    """All outcomes, to be asked for."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self.all = list(outcomes)

    def group(self, name: str) -> list[Outcome]:
        """Those of one group."""
        return [each for each in self.all if each.task.group == name]

    def metric(self, group: str, policy: str, metric: str, scenario: str | None = None) -> float | None:
        """One number; None where it was not measured."""
        for each in self.group(group):
            if each.task.policy == policy and scenario in (None, each.task.scenario):
                value = each.metrics[metric]
                return None if math.isnan(value) else value
        return None


def reference(found: Outcomes) -> dict[str, dict[str, float | None]]:
    """The reference figures: a baseline, what the specification asks for, and ours with the profile `adaptive`."""

    def row(group: str, before: str, ours: str, metric: str, scenario: str | None = None) -> dict[str, float | None]:
        return {
            "before": _short(found.metric(group, before, metric, scenario)),
            "after": None,
            "ours": _short(found.metric(group, ours, metric, scenario)),
        }

    rows = {
        "mixed_p99_ms": row(plan.REFERENCE, ROUND_ROBIN, ADAPTIVE, "p99_ms"),
        "mixed_utilisation": row(plan.HIGHEST, ROUND_ROBIN, ADAPTIVE, "utilisation"),
        "oom_rate": row(plan.MEMORY, ROUND_ROBIN, ADAPTIVE, "oom_rate"),
        "p99_stddev_ms": row(plan.MEMORY, ROUND_ROBIN, ADAPTIVE, "p99_stddev_ms"),
        "utilisation_spread": row(
            plan.COMPARISON, ROUND_ROBIN, "weighted by capacity", "utilisation_spread", "uneven workers"
        ),
        "success_rate": row(plan.ERRORS, NO_RETRIES, ADAPTIVE, "success"),
        "recovery_s": row(plan.KILL, NO_RETRIES, ADAPTIVE, "recovery_s"),
    }
    for name, (_, after) in TARGETS.items():
        rows[name]["after"] = float(after.lstrip("≤≥ "))
    return rows


def write_json(path: Path, found: Outcomes, header: dict[str, Any]) -> None:
    """The file of DESIGN and issue 6: reference figures, and a row for every number."""
    rows = [
        {
            "workload": each.task.scenario,
            "policy": each.task.policy,
            "metric": metric,
            "value": _short(value),
            "group": each.task.group,
            "load": each.task.load,
            **({"workers": each.task.workers} if each.task.workers else {}),
            **{name: value for name, value in each.task.changes if name != "faults"},
        }
        for each in found.all
        for metric, value in each.metrics.items()
    ]
    text = json.dumps({"reference": reference(found), "rows": rows, **header}, indent=1)
    path.write_text(text.replace("NaN", "null") + "\n")


def write_results(folder: Path, found: Outcomes, header: Sequence[str]) -> None:
    """Tables as `fleet.md`, plots beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = _plots(found)
    for name, text in plots.items():
        (folder / f"{name}.svg").write_text(text)
    parts = ["# Results of the fleet simulation", "", "Written by `make bench-fleet`; not to be edited.", ""]
    parts += [f"- {line}" for line in header]
    parts += ["", *_reference_table(found), *_comparisons(found), *_others(found)]
    if plots:
        parts += ["## Plots", "", *(f"![{name.replace('-', ' ')}]({name}.svg)" for name in plots), ""]
    (folder / "fleet.md").write_text("\n".join(parts))


def _short(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    return float(f"{value:.5g}")


def _table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for row in rows:
        cells = ["—" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _reference_table(found: Outcomes) -> list[str]:
    rows: list[Sequence[Cell]] = []
    for name, values in reference(found).items():
        ours = values["ours"]
        before, after = TARGETS[name]
        limit = float(after.lstrip("≤≥ "))
        met = ours is not None and (ours <= limit if after.startswith("≤") else ours >= limit)
        rows.append((f"`{name}`", before, after, values["before"], ours, "yes" if met else "**no**"))
    head = ("figure", "SPEC before", "SPEC after", "baseline here", "ours here", "met")
    return ["## Reference figures", "", *_table(head, rows)]


_COLUMNS: tuple[tuple[str, Callable[[dict[str, float]], Cell]], ...] = (
    ("goodput", lambda m: f"{m['goodput']:.4f}"),
    ("high P50 ms", lambda m: f"{m['high_p50_ms']:.0f}"),
    ("high P99 ms", lambda m: f"{m['high_p99_ms']:.0f}"),
    ("P99 ms", lambda m: f"{m['p99_ms']:.0f}"),
    ("P99 ± ms", lambda m: f"{m['p99_stddev_ms']:.0f}"),
    ("success", lambda m: f"{m['success']:.4f}"),
    ("out of memory", lambda m: f"{m['oom_rate']:.4f}"),
    ("utilisation", lambda m: f"{m['utilisation']:.2f} ± {m['utilisation_spread']:.2f}"),
    ("prefix hits", lambda m: f"{m['prefix_hits']:.2f}"),
    ("fairness", lambda m: f"{m['fairness']:.3f}"),
)


def _runs_table(outcomes: Iterable[Outcome], key: Callable[[Outcome], str], first: str) -> list[str]:
    return _table(
        (first, *(name for name, _ in _COLUMNS)),
        [(key(each), *(cell(each.metrics) for _, cell in _COLUMNS)) for each in outcomes],
    )


def _comparisons(found: Outcomes) -> list[str]:
    parts = ["## Every policy on every workload", ""]
    verdicts: list[Sequence[Cell]] = []
    for name, scenario in SCENARIOS.items():
        here = [each for each in found.group(plan.COMPARISON) if each.task.scenario == name]
        if len(here) < len(COMPARED):
            continue
        parts += [f"### {name}", "", scenario.says, "", *_runs_table(here, lambda each: each.task.policy, "policy")]
        verdicts.append((name, *_verdict(here)))
    head = (
        "workload",
        "best other: high P99 ms",
        "ours, adaptive",
        "best other: goodput",
        "ours, adaptive",
        "ahead in",
    )
    return [*parts, "### Where ours is ahead", "", *_table(head, verdicts)]


def _verdict(here: Sequence[Outcome]) -> Sequence[Cell]:
    by = {each.task.policy: each.metrics for each in here}
    p99, other_p99 = min((by[name]["high_p99_ms"], name) for name in OTHERS)
    good, other_good = max((by[name]["goodput"], name) for name in OTHERS)
    ours = by[ADAPTIVE]
    ahead = [
        word for word, better in (("P99", ours["high_p99_ms"] < p99), ("goodput", ours["goodput"] >= good)) if better
    ]
    return (
        f"{p99:.0f} ({other_p99})",
        f"{ours['high_p99_ms']:.0f}",
        f"{good:.4f} ({other_good})",
        f"{ours['goodput']:.4f}",
        " and ".join(ahead) or "neither",
    )


def _others(found: Outcomes) -> list[str]:
    def policy(each: Outcome) -> str:
        return each.task.policy

    def changed(each: Outcome) -> str:
        (_, value), *_ = each.task.changes
        return f"{each.task.policy}, {value}"

    sections: list[tuple[str, str, Callable[[Outcome], str], str]] = [
        (plan.REFERENCE, f"Mixed load at {plan.REFERENCE_LOAD:g} of its rate (reference figure)", policy, "policy"),
        (plan.MEMORY, f"Short and long prompts at {plan.MEMORY_LOAD:g} of their rate", policy, "policy"),
        (plan.HIGHEST, "The highest mixed load with 99 % within their target", policy, "policy"),
        (plan.ERRORS, "5 % of the attempts reset or 503", policy, "policy"),
        (plan.SERVER_ERRORS, "5 % of the attempts answered 500", policy, "policy"),
        (plan.KILL, "One worker of eight killed, back after 47 s", policy, "policy"),
        (
            plan.ABLATION,
            "Ours, classic, with one part switched off",
            lambda e: f"{e.task.scenario}: {policy(e)}",
            "run",
        ),
        (plan.RISING, "Rising load, mixed", lambda e: f"{policy(e)}, {e.task.load:g}", "policy, load"),
        (plan.STALE, "Seconds between heartbeats", changed, "policy, s"),
        (plan.DELAY, "Seconds that a report is late", changed, "policy, s"),
        (plan.REPLICAS, "Gateways that know nothing of each other", changed, "policy, gateways"),
        (plan.SCALE, "Workers", lambda e: f"{policy(e)}, {e.task.workers}", "policy, workers"),
    ]
    parts: list[str] = []
    for group, title, key, first in sections:
        outcomes = found.group(group)
        if outcomes:
            parts += [f"## {title}", "", *_runs_table(outcomes, key, first)]
    return parts


def _plots(found: Outcomes) -> dict[str, str]:
    shown = found.group(plan.REFERENCE)
    plots: dict[str, str] = {}
    if found.group(plan.COMPARISON):
        plots["fairness"] = svg.bars(
            "Fairness between agents (Jain), by workload",
            {
                name: [each.metrics["fairness"] for each in found.group(plan.COMPARISON) if each.task.policy == name]
                for name in (ROUND_ROBIN, CLASSIC, ADAPTIVE)
            },
            x_label="workload, in the order of the tables",
            y_label="index",
        )
    if shown:
        plots["latency-cdf"] = svg.lines(
            "Mixed load: time to the first token",
            {each.task.policy: each.cdf for each in shown},
            x_label="ms",
            y_label="share of requests",
            log_x=True,
        )
        plots["p99-over-time"] = svg.lines(
            "Mixed load: P99 of the time to the first token, windows of 10 s",
            {each.task.policy: each.timeline for each in shown if each.timeline},
            x_label="s",
            y_label="ms",
            log_y=True,
        )
        plots["use-of-workers"] = svg.bars(
            "Mixed load: use of each worker's device",
            {each.task.policy: each.use for each in shown},
            x_label="worker",
            y_label="utilisation",
        )
    rising = found.group(plan.RISING)
    if rising:
        plots["goodput-at-rising-load"] = svg.lines(
            "Mixed load: share within the target",
            {
                name: [(each.task.load, each.metrics["goodput"]) for each in rising if each.task.policy == name]
                for name in dict.fromkeys(each.task.policy for each in rising)
            },
            x_label="load",
            y_label="goodput",
        )
    return plots
