"""Single runs, in processes of their own: names in, numbers out."""

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from bench.fleet_sim.policies import policies
from bench.fleet_sim.scenarios import SCENARIOS, scaled
from recursant.sim.fleet.policies.recursant import quiet
from recursant.sim.fleet.request import Ending
from recursant.sim.fleet.results import first_tokens, percentile, summarise, windows, worker_use
from recursant.sim.fleet.simulation import Run, Simulation
from recursant.sim.fleet.spec import FaultKind

# Points of a curve of the distribution.
_SHARES = [number / 200 for number in range(1, 200)] + [0.996, 0.998, 0.999, 1.0]


@dataclass(frozen=True)
class Task:
    """One run.

    Attributes:
        group: which table it belongs to.
        scenario, policy: names.
        load: 1 is the scenario's own.
        seed: of load and simulation.
        workers: in place of the scenario's, 0 for those.
        changes: of the environment, (field, value).
        curves: keep what plots need.
    """

    group: str
    scenario: str
    policy: str
    load: float = 1.0
    seed: int = 0
    workers: int = 0
    changes: tuple[tuple[str, Any], ...] = ()
    curves: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        metrics: of `Summary`, by name.
        cpu_s: the simulation's own CPU time.
        virtual_s: virtual time that passed.
        cdf: (ms, share) of the time to the first token.
        timeline: (s, P99 in ms) by windows.
        use: of each worker.
    """

    task: Task
    metrics: dict[str, float]
    cpu_s: float
    virtual_s: float
    cdf: tuple[tuple[float, float], ...] = ()
    timeline: tuple[tuple[float, float], ...] = ()
    use: tuple[float, ...] = ()


def simulate(task: Task) -> Outcome:
    """Run one."""
    scenario = SCENARIOS[task.scenario]
    if task.workers:
        scenario = scaled(scenario, task.workers)
    environment = replace(scenario.environment, seed=task.seed, **dict(task.changes))
    policy = policies(scenario.agents)[task.policy]
    began = time.process_time()
    with quiet():
        run = Simulation(scenario.fleet(), policy, environment).run(scenario.loads(task.load, task.seed))
    cpu_s = time.process_time() - began
    if run.in_flight_left:
        raise AssertionError(f"{task}: {run.in_flight_left} requests stay counted")
    summary = summarise(run, scenario.agents.targets_ms, scenario.agents.urgent)
    metrics = asdict(summary)
    if any(fault.kind is FaultKind.KILL for fault in environment.faults):
        metrics["recovery_s"] = _recovery_s(run, environment.faults[0].at_s)
    outcome = Outcome(task, metrics, cpu_s, run.seconds)
    if not task.curves:
        return outcome
    times = first_tokens(run.requests)
    return replace(
        outcome,
        cdf=tuple((percentile(times, share), share) for share in _SHARES),
        timeline=tuple(windows(run.requests)),
        use=tuple(worker_use(run)),
    )


def _recovery_s(run: Run, since_s: float) -> float:
    """From a fault to the last request that failed."""
    failed = [
        request.ended_s
        for request in run.requests
        if request.ending in (Ending.BROKEN, Ending.FAILED) and request.ended_s is not None
    ]
    return max(0.0, max(failed, default=since_s) - since_s)


# Loads that are looked through for the highest that meets the targets.
GOOD_ENOUGH = 0.99
_FINEST = 0.02


def highest_load(task: Task, lowest: float = 0.5, highest: float = 1.3) -> Outcome:
    """The run at the highest load at which 99 % of the requests are within their target, by halving.

    Where that is below `lowest`, the run at `lowest`.
    """
    best, at = simulate(replace(task, load=lowest)), lowest
    while highest - lowest > _FINEST:
        middle = round((lowest + highest) / 2, 4)
        found = simulate(replace(task, load=middle))
        if found.metrics["goodput"] >= GOOD_ENOUGH:
            lowest, best, at = middle, found, middle
        else:
            highest = middle
    return replace(best, task=task, metrics={**best.metrics, "load": at})


def run_any(task: Task) -> Outcome:
    """What a group of tasks asks for."""
    return highest_load(task) if task.group == "highest load" else simulate(task)


def run_all(tasks: Sequence[Task], processes: int) -> list[Outcome]:
    """All of them, in their order, with progress on the screen. Ctrl-C: those that are done."""
    found: list[Outcome] = []
    began = time.monotonic()
    with (
        Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as progress,
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
    ):
        bar = progress.add_task("simulating", total=len(tasks))
        try:
            for outcome in pool.map(run_any, tasks):
                found.append(outcome)
                task = outcome.task
                says = f"{task.group}: {task.scenario}, {task.policy}, seed {task.seed}"
                progress.update(bar, advance=1, description=says)
                if not progress.console.is_terminal:
                    passed = time.monotonic() - began
                    left = passed * (len(tasks) - len(found)) / len(found)
                    print(f"{len(found)}/{len(tasks)} {passed:.0f} s, about {left:.0f} s left: {says}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
    return found
