"""The control API without its surroundings, and how to read its errors."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from recursant.api.app import create_app
from recursant.api.dependencies import Dependencies
from recursant.api.exposition import Part
from recursant.api.metrics import ApiCollector
from recursant.api.reports import ReportSink
from recursant.fleet.worker import WorkerRecord
from recursant.v1.worker_state_pb2 import WorkerState

REPORT: dict[str, Any] = {
    "id": "gpu-1",
    "address": "10.1.2.3:8000",
    "phase": "ready",
    "incarnation": "a1",
    "sequence": 7,
    "report_interval_ms": 200,
    "models": [{"name": "Qwen/Qwen2.5-7B-Instruct", "vram_mb": 15_000}],
    "running_requests": 3,
}


class FakeFleet:
    """A fleet as told."""

    def __init__(self, *records: WorkerRecord) -> None:
        self.records = {each.worker_id: each for each in records}
        self.loaded = True
        self.redis_up = True
        self.heard_at = -math.inf

    def snapshot_age_s(self, now: float) -> float:
        return now - self.heard_at


class FakeControl:
    """Notes what operators order."""

    def __init__(self) -> None:
        self.orders: list[tuple[object, ...]] = []
        self.failure: Exception | None = None

    async def isolate(self, worker_id: str, seconds: float, text: str, *, by: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.orders.append((worker_id, seconds, text, by))

    async def drain(self, worker_id: str, text: str, *, by: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.orders.append((worker_id, text, by))

    async def release(self, worker_id: str, *, by: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.orders.append((worker_id, by))


class Rig:
    """An API over fakes, reached through ASGI."""

    def __init__(self) -> None:
        self.fleet = FakeFleet()
        self.published: list[WorkerState] = []
        self.failure: Exception | None = None
        self.hang = False
        self.peers: Sequence[Part] = ()
        self.sink = ReportSink(self._publish, timeout_s=0.05)
        self.control = FakeControl()
        registry = CollectorRegistry()
        registry.register(ApiCollector(self.fleet, self.sink, lambda: 100.0))
        self.app = create_app(Dependencies(self.fleet, self.sink, registry, self._peers, lambda: 100.0, self.control))
        self.client = self._client(("10.9.9.9", 4711))

    def _client(self, peer: tuple[str, int]) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=peer)
        return httpx.AsyncClient(transport=transport, base_url="http://api")

    async def post_from(self, peer: str, report: Any) -> httpx.Response:
        async with self._client((peer, 4711)) as client:
            return await client.post("/v1/worker/register", json=report)

    async def _publish(self, state: WorkerState) -> None:
        if self.hang:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        self.published.append(state)

    async def _peers(self) -> Sequence[Part]:
        return self.peers


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    async with rig.client:
        yield rig


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The OpenAI-shaped error in a response."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])
