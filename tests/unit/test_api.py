"""The control API without its surroundings: what it takes, what it refuses, and in which words."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from api_kit import REPORT, Rig, error_of, rig
from fleet_kit import record
from prometheus_client import CollectorRegistry

from recursant.api.app import create_app
from recursant.api.body import MAX_BODY_BYTES
from recursant.api.dependencies import Dependencies
from recursant.api.exposition import Part
from recursant.api.own_host import OwnHost
from recursant.api.reports import MAX_PUBLISHING, ReportSink
from recursant.store.codec import state_from_dict
from recursant.store.workers import StoreError
from recursant.v1.worker_state_pb2 import WorkerState

# The fixture of the kit.
__all__ = ["rig"]


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
        "enum": ["warming", "ready", "draining", "isolated", "stopped", "unreachable"],
    }
    assert properties["running_requests"] == {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
    assert properties["token_rate"] == {"anyOf": [{"type": "number"}, {"type": "null"}]}
    assert properties["models"]["items"]["properties"]["name"] == {"type": "string"}
    # Nothing is loaded from elsewhere.
    assert (await rig.client.get("/docs")).status_code == 404
