"""Client commands against a running product."""

import json
from pathlib import Path

import pytest
from harness.programs import recursant
from harness.stack import MakeStack, Stack

from recursant.hot_path import build

pytestmark = pytest.mark.e2e


def test_workers_list(stack: Stack) -> None:
    done = recursant("workers", "list", "--run-dir", str(stack.run_dir))
    assert (done.exit_code, done.err) == (0, "")
    head, *rows = done.out.splitlines()
    assert head.split()[:3] == ["worker", "status", "endpoint"]
    assert {row.split()[0] for row in rows} >= set(stack.worker_pids)


def test_workers_list_for_programs(stack: Stack) -> None:
    done = recursant("workers", "list", "-o", "json", "--api", stack.endpoints.api)
    found = {worker["id"]: worker for worker in json.loads(done.out)["workers"]}
    for worker_id, url in stack.worker_urls.items():
        assert found[worker_id]["status"] == "ready"
        assert found[worker_id]["endpoint"] == url.removeprefix("http://")


def test_doctor_knows_that_it_runs(stack: Stack, tmp_path: Path) -> None:
    done = recursant("doctor", "-o", "json", "--run-dir", str(stack.run_dir), cwd=tmp_path)
    checks = {check["name"]: check for check in json.loads(done.out)}
    assert checks["run directory"]["found"].endswith(", running")
    assert checks["ports"]["verdict"] == checks["redis"]["verdict"] == "ok"
    assert done.exit_code == 0


def test_more_simulated_workers_join_and_leave(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1)
    sim = stack.start_sim("--worker-id", "late", "--model", "acme/late-llama")
    stack.start_sim("--worker-id", "far", "--api", stack.endpoints.api)
    stack.wait_worker("late")
    stack.wait_worker("far")  # It reaches only the control API.
    answer = stack.chat(agent=None, model="acme/late-llama")
    assert answer.status_code == 200
    assert answer.headers["x-recursant-worker"] == "late"
    assert sim.end() == 0
    stack.wait_until(lambda: "late" not in [worker["id"] for worker in stack.workers()])


def test_extproc_says_how_it_was_built(stack: Stack) -> None:
    # As the test process was, which knows (tests/conftest.py).
    assert f"recursant {build()}" in stack.log("extproc")
