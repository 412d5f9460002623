"""The control API's view of the fleet: lists, isolation by hand, health and readiness."""

from dataclasses import replace
from typing import Any

import pytest
from api_kit import Rig, error_of, rig
from fleet_kit import record

from recursant.fleet.evidence import Reason
from recursant.fleet.isolation import Isolation, Phase, Standing
from recursant.fleet.worker import WorkerStatus
from recursant.store.codec import state_to_dict
from recursant.store.workers import StoreError

# The fixture of the kit.
__all__ = ["rig"]


async def test_workers_are_listed_by_id(rig: Rig) -> None:
    rig.fleet.records = {
        "w2": record("w2", sequence=1, running_requests=2, waiting_requests=1, kv_cache_usage=0.5, free_vram_mb=3_200),
        "w1": record("w1", status=WorkerStatus.UNRESOLVED, endpoint=None, exclusive=True),
    }
    first, second = (await rig.client.get("/v1/workers")).json()["workers"]
    assert first["id"] == "w1"
    assert (first["status"], first["endpoint"], first["exclusive"]) == ("unresolved", None, True)
    # Nothing was ever reported: unknown, not zero.
    assert first["load"] is None
    assert second == {
        "id": "w2",
        "status": "ready",
        "endpoint": "10.0.0.2:8000",
        "static": False,
        "exclusive": False,
        "engine": "",
        "models": [{"name": "Qwen/Qwen2.5-7B-Instruct", "family": "qwen", "max_model_len": 32_768}],
        "isolation": None,
        "load": {
            "running_requests": 2,
            "waiting_requests": 1,
            "queue_wait_ms": None,
            "token_rate": None,
            "kv_cache_usage": 0.5,
            "free_vram_mb": 3_200,
            "capacity_tokens": None,
        },
        # fleet_kit beats at 0, the clock says 100.
        "last_beat_age_s": 100.0,
    }


async def test_one_worker_with_its_report(rig: Rig) -> None:
    rig.fleet.records = {"rack/gpu:1": record("rack/gpu:1", sequence=3, max_queue=9)}
    found = await rig.client.get("/v1/workers/rack/gpu:1")
    assert found.json()["id"] == "rack/gpu:1"
    assert found.json()["report"] == state_to_dict(rig.fleet.records["rack/gpu:1"].state)
    missing = await rig.client.get("/v1/workers/nobody")
    assert missing.status_code == 404
    assert error_of(missing)["code"] == "worker_not_found"


async def test_isolating_and_releasing_by_hand(rig: Rig) -> None:
    rig.fleet.records = {"rack/gpu:1": record("rack/gpu:1")}
    path = "/v1/workers/rack/gpu:1/isolation"
    assert (await rig.client.post(path, json={"for_s": 60, "reason": "odd"})).status_code == 200
    assert (await rig.client.post(path, json={})).status_code == 200
    assert (await rig.client.delete(path)).status_code == 200
    assert rig.control.orders == [
        ("rack/gpu:1", 60.0, "odd", "operator"),
        # Ten minutes, where nothing is said.
        ("rack/gpu:1", 600.0, "", "operator"),
        ("rack/gpu:1", "operator"),
    ]


@pytest.mark.parametrize("order", [{"for_s": 0}, {"for_s": 86_401}, {"reason": "x" * 501}, {"whom": 1}, []])
async def test_an_order_that_is_none_changes_nothing(rig: Rig, order: Any) -> None:
    rig.fleet.records = {"w1": record("w1")}
    assert (await rig.client.post("/v1/workers/w1/isolation", json=order)).status_code == 400
    assert (await rig.client.post("/v1/workers/w2/isolation", json={})).status_code == 404
    assert (await rig.client.delete("/v1/workers/w2/isolation")).status_code == 404
    assert rig.control.orders == []


async def test_an_order_that_nobody_else_would_hear_of_is_refused(rig: Rig) -> None:
    rig.fleet.records = {"w1": record("w1")}
    rig.control.failure = StoreError("connection refused")
    for answer in (
        await rig.client.post("/v1/workers/w1/isolation", json={}),
        await rig.client.delete("/v1/workers/w1/isolation"),
    ):
        assert (answer.status_code, error_of(answer)["code"]) == (503, "redis_down")


async def test_a_worker_says_why_it_is_isolated(rig: Rig) -> None:
    isolation = Isolation("w1", "first", Reason.CUDA, "3 CUDA errors in a row: boom", 1, 130.4, 190.0, by="extproc")
    rig.fleet.records = {
        "w1": replace(record("w1"), status=WorkerStatus.ISOLATED, standing=Standing(isolation, Phase.ISOLATED))
    }
    (shown,) = (await rig.client.get("/v1/workers")).json()["workers"]
    assert shown["status"] == "isolated"
    assert shown["isolation"] == {
        "phase": "isolated",
        "reason": "cuda",
        "text": "3 CUDA errors in a row: boom",
        "left_s": 31.0,
        "by": "extproc",
    }


async def test_health_is_good_whatever_it_says(rig: Rig) -> None:
    rig.fleet.redis_up = False
    health = await rig.client.get("/v1/health")
    assert health.status_code == 200
    assert health.json()["redis"] == "down"
    assert health.json()["snapshot_age_s"] is None
    rig.fleet.redis_up = True
    rig.fleet.heard_at = 99.5
    rig.fleet.records = {each: record(each) for each in ("w1", "w2")}
    rig.fleet.records["w3"] = record("w3", status=WorkerStatus.MISSING)
    health = await rig.client.get("/v1/health")
    assert health.json()["redis"] == "up"
    assert health.json()["snapshot_age_s"] == 0.5
    assert health.json()["workers"] == {"missing": 1, "ready": 2}


async def test_ready_once_the_fleet_is_known(rig: Rig) -> None:
    rig.fleet.loaded = False
    before = await rig.client.get("/readyz")
    assert before.status_code == 503
    assert before.headers["retry-after"] == "1"
    assert error_of(before)["code"] == "not_ready"
    rig.fleet.loaded = True
    assert (await rig.client.get("/readyz")).status_code == 200
