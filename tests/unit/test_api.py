"""The control API without its surroundings: what it takes, what it refuses, and in which words."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fleet_kit import record
from prometheus_client import CollectorRegistry

from recursant.api.app import create_app
from recursant.api.body import MAX_BODY_BYTES
from recursant.api.dependencies import Dependencies
from recursant.api.exposition import Part
from recursant.api.metrics import ApiCollector
from recursant.api.own_host import OwnHost
from recursant.api.reports import MAX_PUBLISHING, ReportSink
from recursant.fleet.evidence import Reason
from recursant.fleet.isolation import Isolation, Phase, Standing
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.store.codec import state_from_dict, state_to_dict
from recursant.store.workers import StoreError
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


# --- reports ---


@pytest.mark.parametrize("path", ["/v1/worker/register", "/v1/worker/heartbeat"])
async def test_a_report_is_published_as_it_came(rig: Rig, path: str) -> None:
    response = await rig.client.post(path, json=REPORT)
    assert response.status_code == 200
    assert response.json() == {"id": "gpu-1", "address": "10.1.2.3:8000", "sequence": 7}
    assert rig.published == [state_from_dict(REPORT)]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"id": None}, "id"),
        ({"id": "two words"}, "id"),
        ({"address": None}, "address"),
        ({"address": "nowhere"}, "address"),
        ({"address": "0.0.0.0:80"}, "address"),
        ({"address": ":0"}, "address"),
        ({"address": ":99999"}, "address"),
        ({"address": ":123456789"}, "address"),
        ({"phase": "busy"}, "phase"),
        ({"sequence": 0}, "sequence"),
        ({"sequence": "1"}, "sequence"),
        ({"incarnation": ""}, "incarnation"),
        ({"report_interval_ms": -1}, "report_interval_ms"),
        ({"running_requests": -1}, "running_requests"),
        ({"kv_cache_usage": 1.5}, "kv_cache_usage"),
        ({"models": {}}, "models"),
        ({"models": [{"name": "ok"}, {"name": ""}]}, "models[1].name"),
    ],
)
async def test_a_wrong_report_is_refused_with_its_field(rig: Rig, change: dict[str, Any], param: str) -> None:
    response = await rig.client.post("/v1/worker/heartbeat", json=REPORT | change)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, "invalid_report")
    assert error["message"].startswith(f"{param}: ")
    assert rig.published == []


@pytest.mark.parametrize("value", [[], "text", 7, None])
async def test_a_report_that_is_no_object(rig: Rig, value: Any) -> None:
    response = await rig.client.post("/v1/worker/register", content=json.dumps(value), headers=JSON)
    assert response.status_code == 400
    assert error_of(response)["param"] is None


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.9.9.9", "10.9.9.9:8000"),
        ("fd00::7", "[fd00::7]:8000"),
        # A listener for both families sees IPv4 clients like this.
        ("::ffff:10.9.9.9", "10.9.9.9:8000"),
    ],
)
async def test_a_missing_host_is_the_senders(rig: Rig, peer: str, address: str) -> None:
    response = await rig.post_from(peer, REPORT | {"address": ":8000"})
    assert response.json()["address"] == address
    assert rig.published[0].address == address


async def test_a_forwarded_address_is_not_believed(rig: Rig) -> None:
    headers = {"x-forwarded-for": "6.6.6.6", "forwarded": "for=6.6.6.6"}
    response = await rig.client.post("/v1/worker/register", json=REPORT | {"address": ":8000"}, headers=headers)
    assert response.json()["address"] == "10.9.9.9:8000"


async def test_a_host_cannot_be_filled_in_without_a_peer(rig: Rig) -> None:
    # As on a Unix socket.
    response = await rig.post_from("", REPORT | {"address": ":8000"})
    assert error_of(response)["param"] == "address"


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("content", "headers", "status", "param", "code"),
    [
        (b"{", JSON, 400, "body", "invalid_json"),
        (b"", JSON, 400, "body", "invalid_json"),
        (b"\xff\xfe{", JSON, 400, "body", "invalid_json"),
        (b'{"id": "\xe9"}', JSON, 400, "body", "invalid_json"),
        (b"[" * 200_000, JSON, 400, "body", "invalid_json"),
        (b'{"a":' * 40_000, JSON, 400, "body", "invalid_json"),
        (b'{"sequence": ' + b"9" * 10_000 + b"}", JSON, 400, "body", "invalid_json"),
        (b" " * (MAX_BODY_BYTES + 1), JSON, 413, "body", "request_too_large"),
        (b"{}", {}, 415, "content-type", "unsupported_media_type"),
        # What a web page of anybody's can make a browser send without asking first.
        (b"{}", {"content-type": "text/plain"}, 415, "content-type", "unsupported_media_type"),
        (b"a=b", {"content-type": "application/x-www-form-urlencoded"}, 415, "content-type", "unsupported_media_type"),
    ],
)
async def test_bodies_that_are_none(
    rig: Rig, content: bytes, headers: dict[str, str], status: int, param: str, code: str
) -> None:
    response = await rig.client.post("/v1/worker/heartbeat", content=content, headers=headers)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)


async def test_a_chunked_body_is_bounded_too(rig: Rig) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100 * MAX_BODY_BYTES:
            sent += 65_536
            yield b" " * 65_536

    response = await rig.client.post("/v1/worker/heartbeat", content=endless(), headers=JSON)
    assert response.status_code == 413


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
async def test_json_by_any_spelling(rig: Rig, content_type: str) -> None:
    headers = {"content-type": content_type}
    response = await rig.client.post("/v1/worker/heartbeat", content=json.dumps(REPORT), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize("hang", [True, False])
async def test_redis_away_is_503_with_retry_after(rig: Rig, hang: bool) -> None:
    rig.hang = hang
    rig.failure = StoreError("Error connecting to redis://:hunter2@10.0.0.1")
    response = await rig.client.post("/v1/worker/heartbeat", json=REPORT)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert error_of(response)["code"] == "redis_unavailable"
    assert "hunter2" not in response.text


async def test_no_redis_configured_is_503() -> None:
    registry = CollectorRegistry()
    rig = Rig()
    app = create_app(Dependencies(rig.fleet, ReportSink(None), registry, rig._peers, lambda: 0.0, rig.control))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:
        response = await client.post("/v1/worker/register", json=REPORT)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"


async def test_reports_do_not_pile_up_before_a_hanging_redis() -> None:
    never = asyncio.Event()

    async def hang(state: WorkerState) -> None:
        await never.wait()

    sink = ReportSink(hang, timeout_s=60)
    waiting = [asyncio.create_task(sink.take(REPORT, None)) for _ in range(MAX_PUBLISHING)]
    await asyncio.sleep(0)
    with pytest.raises(Exception, match="too many reports"):
        await sink.take(REPORT, None)
    never.set()
    await asyncio.gather(*waiting)
    # And the places are free again.
    await sink.take(REPORT, None)


async def test_every_report_is_counted_once(rig: Rig) -> None:
    await rig.client.post("/v1/worker/heartbeat", json=REPORT)
    await rig.client.post("/v1/worker/heartbeat", json=REPORT | {"id": ""})
    rig.failure = StoreError("away")
    await rig.client.post("/v1/worker/heartbeat", json=REPORT)
    assert rig.sink.counts == {"accepted": 1, "refused": 1, "unavailable": 1}


# --- the fleet ---


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


# --- metrics ---


async def test_metrics_are_this_services_and_the_others(rig: Rig) -> None:
    rig.fleet.records = {each: record(each) for each in ("w1", "w2")}
    rig.peers = [Part("extproc", "# TYPE recursant_redis_up gauge\nrecursant_redis_up 1.0\n"), Part("xds", None)]
    await rig.client.post("/v1/worker/heartbeat", json=REPORT)
    response = await rig.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    assert 'recursant_workers{service="api",state="ready"} 2.0' in lines
    # Zero is said, too: an alarm on a series that is absent never rings.
    assert 'recursant_workers{service="api",state="missing"} 0.0' in lines
    assert 'recursant_redis_up{service="api"} 1.0' in lines
    assert 'recursant_redis_up{service="extproc"} 1.0' in lines
    assert 'recursant_snapshot_age_seconds{service="api"} +Inf' in lines
    assert 'recursant_worker_reports_total{service="api",outcome="accepted"} 1.0' in lines
    assert 'recursant_scrape_up{service="extproc"} 1.0' in lines
    assert 'recursant_scrape_up{service="xds"} 0.0' in lines


# --- errors and description ---


async def test_unknown_paths_and_methods(rig: Rig) -> None:
    missing = await rig.client.get("/v1/nothing")
    assert missing.status_code == 404
    assert "/v1/nothing" in error_of(missing)["message"]
    wrong = await rig.client.get("/v1/worker/register")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    error_of(wrong)
    long = await rig.client.get(f"/v1/workers/{'x' * 129}")
    assert long.status_code == 400
    assert error_of(long)["param"] == "worker_id"


async def test_an_unexpected_error_is_logged_and_says_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.failure = RuntimeError("hunter2")
    response = await rig.client.post("/v1/worker/heartbeat", json=REPORT)
    assert response.status_code == 500
    assert "hunter2" not in response.text
    error_of(response)
    assert "RuntimeError: hunter2" in caplog.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8001", 200),
        ("127.0.0.1:8001", 200),
        ("127.8.8.8", 200),
        ("[::1]", 200),
        ("[::1]:8001", 200),
        ("", 200),
        ("evil.example", 403),
        ("evil.example:8001", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8001", 403),
        ("10.0.0.1:8001", 403),
        ("[::1", 403),
        ("127.0.0.1:8001:evil", 403),
    ],
)
async def test_a_web_page_under_its_own_name_is_refused(rig: Rig, host: str, status: int) -> None:
    transport = httpx.ASGITransport(OwnHost(rig.app))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        response = await client.post("/v1/worker/register", json=REPORT, headers={"host": host})
    assert response.status_code == status
    assert len(rig.published) == (status == 200)
    if status != 200:
        assert error_of(response)["code"] == "foreign_host"


async def test_the_api_describes_itself(rig: Rig) -> None:
    document = (await rig.client.get("/openapi.json")).json()
    assert set(document["paths"]) == {
        "/v1/worker/register",
        "/v1/worker/heartbeat",
        "/v1/health",
        "/readyz",
        "/v1/workers",
        "/v1/workers/{worker_id}",
        "/v1/workers/{worker_id}/drain",
        "/v1/workers/{worker_id}/isolation",
        "/v1/explain",
        "/v1/decisions",
        "/metrics",
    }
    body = document["paths"]["/v1/worker/register"]["post"]["requestBody"]
    properties = body["content"]["application/json"]["schema"]["properties"]
    assert set(properties) == {field.name for field in WorkerState.DESCRIPTOR.fields}
    assert properties["phase"] == {
        "type": "string",
        "enum": ["warming", "ready", "draining", "isolated", "stopped"],
    }
    assert properties["running_requests"] == {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
    assert properties["token_rate"] == {"anyOf": [{"type": "number"}, {"type": "null"}]}
    assert properties["models"]["items"]["properties"]["name"] == {"type": "string"}
    # Nothing is loaded from elsewhere.
    assert (await rig.client.get("/docs")).status_code == 404
