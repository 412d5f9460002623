"""From records to published snapshots: which, when, and what happens when building fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from fleet_kit import PHI, record
from prometheus_client import CollectorRegistry
from xds_kit import cluster

from recursant import names
from recursant.config.model import Config, Xds
from recursant.config.rules_codec import TYPE_URL as RULES
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from xds_server import publisher as module
from xds_server.metrics import Recorder
from xds_server.publisher import Publisher
from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE, Resource
from xds_server.snapshot import Snapshot

PATIENCE_S = 20.0  # against hanging only


class Bench:
    """A publisher whose snapshots are kept, and whose builds are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, debounce_ms: int) -> None:
        self.registry = CollectorRegistry()
        self.published: list[Snapshot] = []
        self.builds: list[str] = []
        self.broken: Exception | None = None
        self._news = asyncio.Event()
        build, build_endpoints = module.build, module.build_endpoints

        def whole(config: Config, workers: Sequence[WorkerRecord]) -> list[Resource]:
            self.builds.append("everything")
            if self.broken is not None:
                raise self.broken
            return build(config, workers)

        def endpoints(workers: Sequence[WorkerRecord]) -> Resource:
            self.builds.append("endpoints")
            return build_endpoints(workers)

        monkeypatch.setattr(module, "build", whole)
        monkeypatch.setattr(module, "build_endpoints", endpoints)
        config = Config(xds=Xds(debounce_ms=debounce_ms))
        self.publisher = Publisher(config, self._take, Recorder(self.registry))

    def _take(self, snapshot: Snapshot) -> None:
        self.published.append(snapshot)
        self._news.set()

    async def count(self, snapshots: int) -> None:
        """Wait until so many snapshots were published."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.published) < snapshots:
                self._news.clear()
                await self._news.wait()

    async def settle(self) -> None:
        """Let everything that is due happen."""
        for _ in range(5):
            await asyncio.sleep(0.005)

    def endpoints(self) -> list[str]:
        """What the newest snapshot says of the fleet."""
        resource = self.published[-1].get(ENDPOINT, names.FLEET_CLUSTER)
        assert resource is not None
        message = ClusterLoadAssignment.FromString(resource.body)
        return [
            each.endpoint.address.socket_address.address for local in message.endpoints for each in local.lb_endpoints
        ]

    def failures(self) -> float:
        return self.registry.get_sample_value("recursant_xds_snapshot_failures_total") or 0.0


@contextlib.asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[Bench]:
    task = asyncio.create_task(bench.publisher.run())
    try:
        yield bench
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_first_snapshot_has_everything(monkeypatch: pytest.MonkeyPatch):
    bench = Bench(monkeypatch, debounce_ms=0)
    bench.publisher.observe(record("w1"))
    await bench.settle()
    # Nothing before the fleet is said to be known.
    assert bench.published == []
    async with running(bench):
        await bench.count(1)
        assert bench.published[0].types == {CLUSTER, ENDPOINT, LISTENER, ROUTE, EXTENSION_CONFIG, RULES}
        assert bench.endpoints() == ["10.0.0.1"]


async def test_a_fleet_without_workers_is_published_too(monkeypatch: pytest.MonkeyPatch):
    async with running(Bench(monkeypatch, debounce_ms=0)) as bench:
        await bench.count(1)
        assert bench.endpoints() == []


async def test_beats_build_nothing(monkeypatch: pytest.MonkeyPatch):
    bench = Bench(monkeypatch, debounce_ms=0)
    bench.publisher.observe(record("w1"))
    async with running(bench):
        await bench.count(1)
        bench.builds.clear()
        for beat in range(50):
            bench.publisher.observe(record("w1", running_requests=beat, sequence=beat))
        await bench.settle()
        assert bench.builds == []
        assert len(bench.published) == 1


async def test_a_new_weight_builds_endpoints_only(monkeypatch: pytest.MonkeyPatch):
    bench = Bench(monkeypatch, debounce_ms=0)
    bench.publisher.observe(record("w1", capacity_tokens=64_000))
    async with running(bench):
        await bench.count(1)
        bench.builds.clear()
        bench.publisher.observe(record("w1", capacity_tokens=128_000))
        await bench.count(2)
        assert bench.builds == ["endpoints"]
        assert list(bench.published[1].diff(bench.published[0])) == [ENDPOINT]


async def test_joining_and_leaving(monkeypatch: pytest.MonkeyPatch):
    async with running(Bench(monkeypatch, debounce_ms=0)) as bench:
        await bench.count(1)
        bench.publisher.observe(record("w1", models=[PHI]))
        await bench.count(2)
        assert bench.endpoints() == ["10.0.0.1"]
        bench.publisher.observe(record("w1", models=[PHI], status=WorkerStatus.MISSING))
        await bench.count(3)
        # It stays, for the moment when it comes back.
        assert bench.endpoints() == ["10.0.0.1"]
        bench.publisher.observe(record("w1", models=[PHI]))
        await bench.count(4)
        bench.publisher.remove("w1")
        await bench.count(5)
        assert bench.endpoints() == []
        # Content decides: the same fleet is the same snapshot.
        assert bench.published[3].diff(bench.published[1]) == bench.published[4].diff(bench.published[0]) == {}


async def test_changes_within_the_debounce_time_are_published_together(monkeypatch: pytest.MonkeyPatch):
    async with running(Bench(monkeypatch, debounce_ms=200)) as bench:
        await bench.count(1)
        for number in range(1, 6):
            bench.publisher.observe(record(f"w{number}"))
            await asyncio.sleep(0)
        await bench.count(2)
        assert len(bench.endpoints()) == 5


async def test_a_failing_build_keeps_the_last_good_snapshot_and_the_next_change_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async with running(Bench(monkeypatch, debounce_ms=0)) as bench:
        await bench.count(1)
        bench.broken = ValueError("no such template")
        bench.publisher.observe(record("w1"))
        await bench.settle()
        assert len(bench.published) == 1
        assert bench.failures() == 1
        assert "ValueError: no such template" in caplog.text
        assert bench.publisher.failing
        caplog.clear()
        bench.publisher.observe(record("w2"))
        await bench.settle()
        assert bench.failures() == 2
        # It was said just now.
        assert caplog.records == []
        bench.publisher.remove("w2")
        bench.broken = None
        # A change of endpoints alone, but what failed before is made up for.
        bench.publisher.observe(record("w1", endpoint="10.0.0.7:8000"))
        await bench.count(2)
        assert bench.builds[-1] == "everything"
        assert bench.endpoints() == ["10.0.0.7"]
        assert not bench.publisher.failing


async def test_an_inconsistent_snapshot_is_not_published(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    bench = Bench(monkeypatch, debounce_ms=0)
    monkeypatch.setattr(module, "build", _cluster_without_endpoints)
    async with running(bench):
        await bench.settle()
        assert bench.published == []
        assert bench.failures() == 1
        assert "ClusterLoadAssignment 'c', which does not exist" in caplog.text


def _cluster_without_endpoints(_config: Any, _workers: Any) -> list[Resource]:
    return [cluster("c")]
