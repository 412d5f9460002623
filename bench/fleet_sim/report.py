"""Outcomes as rows, tables and plots."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.fleet_sim import plan, svg
from bench.fleet_sim.figures import REFERENCES, as_json, found_of, short
from bench.fleet_sim.outcomes import Figure, Merged, Outcomes
from bench.fleet_sim.policies import ADAPTIVE, CLASSIC, COMPARED, OTHERS, ROUND_ROBIN
from bench.fleet_sim.scenarios import SCENARIOS

Cell = str | float | int | None


def write_json(path: Path, found: Outcomes, header: dict[str, Any]) -> None:
    """The file of DESIGN and issue 6: reference figures, and a row for every number."""
    rows = [
        {
            "workload": task.scenario,
            "policy": task.policy,
            "metric": metric,
            "value": short(figure.mean),
            "by_seed": [short(value) for value in figure.each],
            "group": task.group,
            "load": task.load,
            **({"workers": task.workers} if task.workers else {}),
            **{name: value for name, value in task.changes if name != "faults"},
        }
        for task, figures in ((each.first.task, each.figures) for each in found.merged)
        for metric, figure in figures.items()
    ]
    text = json.dumps({"reference": as_json(found), "rows": rows, **header}, indent=1)
    path.write_text(text + "\n")


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


def _table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for row in rows:
        cells = ["—" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _reference_table(found: Outcomes) -> list[str]:
    rows: list[Sequence[Cell]] = []
    for name, reference in REFERENCES.items():
        here = found_of(reference, found)
        sign = "≤" if reference.most else "≥"
        rows.append(
            (
                f"`{name}`",
                f"{reference.spec_before:g}",
                f"{sign} {reference.spec_after:g}",
                "—" if here.before is None else f"{_of(here.before)} ({reference.before})",
                "—" if here.best_other is None else f"{here.best_other[0]:.4g} ({here.best_other[1]})",
                "—" if here.ours is None else f"{_of(here.ours)} ({reference.ours})",
                here.verdict(reference),
            )
        )
    head = ("figure", "SPEC before", "SPEC after", "before here", "best other here", "after here", "met")
    pick = found.figure(plan.REFERENCE, ADAPTIVE, "utilisation_spread")
    uneven = found.figure(plan.COMPARISON, ADAPTIVE, "utilisation_spread", "uneven workers")
    chance = found.figure(plan.MEMORY, ADAPTIVE, "p99_stddev_chance_ms")
    said = [
        "Means over the seeds, the smallest and the largest in brackets; *met*: under every seed. *Best other*: of all",
        "policies that are compared, where they were run. `success_rate` is the worst of three kinds of errors.",
        "",
    ]
    if pick and uneven:
        said += [
            f"The spread of utilisation under our own pick: {_of(pick)} on equal devices (mixed),",
            f"{_of(uneven)} on uneven ones.",
            "",
        ]
    if chance:
        said += [f"Of `p99_stddev_ms` chance alone makes {_of(chance)}: the same times in any order.", ""]
    return ["## Reference figures", "", *_table(head, rows), *said]


def _of(figure: Figure) -> str:
    if len(figure.each) == 1:
        return f"{figure.mean:.4g}"
    return f"{figure.mean:.4g} ({figure.low:.4g} to {figure.high:.4g})"


_COLUMNS: tuple[tuple[str, Callable[[dict[str, float]], str]], ...] = (
    ("goodput", lambda m: f"{m['goodput']:.4f}"),
    ("high P50 ms", lambda m: f"{m['high_p50_ms']:.0f}"),
    ("high P99 ms", lambda m: f"{m['high_p99_ms']:.0f}"),
    ("P99 ms", lambda m: f"{m['p99_ms']:.0f}"),
    ("P99 ± ms", lambda m: f"{m['p99_stddev_ms']:.0f}"),
    ("by chance", lambda m: f"{m['p99_stddev_chance_ms']:.0f}"),
    ("success", lambda m: f"{m['success']:.4f}"),
    ("out of memory", lambda m: f"{m['oom_rate']:.4f}"),
    ("utilisation", lambda m: f"{m['utilisation']:.2f} ± {m['utilisation_spread']:.2f}"),
    ("prefix hits", lambda m: f"{m['prefix_hits']:.2f}"),
    ("fairness", lambda m: f"{m['fairness']:.3f}"),
)


def _runs_table(outcomes: Iterable[Merged], key: Callable[[Merged], str], first: str) -> list[str]:
    def cells(each: Merged) -> list[str]:
        means = {name: figure.mean for name, figure in each.figures.items()}
        return [cell(means) for _, cell in _COLUMNS]

    return _table((first, *(name for name, _ in _COLUMNS)), [(key(each), *cells(each)) for each in outcomes])


def _comparisons(found: Outcomes) -> list[str]:
    parts = ["## Every policy on every workload", ""]
    verdicts: list[Sequence[Cell]] = []
    for name, scenario in SCENARIOS.items():
        here = [each for each in found.group(plan.COMPARISON) if each.first.task.scenario == name]
        if len(here) < len(COMPARED):
            continue
        parts += [f"### {name}", "", scenario.says, "", *_runs_table(here, _policy, "policy")]
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


def _verdict(here: Sequence[Merged]) -> Sequence[Cell]:
    by = {_policy(each): each for each in here}
    p99, other_p99 = min((by[name].mean("high_p99_ms"), name) for name in OTHERS)
    good, other_good = max((by[name].mean("goodput"), name) for name in OTHERS)
    ours = by[ADAPTIVE]
    our_p99, our_good = ours.mean("high_p99_ms"), ours.mean("goodput")
    ahead = [word for word, better in (("P99", our_p99 < p99), ("goodput", our_good >= good)) if better]
    return (
        f"{p99:.0f} ({other_p99})",
        f"{our_p99:.0f}",
        f"{good:.4f} ({other_good})",
        f"{our_good:.4f}",
        " and ".join(ahead) or "neither",
    )


def _policy(each: Merged) -> str:
    return each.first.task.policy


def _others(found: Outcomes) -> list[str]:
    def changed(each: Merged) -> str:
        (_, value), *_ = each.first.task.changes
        return f"{_policy(each)}, {value}"

    def at_load(each: Merged) -> str:
        return f"{_policy(each)}, {each.mean('load'):.2f}"

    sections: list[tuple[str, str, Callable[[Merged], str], str]] = [
        (plan.REFERENCE, f"Mixed load at {plan.REFERENCE_LOAD:g} of its rate (reference figure)", _policy, "policy"),
        (plan.MEMORY, f"Short and long prompts at {plan.MEMORY_LOAD:g} of their rate", _policy, "policy"),
        (plan.HIGHEST, "The highest mixed load with 99 % within their target", at_load, "policy, load"),
        *((group, group, _policy, "policy") for group in (*plan.ERRORS, *plan.CUDA_ERRORS)),
        (plan.KILL, "One worker of eight killed, back after 47 s", _policy, "policy"),
        (
            plan.ABLATION,
            "Ours, classic, with one part switched off",
            lambda e: f"{e.first.task.scenario}: {_policy(e)}",
            "run",
        ),
        (plan.RISING, "Rising load, mixed", lambda e: f"{_policy(e)}, {e.first.task.load:g}", "policy, load"),
        (plan.STALE, "Seconds between heartbeats", changed, "policy, s"),
        (plan.DELAY, "Seconds that a report is late", changed, "policy, s"),
        (plan.REPLICAS, "Gateways that know nothing of each other", changed, "policy, gateways"),
        (plan.SCALE, "Workers", lambda e: f"{_policy(e)}, {e.first.task.workers}", "policy, workers"),
    ]
    parts: list[str] = []
    for group, title, key, first in sections:
        outcomes = found.group(group)
        if outcomes:
            parts += [f"## {title}", "", *_runs_table(outcomes, key, first)]
    return parts


def _plots(found: Outcomes) -> dict[str, str]:
    shown = [each.first for each in found.group(plan.REFERENCE)]
    plots: dict[str, str] = {}
    if found.group(plan.COMPARISON):
        plots["fairness"] = svg.bars(
            "Fairness between agents (Jain), by workload",
            {
                name: [each.mean("fairness") for each in found.group(plan.COMPARISON) if _policy(each) == name]
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
                name: [(each.first.task.load, each.mean("goodput")) for each in rising if _policy(each) == name]
                for name in dict.fromkeys(map(_policy, rising))
            },
            x_label="load",
            y_label="goodput",
        )
    return plots
