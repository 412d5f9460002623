"""Draining a worker: when it may be stopped, the control API's part, and the command that waits."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from api_kit import Rig, error_of, rig
from fleet_kit import record
from test_cli_workers import Api, api

from recursant.api.drain import in_flight_at
from recursant.api.exposition import Part
from recursant.cli.app import run
from recursant.cli.drain_view import wait_until_drained
from recursant.cli.errors import CommandError
from recursant.fleet.drained import SETTLE_S, progress
from recursant.fleet.evidence import Reason
from recursant.fleet.isolation import LONGEST_DRAIN_S, Isolation, Phase, Standing
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.store.exchange import StoreError

# The fixtures of those modules.
__all__ = ["api", "rig"]

BEGAN = 50.0


def drained(
    *, running: int = 0, waiting: int = 0, beat: float | None = 99.9, status: WorkerStatus = WorkerStatus.DRAINING
) -> WorkerRecord:
    """A worker that is drained on an operator's word since BEGAN."""
    until_s = BEGAN + LONGEST_DRAIN_S
    isolation = Isolation("w1", "first", Reason.DRAIN, "driver update", 1, until_s, until_s, by="operator")
    made = record("w1", status=status, running_requests=running, waiting_requests=waiting, sequence=7)
    return replace(made, last_beat=beat, standing=Standing(isolation, Phase.DRAINING))


# --- when it may be stopped ---


@pytest.mark.parametrize(
    ("worker", "in_flight", "safe", "text"),
    [
        (drained(), 0, True, "nothing runs there any more: it is safe to stop"),
        (drained(), None, True, "nothing runs there any more: it is safe to stop"),
        (drained(running=2, waiting=1), 3, False, "2 running, 1 waiting, 3 of the gateway's"),
        (drained(running=2), None, False, "2 running, 0 waiting"),
        # The gateway has sent what the worker has not reported yet.
        (drained(), 1, False, "0 running, 0 waiting, 1 of the gateway's"),
        # What it said before routing stopped everywhere proves nothing.
        (drained(beat=BEGAN + SETTLE_S / 2), 0, False, "nothing runs there; waiting for what may be on its way"),
        (drained(beat=None), 0, False, "it has not reported yet"),
        (drained(status=WorkerStatus.MISSING), 0, False, "it reports no longer: nothing is known of what runs there"),
        (record("w1", sequence=1), 0, False, "it takes requests: it does not drain"),
        # It drains by its own word.
        (
            record("w1", status=WorkerStatus.DRAINING, sequence=1),
            0,
            True,
            "nothing runs there any more: it is safe to stop",
        ),
    ],
)
def test_when_a_worker_may_be_stopped(worker: WorkerRecord, in_flight: int | None, safe: bool, text: str) -> None:
    found = progress(worker, in_flight)
    assert (found.safe_to_stop, found.text) == (safe, text)


def test_what_the_gateways_have_there_adds_up() -> None:
    def text(*counts: tuple[str, int]) -> str:
        return "".join(f'recursant_inflight_requests{{worker="{worker}"}} {count}.0\n' for worker, count in counts)

    parts = [
        Part("extproc", text(("w1", 2), ("w11", 5), ('odd\\"one', 1)), "0"),
        Part("extproc", text(("w1", 1)), "1"),
        Part("extproc", None, "2"),
        Part("xds", text(("w1", 9))),
    ]
    assert in_flight_at("w1", parts) == 3
    assert in_flight_at('odd"one', parts) == 1
    assert in_flight_at("nobody", parts) == 0
    assert in_flight_at("w1", [Part("extproc", None), Part("xds", "")]) is None


# --- the control API ---


async def test_drains_and_resumes(rig: Rig) -> None:
    rig.fleet.records = {"rack/gpu:1": replace(drained(running=1), worker_id="rack/gpu:1")}
    rig.peers = [Part("extproc", 'recursant_inflight_requests{worker="rack/gpu:1"} 1.0\n')]
    path = "/v1/workers/rack/gpu:1/drain"
    answer = await rig.client.post(path, json={"reason": "driver update"})
    assert answer.json() == {
        "worker": "rack/gpu:1",
        "status": "draining",
        "draining": True,
        "running_requests": 1,
        "waiting_requests": 0,
        "in_flight": 1,
        "safe_to_stop": False,
        "text": "1 running, 0 waiting, 1 of the gateway's",
    }
    assert (await rig.client.get(path)).json() == answer.json()
    assert (await rig.client.delete(path)).status_code == 200
    assert rig.control.orders == [("rack/gpu:1", "driver update", "operator"), ("rack/gpu:1", "operator")]


async def test_resuming_releases_nothing_but_a_drain(rig: Rig) -> None:
    isolation = Isolation("w1", "first", Reason.CUDA, "", 1, 130.0, 190.0)
    rig.fleet.records = {
        "w1": replace(record("w1"), status=WorkerStatus.ISOLATED, standing=Standing(isolation, Phase.ISOLATED)),
        "w2": record("w2", status=WorkerStatus.DRAINING),
    }
    assert (await rig.client.delete("/v1/workers/w1/drain")).json()["status"] == "isolated"
    assert (await rig.client.delete("/v1/workers/w2/drain")).json()["draining"] is True
    assert rig.control.orders == []


@pytest.mark.parametrize("order", [{"reason": "x" * 501}, {"whom": 1}, []])
async def test_an_order_that_is_none_changes_nothing(rig: Rig, order: Any) -> None:
    rig.fleet.records = {"w1": record("w1")}
    assert (await rig.client.post("/v1/workers/w1/drain", json=order)).status_code == 400
    for method in ("POST", "GET", "DELETE"):
        answer = await rig.client.request(method, "/v1/workers/w2/drain", json={})
        assert (answer.status_code, error_of(answer)["code"]) == (404, "worker_not_found")
    assert rig.control.orders == []


async def test_an_order_that_nobody_else_would_hear_of_is_refused(rig: Rig) -> None:
    rig.fleet.records = {"w1": drained()}
    rig.control.failure = StoreError("connection refused")
    for answer in (
        await rig.client.post("/v1/workers/w1/drain", json={}),
        await rig.client.delete("/v1/workers/w1/drain"),
    ):
        assert (answer.status_code, error_of(answer)["code"]) == (503, "redis_down")


# --- the command ---


def answer(text: str, *, draining: bool = True, safe: bool = False, status: str = "draining") -> dict[str, Any]:
    return {"draining": draining, "safe_to_stop": safe, "text": text, "status": status}


def wait(*answers: dict[str, Any], seconds: float = 600.0) -> list[str]:
    """What is said while these answers come."""
    said: list[str] = []
    now = [0.0]
    coming: Iterator[dict[str, Any]] = iter(answers)

    def sleep(duration: float) -> None:
        now[0] += duration

    wait_until_drained(
        "gpu-7",
        next(coming),
        lambda: next(coming),
        seconds,
        clock=lambda: now[0],
        sleep=sleep,
        say=said.append,
    )
    return said


def test_says_every_step_once_and_when_it_is_safe() -> None:
    steps = [answer("it takes requests: it does not drain", draining=False, status="ready")]
    steps += [answer("2 running"), answer("2 running"), answer("1 running"), answer("done", safe=True)]
    assert wait(*steps) == [
        "gpu-7: it takes requests: it does not drain",
        "gpu-7: 2 running",
        "gpu-7: 1 running",
        "gpu-7: done",
    ]


def test_gives_up_in_time_and_says_what_is_left() -> None:
    with pytest.raises(CommandError, match=r"not done within 2 s: 3 running.*workers resume gpu-7"):
        wait(*[answer("3 running")] * 10, seconds=2.0)


def test_a_drain_that_somebody_ended_is_no_success() -> None:
    with pytest.raises(CommandError, match="takes requests again"):
        wait(answer("2 running"), answer("it takes requests", draining=False))


def test_sends_the_order(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.answer = answer("nothing runs there any more: it is safe to stop", safe=True)
    assert run(["workers", "drain", "rack/gpu 1", "--reason", "odd", "--api", api.url]) == 0
    api.answer = answer("2 running")
    assert run(["workers", "drain", "w2", "--no-wait", "--api", api.url]) == 0
    api.answer = answer("", draining=False, status="ready")
    assert run(["workers", "resume", "w2", "--api", api.url]) == 0
    api.answer = answer("")
    assert run(["workers", "undrain", "w2", "--api", api.url]) == 0
    assert api.orders == [
        ("POST", "/v1/workers/rack%2Fgpu%201/drain", {"reason": "odd"}),
        ("POST", "/v1/workers/w2/drain", {"reason": ""}),
        ("DELETE", "/v1/workers/w2/drain", None),
        ("DELETE", "/v1/workers/w2/drain", None),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "rack/gpu 1: nothing runs there any more: it is safe to stop",
        "w2 drains: 2 running",
        "w2 is ready",
        "w2 drains by its own word: it has to take that back itself",
    ]
