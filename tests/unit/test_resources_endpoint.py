from dataclasses import replace

import pytest
from envoy.config.core.v3.health_check_pb2 import DRAINING, UNKNOWN
from envoy.config.endpoint.v3.endpoint_components_pb2 import LbEndpoint
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from fleet_kit import PHI, QWEN, record
from google.protobuf.json_format import MessageToDict

from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from xds_server.resource import ENDPOINT
from xds_server.resources.build import build_endpoints


def endpoints(*workers: WorkerRecord) -> list[LbEndpoint]:
    load = ClusterLoadAssignment.FromString(build_endpoints(workers).body)
    assert load.cluster_name == "fleet"
    assert len(load.endpoints) == 1
    return list(load.endpoints[0].lb_endpoints)


def addresses(*workers: WorkerRecord) -> list[tuple[str, int]]:
    found = [endpoint.endpoint.address.socket_address for endpoint in endpoints(*workers)]
    return [(address.address, address.port_value) for address in found]


def test_a_ready_worker_with_its_weight_and_families() -> None:
    (found,) = endpoints(record("w1", models=(QWEN, PHI), capacity_tokens=128_000))
    assert found.endpoint.address.socket_address.address == "10.0.0.1"
    assert found.endpoint.address.socket_address.port_value == 8000
    assert found.load_balancing_weight.value == 125
    assert found.health_status == UNKNOWN
    assert MessageToDict(found.metadata) == {"filterMetadata": {"envoy.lb": {"model": ["phi", "qwen"], "pool": "open"}}}


@pytest.mark.parametrize(
    "status", [WorkerStatus.WARMING, WorkerStatus.ISOLATED, WorkerStatus.MISSING, WorkerStatus.DRAINING]
)
def test_who_is_not_ready_is_there_for_extprocs_list_only(status: WorkerStatus) -> None:
    (found,) = endpoints(record("w1", status=status))
    assert found.health_status == DRAINING
    assert found.load_balancing_weight.value >= 1


def test_an_exclusive_worker_is_in_no_subset() -> None:
    (found,) = endpoints(record("w1", exclusive=True))
    assert not found.HasField("metadata")


def test_a_worker_of_no_family_is_in_the_open_pool_only() -> None:
    (found,) = endpoints(record("w1", models=(Model("x", ""),)))
    assert MessageToDict(found.metadata) == {"filterMetadata": {"envoy.lb": {"pool": "open"}}}


def test_ipv6() -> None:
    assert addresses(record("w1", endpoint="[fd00::1]:8000")) == [("fd00::1", 8000)]


@pytest.mark.parametrize(
    "bad", [None, "vllm-node-01:8000", "1.2.3:80", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:x", ":80", ""]
)
def test_one_bad_address_does_not_cost_the_others(bad: str | None) -> None:
    assert addresses(replace(record("w1"), endpoint=bad), record("w2")) == [("10.0.0.2", 8000)]


def test_two_workers_at_one_address_are_one_endpoint() -> None:
    here = "10.0.0.9:8000"
    draining = record("a", endpoint=here, status=WorkerStatus.DRAINING)
    (found,) = endpoints(draining, record("b", endpoint=here, capacity_tokens=2_048))
    assert found.health_status == UNKNOWN
    assert found.load_balancing_weight.value == 2


def test_nobody_is_an_empty_assignment() -> None:
    resource = build_endpoints([])
    assert (resource.type_url, resource.name) == (ENDPOINT, "fleet")
    assert endpoints() == []


def test_the_order_of_workers_does_not_show() -> None:
    workers = [record(f"w{index}", models=(QWEN, PHI)) for index in range(20)]
    assert build_endpoints(workers) == build_endpoints(workers[::-1])


def test_a_beat_that_changes_no_capacity_changes_nothing() -> None:
    busy = record("w1", running_requests=7, token_rate=123.4, kv_blocks_free=3, sequence=99)
    assert build_endpoints([busy]) == build_endpoints([record("w1")])


def test_one_workers_change_moves_nobody_elses_weight() -> None:
    others = [record(f"w{index}", capacity_tokens=100_000 * index) for index in range(1, 5)]
    before = {e.endpoint.address.socket_address.address: e.load_balancing_weight.value for e in endpoints(*others)}
    after = {
        e.endpoint.address.socket_address.address: e.load_balancing_weight.value
        for e in endpoints(*others, record("w9", capacity_tokens=9_000_000))
    }
    assert after.pop("10.0.0.9") > 0
    assert after == before
