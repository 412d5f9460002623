"""Processes that die come back by themselves."""

import time

import pytest
from harness.stack import MakeStack
from harness.waiting import wait_until

pytestmark = pytest.mark.e2e


def test_each_process_killed_hard_is_started_again(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1)
    before = stack.pids
    for name in before:
        old = stack.kill(name)
        new = stack.wait_restarted(name, old)
        assert new != old
        wait_until(lambda name=name: f"{name} is back" in stack.up.errors, what=f"{name} is ready again")
        assert f"{name} (pid {old}) died: signal 9 (SIGKILL), starting it again in " in stack.up.errors
    after = stack.pids
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())
    wait_until(lambda: "x-recursant-worker" in stack.chat().headers, what="requests are routed as before")
    assert {process.name: process.pid for process in stack.endpoints.processes} == after


def test_a_worker_leaves_the_fleet_before_it_comes_back(make_stack: MakeStack) -> None:
    stack = make_stack(workers=2)
    name = next(iter(stack.worker_pids))
    old = stack.kill(name)
    killed_at = time.monotonic()
    wait_until(lambda: name not in stack.pids, what="endpoints.json says that it is away")
    assert [worker.pid for worker in stack.endpoints.workers if worker.id == name] == [None]
    stack.wait_worker(name, "missing")
    stack.wait_restarted(name, old)
    # Documented in docs/running.md: longer than three beats.
    assert time.monotonic() - killed_at >= 2
    stack.wait_worker(name, "ready")
