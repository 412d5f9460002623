"""The whole service: a real Redis, real reports, and an xDS client."""

import asyncio
import contextlib
import itertools
import socket
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.service.discovery.v3.ads_pb2_grpc import AggregatedDiscoveryServiceStub
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest
from grpc import aio
from redis_server import RedisServer, free_port

from recursant import names
from recursant.config.model import Config, Redis, StaticWorker, Xds
from recursant.store.workers import WorkerStore
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState
from xds_server.resource import ENDPOINT
from xds_server.service import serve

PATIENCE_S = 20.0  # against hanging only


def config_of(redis_url: str | None, **parts: Any) -> Config:
    xds = Xds(port=free_port(), metrics_port=free_port(), debounce_ms=10)
    return Config(xds=xds, redis=Redis(url=redis_url), **parts)


@contextlib.asynccontextmanager
async def service(config: Config) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(serve(config, stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)


class FleetWatcher:
    """A delta client that follows the fleet's endpoints and accepts everything."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.pushes = 0

    async def next(self, patience_s: float = PATIENCE_S) -> set[str]:
        """The addresses after the next push."""
        response = await asyncio.wait_for(self._call.read(), patience_s)
        self.pushes += 1
        await self._call.write(DeltaDiscoveryRequest(type_url=ENDPOINT, response_nonce=response.nonce))
        (entry,) = response.resources
        message = ClusterLoadAssignment.FromString(entry.resource.value)
        return {
            f"{address.address}:{address.port_value}"
            for locality in message.endpoints
            for endpoint in locality.lb_endpoints
            for address in [endpoint.endpoint.address.socket_address]
        }

    async def until(self, expected: set[str]) -> None:
        """Read pushes until the fleet is this one."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.next() != expected:
                pass


@contextlib.asynccontextmanager
async def watcher(config: Config) -> AsyncIterator[FleetWatcher]:
    async with aio.insecure_channel(f"127.0.0.1:{config.xds.port}") as channel:
        call = AggregatedDiscoveryServiceStub(channel).DeltaAggregatedResources(wait_for_ready=True)
        await call.write(DeltaDiscoveryRequest(type_url=ENDPOINT, resource_names_subscribe=[names.FLEET_CLUSTER]))
        yield FleetWatcher(call)
        call.cancel()


def state(worker_id: str, sequence: int, **facts: Any) -> WorkerState:
    facts.setdefault("phase", WorkerPhase.WORKER_PHASE_READY)
    port = 9_000 + int(worker_id[1:])
    return WorkerState(
        id=worker_id,
        address=f"127.0.0.1:{port}",
        incarnation="first",
        sequence=sequence,
        report_interval_ms=60_000,
        **facts,
    )


async def scrape(config: Config) -> str:
    url = f"http://127.0.0.1:{config.xds.metrics_port}/metrics"

    def read() -> str:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            text: bytes = answer.read()
            return text.decode()

    return await asyncio.to_thread(read)


async def test_workers_come_beat_and_go(redis_server: RedisServer):
    config = config_of(redis_server.url)
    store = WorkerStore(redis_server.url)
    await store.publish(state("w1", 1))
    async with service(config), watcher(config) as fleet:
        # Known before the first push: an Envoy that already serves never sees an empty fleet.
        assert await fleet.next() == {"127.0.0.1:9001"}
        await store.publish(state("w2", 1))
        assert await fleet.next() == {"127.0.0.1:9001", "127.0.0.1:9002"}
        for sequence in range(2, 12):
            await store.publish(state("w1", sequence, running_requests=sequence))
        await store.publish(state("w2", 2, phase=WorkerPhase.WORKER_PHASE_STOPPED))
        # The beats in between pushed nothing.
        assert await fleet.next() == {"127.0.0.1:9001"}
        text = await scrape(config)
        assert 'recursant_workers{state="ready"} 1.0' in text
        assert 'recursant_xds_streams{protocol="delta"} 1.0' in text
        assert 'recursant_xds_clients{state="SYNCED",type="ClusterLoadAssignment"}' in text
        assert 'recursant_xds_pushes_total{type="ClusterLoadAssignment"} 3.0' in text
        assert "recursant_redis_up 1.0" in text
        assert "recursant_extproc_fail_open_total 0.0" in text
    await store.close()


async def test_redis_that_dies_takes_no_worker_along(redis_server: RedisServer):
    config = config_of(redis_server.url)
    store = WorkerStore(redis_server.url)
    await store.publish(state("w1", 1))
    async with service(config), watcher(config) as fleet:
        assert await fleet.next() == {"127.0.0.1:9001"}
        await store.close()
        redis_server.restart_empty()
        reports = asyncio.create_task(report(redis_server.url, "w2"))
        assert await fleet.next() == {"127.0.0.1:9001", "127.0.0.1:9002"}
        assert fleet.pushes == 2
        reports.cancel()


async def report(redis_url: str, worker_id: str) -> None:
    store = WorkerStore(redis_url)
    try:
        for sequence in itertools.count(1):
            await store.publish(state(worker_id, sequence))
            await asyncio.sleep(0.05)
    finally:
        await store.close()


@pytest.mark.parametrize("redis_url", [None, "redis://127.0.0.1:1/0"], ids=["not configured", "away"])
async def test_without_redis_the_configured_workers_serve(redis_url: str | None):
    worker = StaticWorker(host="127.0.0.1", port=9_007, models=("phi",))
    config = config_of(redis_url, workers=(worker,))
    async with service(config), watcher(config) as fleet:
        await fleet.until({"127.0.0.1:9007"})
        assert "recursant_redis_up 0.0" in await scrape(config)


async def test_a_port_in_use_is_said(redis_server: RedisServer):
    config = config_of(redis_server.url)
    for port in (config.xds.port, config.xds.metrics_port):
        with contextlib.closing(socket.create_server(("127.0.0.1", port))), pytest.raises(OSError, match=r"\S"):
            await serve(config, asyncio.Event())


async def test_it_stops_at_once_though_clients_are_there(redis_server: RedisServer):
    config = config_of(redis_server.url)
    async with contextlib.AsyncExitStack() as clients:
        async with service(config):
            fleet = await clients.enter_async_context(watcher(config))
            assert await fleet.next() == set()
        with contextlib.closing(socket.socket()) as probe:
            assert probe.connect_ex(("127.0.0.1", config.xds.port)) != 0
