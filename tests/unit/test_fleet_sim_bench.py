"""The benchmark of the fleet simulation: same seed, same numbers; its tables and plots hold what it found."""

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.fleet_sim import plan, report, svg
from bench.fleet_sim.fleets import SHORT_AND_LONG, Agents, share_of
from bench.fleet_sim.policies import ADAPTIVE, NO_RETRIES, ROUND_ROBIN, policies
from bench.fleet_sim.runs import Outcome, Task, simulate
from bench.fleet_sim.scenarios import SCENARIOS, scaled
from recursant.sim.fleet.request import Ending, Request
from recursant.sim.fleet.results import jain, percentile, stddev, windows
from recursant.sim.profiles import A100_LLAMA_3_8B
from recursant.sim.workloads.arrival import Arrival

SMALL = Task(plan.REFERENCE, "mixed", ADAPTIVE, 0.05, curves=True)


def test_two_runs_give_the_same_numbers() -> None:
    one, other = simulate(SMALL), simulate(SMALL)
    assert replace(one, cpu_s=0.0) == replace(other, cpu_s=0.0)
    assert one.metrics["requests"] > 100
    assert one.metrics["goodput"] == 1.0


def test_every_task_names_what_there_is() -> None:
    known = policies(Agents.nobody())
    tasks = plan.tasks(0, quick=False)
    assert {task.policy for task in tasks} <= set(known)
    assert {task.scenario for task in tasks} == set(SCENARIOS)
    assert len(set(map(str, tasks))) == len(tasks)


def test_files_hold_the_reference_figures(tmp_path: Path) -> None:
    found = report.Outcomes(
        [
            Outcome(Task(plan.REFERENCE, "mixed", ROUND_ROBIN), {"p99_ms": 2_000.04}, 1.0, 100.0),
            Outcome(Task(plan.REFERENCE, "mixed", ADAPTIVE), {"p99_ms": math.nan}, 1.0, 100.0),
            Outcome(Task(plan.ERRORS, "faults", NO_RETRIES), {"success": 0.95}, 1.0, 100.0),
            Outcome(Task(plan.ERRORS, "faults", ADAPTIVE), {"success": 0.999}, 1.0, 100.0),
        ]
    )
    report.write_json(tmp_path / "fleet.json", found, {"seed": 7})
    written = json.loads((tmp_path / "fleet.json").read_text())
    assert written["seed"] == 7
    assert written["reference"]["mixed_p99_ms"] == {"before": 2_000.0, "after": 680.0, "ours": None}
    assert written["reference"]["success_rate"] == {"before": 0.95, "after": 0.992, "ours": 0.999}
    row = written["rows"][0]
    assert (row["workload"], row["policy"], row["metric"], row["value"]) == ("mixed", ROUND_ROBIN, "p99_ms", 2_000.0)


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
