"""The benchmark of the fleet simulation: same seed, same numbers; its tables and plots hold what it found."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.fleet_sim import plan, report, svg
from bench.fleet_sim.figures import REFERENCES, found_of
from bench.fleet_sim.fleets import SHORT_AND_LONG, Agents, share_of
from bench.fleet_sim.outcomes import Outcomes
from bench.fleet_sim.policies import ADAPTIVE, NO_RETRIES, ROUND_ROBIN, policies
from bench.fleet_sim.runs import Outcome, Task, simulate
from bench.fleet_sim.scenarios import SCENARIOS, scaled
from recursant.sim.fleet.events import Events
from recursant.sim.fleet.request import Ending, Request
from recursant.sim.fleet.results import Summary, chance_stddev, jain, percentile, stddev, windows
from recursant.sim.fleet.worker import SimulatedWorker
from recursant.sim.profiles import A100_LLAMA_3_8B, MIB
from recursant.sim.workloads.arrival import Arrival

SMALL = Task(plan.REFERENCE, "mixed", ADAPTIVE, 0.05, curves=True)


def test_two_runs_give_the_same_numbers() -> None:
    one, other = simulate(SMALL), simulate(SMALL)
    assert replace(one, cpu_s=0.0) == replace(other, cpu_s=0.0)
    assert one.metrics["requests"] > 100
    assert one.metrics["goodput"] == 1.0


def test_every_task_names_what_there_is() -> None:
    known = policies(Agents.nobody())
    tasks = plan.tasks([0], quick=False)
    assert {task.policy for task in tasks} <= set(known)
    assert {task.scenario for task in tasks} == set(SCENARIOS)
    assert len(set(map(str, tasks))) == len(tasks)


def test_every_task_is_run_under_every_seed() -> None:
    tasks = plan.tasks([5, 6], quick=True)
    assert tasks[1] == replace(tasks[0], seed=6)
    assert len(tasks) == 2 * len(plan.tasks([5], quick=True))


def outcome(group: str, policy: str, seed: int = 0, **metrics: float) -> Outcome:
    return Outcome(Task(group, "mixed", policy, seed=seed), metrics, 1.0, 100.0)


def test_files_hold_the_reference_figures(tmp_path: Path) -> None:
    resets, errors, *_ = plan.ERRORS
    found = Outcomes(
        [
            outcome(plan.REFERENCE, ROUND_ROBIN, p99_ms=2_000.04),
            outcome(plan.REFERENCE, ADAPTIVE, p99_ms=math.nan),
            # Ours is worse where attempts are answered 500: that counts.
            outcome(resets, NO_RETRIES, success=0.95),
            outcome(resets, ADAPTIVE, success=0.9999),
            outcome(errors, NO_RETRIES, success=0.94),
            outcome(errors, ADAPTIVE, success=0.996),
            outcome(errors, ADAPTIVE, seed=1, success=0.998),
        ]
    )
    report.write_json(tmp_path / "fleet.json", found, {"seed": 7})
    written = json.loads((tmp_path / "fleet.json").read_text())
    assert written["seed"] == 7
    p99, success = written["reference"]["mixed_p99_ms"], written["reference"]["success_rate"]
    assert (p99["before"], p99["before_policy"], p99["after"], p99["ours"]) == (2_000.0, ROUND_ROBIN, 680.0, None)
    assert (success["before"], success["ours"], success["ours_range"]) == (0.94, 0.997, [0.996, 0.998])
    row = written["rows"][0]
    assert (row["workload"], row["policy"], row["metric"], row["value"]) == ("mixed", ROUND_ROBIN, "p99_ms", 2_000.0)


def test_every_run_of_the_plan_is_in_a_table_and_every_workload_is_compared(tmp_path: Path) -> None:
    numbers = dict.fromkeys((field.name for field in fields(Summary)), 0.5) | {"recovery_s": 1.0, "load": 0.9}
    line = ((1.0, 0.5), (10.0, 1.0))
    tasks = plan.tasks([0, 1], quick=False)
    found = Outcomes(Outcome(task, numbers, 1.0, 100.0, line, line, (0.5, 0.6)) for task in tasks)
    report.write_results(tmp_path, found, ["a run"])
    text = (tmp_path / "fleet.md").read_text()
    # One row for each task, whatever its seed, beside the tables of figures and of verdicts.
    rows = [each for each in text.splitlines() if each.count("|") == 13 and "---" not in each and "goodput" not in each]
    assert len(rows) == len(tasks) / 2
    verdicts = text.split("### Where ours is ahead")[1].split("##")[0]
    assert all(f"| {name} |" in verdicts for name in SCENARIOS)
    for plot in ("fairness", "latency-cdf", "p99-over-time", "use-of-workers", "goodput-at-rising-load"):
        assert f"({plot}.svg)" in text
        assert ElementTree.parse(tmp_path / f"{plot}.svg").getroot().tag.endswith("svg")  # noqa: S314 - our own text


@pytest.mark.parametrize(
    ("values", "verdict"), [((600.0, 680.0), "yes"), ((600.0, 700.0), "in the mean"), ((680.0, 690.0), "**no**")]
)
def test_a_figure_is_met_only_under_every_seed(values: tuple[float, ...], verdict: str) -> None:
    found = Outcomes(outcome(plan.REFERENCE, ADAPTIVE, seed, p99_ms=value) for seed, value in enumerate(values))
    reference = REFERENCES["mixed_p99_ms"]
    assert found_of(reference, found).verdict(reference) == verdict


def test_seeds_are_merged_and_a_missing_number_does_not_spoil_the_mean() -> None:
    found = Outcomes(outcome("group", "policy", seed, x=value) for seed, value in enumerate((1.0, math.nan, 4.0)))
    figure = found.figure("group", "policy", "x")
    assert figure is not None
    assert (figure.mean, figure.low, figure.high) == (2.5, 1.0, 4.0)
    assert found.seeds == [0, 1, 2]


def test_chance_alone_moves_the_p99_of_small_windows() -> None:
    # Two windows of two: which of them gets the 10 makes all the difference, or none where everything is equal.
    assert chance_stddev([1.0, 1.0, 1.0, 10.0], 2) == pytest.approx(4.5)
    assert chance_stddev([3.0] * 40, 4) == 0.0
    assert math.isnan(chance_stddev([], 2))


def test_a_worker_short_of_bandwidth_says_what_it_was_and_what_is_taken() -> None:
    slow, *_, whole = SCENARIOS["short of bandwidth"].fleet()
    reports = [
        SimulatedWorker(0, spec, Events(), Nobody(), beat_s=0.2, restart_s=0.0, seed=0).report()
        for spec in (slow, whole)
    ]
    assert reports[0].peak_token_rate == reports[1].peak_token_rate
    total = A100_LLAMA_3_8B.bandwidth_bytes_s / MIB
    assert [each.bandwidth_total_mb_s for each in reports] == pytest.approx([total, total])
    assert [each.bandwidth_used_mb_s for each in reports] == pytest.approx([0.95 * total, 0.0])
    # SPEC: a prefill of 85 ms takes 320.
    times = [spec.profile.token_time(1_190) + spec.profile.step_overhead_s for spec in (whole, slow)]
    assert times == pytest.approx([0.085, 0.320], rel=0.06)


class Nobody:
    def first_token(self, request: Request) -> None:
        raise AssertionError(request)

    def ended(self, request: Request, ending: Ending) -> None:
        raise AssertionError(request, ending)


def test_the_plots_are_well_formed() -> None:
    line = svg.lines("a & b", {"x": [(1.0, 0.5), (100.0, 1.0)]}, x_label="ms", y_label="share", log_x=True)
    bars = svg.bars("t", {"x": [0.5, 1.0], "y": [0.25]}, x_label="w", y_label="u")
    for text in (line, bars):
        assert ElementTree.fromstring(text).tag.endswith("svg")  # noqa: S314 - our own text


def test_a_fleet_that_grows_gets_a_load_that_grows() -> None:
    base = SCENARIOS["mixed"]
    double = scaled(base, 16)
    assert len(double.fleet()) == 16
    assert sum(1 for _ in double.loads(0.05, 0)) == sum(1 for _ in base.loads(0.1, 0))


def test_half_a_device_takes_twice_as_long() -> None:
    half = share_of(A100_LLAMA_3_8B, 0.5)
    assert half.token_time(2_048) == pytest.approx(2 * A100_LLAMA_3_8B.token_time(2_048))
    assert half.kv_blocks == A100_LLAMA_3_8B.kv_blocks // 2


def test_who_is_urgent_follows_from_the_policy() -> None:
    def request(agent: str) -> Request:
        return Request(0, Arrival(0.0, agent, 10, 10), 40)

    assert SHORT_AND_LONG.urgent(request("short"))
    assert not SHORT_AND_LONG.urgent(request("long"))


def test_numbers_by_hand() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert percentile(list(map(float, range(1, 101))), 0.99) == 99.0
    assert math.isnan(percentile([], 0.5))
    assert stddev([2.0, 4.0]) == 1.0
    assert jain([1.0, 1.0]) == 1.0
    assert jain([1.0, 0.0]) == 0.5


def test_windows_take_the_percentile_of_each_ten_seconds() -> None:
    requests = []
    for number in range(60):
        request = Request(number, Arrival(float(number) / 3, "short", 10, 10), 40)
        request.first_token_s = request.arrival.at_s + (0.1 if number < 30 else 0.2)
        request.ending = Ending.SERVED
        requests.append(request)
    assert windows(requests, 0.5) == [(5.0, pytest.approx(100.0)), (15.0, pytest.approx(200.0))]
