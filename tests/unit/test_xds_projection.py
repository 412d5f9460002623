"""Which changes of a worker matter to Envoy, and what has to be built again for them."""

from typing import Any

import pytest
from fleet_kit import PHI, QWEN, record

from recursant.config.model import Config
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.v1.worker_state_pb2 import EngineCounters, WorkerState
from xds_server.projection import Projection, Rebuild
from xds_server.resource import ENDPOINT
from xds_server.resources.build import build
from xds_server.snapshot import Snapshot
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


def test_a_worker_without_an_address_asks_for_nothing():
    projection = Projection()
    assert projection.observe(worker(status=WorkerStatus.UNRESOLVED, endpoint=None)) is NOTHING
    assert projection.observe(worker(status=WorkerStatus.UNRESOLVED, endpoint=None, models=[PHI])) is NOTHING
    assert projection.remove("w1") is NOTHING
    assert projection.workers() == []


@pytest.mark.parametrize(
    "status", [WorkerStatus.WARMING, WorkerStatus.MISSING, WorkerStatus.ISOLATED, WorkerStatus.DRAINING]
)
def test_who_is_not_ready_offers_nothing(status: WorkerStatus):
    projection = Projection()
    assert projection.observe(worker(status=status)) is ENDPOINTS
    assert projection.observe(worker(status=status, lora_adapters=["support"])) is NOTHING
    assert projection.observe(worker(status=WorkerStatus.MISSING, lora_adapters=["support"])) is NOTHING
    assert projection.observe(worker(lora_adapters=["support"])) is EVERYTHING
    assert projection.remove("w1") is EVERYTHING


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


# Every field of a report, with two values: the beat of a moment ago and another.
FACTS: dict[str, tuple[Any, Any]] = {
    "sequence": (1, 2),
    "incarnation": ("first", "second"),
    "report_interval_ms": (200, 1_000),
    "exclusive": (False, True),
    "scraped": (False, True),
    "lora_adapters": ([], ["support"]),
    "running_requests": (0, 40),
    "waiting_requests": (0, 40),
    "waiting_tokens": (0, 9_000),
    "queue_wait_ms": (0.0, 800.0),
    "token_rate": (0.0, 2_000.0),
    "peak_token_rate": (0.0, 2_000.0),
    "free_vram_mb": (1_000, 9_000),
    "total_vram_mb": (10_000, 20_000),
    "kv_cache_usage": (0.1, 0.9),
    "kv_blocks_total": (1_000, 9_000),
    "kv_blocks_free": (100, 900),
    "kv_block_tokens": (16, 32),
    "kv_bytes_per_token": (1_000, 2_000),
    "bandwidth_used_mb_s": (1.0, 2.0),
    "bandwidth_total_mb_s": (3.0, 4.0),
    "gpu_temperature_c": (40.0, 80.0),
    "capacity_tokens": (64_000, 128_000),
    "max_queue": (100, 4_000),
    "max_num_seqs": (100, 4_000),
    "max_num_batched_tokens": (2_048, 8_192),
    "priority_scheduling": (False, True),
    "prefix_caching": (False, True),
    "engine": ("vllm 0.32.0", "vllm 0.33.0"),
    "finished_requests": (10, 20),
    "finished_prompt_tokens": (1_000, 2_000),
    "finished_answer_tokens": (100, 200),
    "counters": (EngineCounters(finished_stop=1), EngineCounters(finished_stop=2)),
    "gpu_ecc_errors": (0, 1),
    "gpu_xid_errors": (0, 1),
}
SHAPES: dict[str, tuple[Any, Any]] = {
    "status": (WorkerStatus.READY, WorkerStatus.DRAINING),
    "endpoint": ("10.0.0.1:8000", "10.0.0.2:8000"),
    "models": ((QWEN,), (QWEN, PHI)),
}


def test_every_field_of_a_report_is_in_the_table():
    # Addresses and models come through the record; phase through its status; errors are for people.
    elsewhere = {"id", "address", "phase", "models", "errors"}
    assert FACTS.keys() == {field.name for field in WorkerState.DESCRIPTOR.fields} - elsewhere


@pytest.mark.parametrize("status", [WorkerStatus.READY, WorkerStatus.DRAINING])
@pytest.mark.parametrize("name", [*FACTS, *SHAPES])
def test_what_is_not_built_again_would_not_have_changed(name: str, status: WorkerStatus):
    values = FACTS | SHAPES | {"status": (status, WorkerStatus.READY)}
    before = {field: pair[0] for field, pair in values.items()}
    after = before | {name: values[name][1]}
    projection = Projection()
    projection.observe(record("w1", **before))
    rebuild = projection.observe(record("w1", **after))
    config = Config()
    built = [Snapshot(build(config, [record("w1", **each)])) for each in (before, after)]
    changed = built[1].diff(built[0]).keys()
    allowed = {NOTHING: set(), ENDPOINTS: {ENDPOINT}}.get(rebuild)
    assert allowed is None or changed <= allowed
