"""Which changes of a worker matter to Envoy, and what has to be built again for them."""

from typing import Any

import pytest
from fleet_kit import PHI, QWEN, record

from recursant.fleet.worker import WorkerRecord, WorkerStatus
from xds_server.projection import Projection, Rebuild
from xds_server.weights import QUANTUM_TOKENS

EVERYTHING, ENDPOINTS, NOTHING = Rebuild.EVERYTHING, Rebuild.ENDPOINTS, Rebuild.NOTHING
CAPACITY = 64 * QUANTUM_TOKENS


def worker(**changes: Any) -> WorkerRecord:
    return record("w1", **{"capacity_tokens": CAPACITY, **changes})


@pytest.mark.parametrize(
    ("changes", "rebuild"),
    [
        ({}, NOTHING),
        ({"running_requests": 7, "waiting_requests": 3, "queue_wait_ms": 12.5, "token_rate": 900.0}, NOTHING),
        ({"kv_cache_usage": 0.9, "free_vram_mb": 100, "gpu_temperature_c": 80.0, "sequence": 99}, NOTHING),
        ({"incarnation": "second"}, NOTHING),
        # Weights are quantised: what does not move the weight moves nothing.
        ({"capacity_tokens": CAPACITY + QUANTUM_TOKENS // 4}, NOTHING),
        ({"capacity_tokens": 2 * CAPACITY}, ENDPOINTS),
        ({"endpoint": "10.0.0.9:8000"}, ENDPOINTS),
        ({"status": WorkerStatus.DRAINING}, EVERYTHING),
        ({"status": WorkerStatus.MISSING}, EVERYTHING),
        ({"status": WorkerStatus.ISOLATED}, EVERYTHING),
        ({"status": WorkerStatus.UNRESOLVED, "endpoint": None}, EVERYTHING),
        ({"models": [QWEN, PHI]}, EVERYTHING),
        ({"exclusive": True}, EVERYTHING),
        ({"lora_adapters": ["support"]}, EVERYTHING),
        ({"priority_scheduling": True}, EVERYTHING),
        ({"max_num_seqs": 512}, EVERYTHING),
        ({"max_queue": 512}, EVERYTHING),
    ],
    ids=str,
)
def test_what_a_change_asks_for(changes: dict[str, Any], rebuild: Rebuild):
    projection = Projection()
    assert projection.observe(worker()) is EVERYTHING
    assert projection.observe(worker(**changes)) is rebuild
    # Having been said, it is no news.
    assert projection.observe(worker(**changes)) is NOTHING


@pytest.mark.parametrize("status", [WorkerStatus.WARMING, WorkerStatus.MISSING, WorkerStatus.ISOLATED])
def test_workers_that_envoy_never_sees_ask_for_nothing(status: WorkerStatus):
    projection = Projection()
    assert projection.observe(worker(status=status)) is NOTHING
    assert projection.observe(worker(status=status, models=[PHI])) is NOTHING
    assert projection.remove("w1") is NOTHING
    assert projection.workers() == []


def test_a_draining_worker_offers_nothing_new():
    projection = Projection()
    projection.observe(worker(status=WorkerStatus.DRAINING))
    assert projection.observe(worker(status=WorkerStatus.DRAINING, lora_adapters=["support"])) is NOTHING
    assert projection.observe(worker(status=WorkerStatus.MISSING, lora_adapters=["support"])) is ENDPOINTS


def test_leaving():
    projection = Projection()
    projection.observe(worker())
    assert projection.remove("w1") is EVERYTHING
    assert projection.remove("w1") is NOTHING
    assert projection.observe(worker()) is EVERYTHING


def test_workers_come_by_id_with_their_newest_record():
    projection = Projection()
    for worker_id in ("w2", "w1", "w3"):
        projection.observe(record(worker_id))
    newest = record("w2", running_requests=5)
    projection.observe(newest)
    assert [each.worker_id for each in projection.workers()] == ["w1", "w2", "w3"]
    assert projection.workers()[1] is newest


def test_statuses():
    projection = Projection()
    projection.observe(record("w1"))
    projection.observe(record("w2"))
    projection.observe(record("w3", status=WorkerStatus.MISSING))
    assert projection.statuses() == {WorkerStatus.READY: 2, WorkerStatus.MISSING: 1}
