"""The api service as it runs: its port, a real Redis-compatible server, real requests."""

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import redis.asyncio
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from redis_server import RedisServer, free_port

from recursant.api.service import serve
from recursant.config.model import Config
from recursant.store.codec import decode
from recursant.store.keys import WORKERS
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState
from recursant.worker.reporter import Reporter

# Only against hanging.
PATIENCE_S = 30.0
REPORT: dict[str, Any] = {
    "id": "gpu-1",
    "address": ":8000",
    "phase": "ready",
    "incarnation": "a1",
    "sequence": 1,
    "report_interval_ms": 200,
    "models": [{"name": "Qwen/Qwen2.5-7B-Instruct"}],
}


def config_of(redis_url: str | None, **sections: Any) -> Config:
    return Config.model_validate(
        {
            "api": {"port": free_port()},
            "extproc": {"metrics_port": free_port()},
            "xds": {"metrics_port": free_port()},
            "redis": {"url": redis_url},
            "agents": [{"agent_id": "chat", "model_family": "qwen"}],
        }
        | sections
    )


@contextlib.asynccontextmanager
async def running(config: Config) -> AsyncIterator[httpx.AsyncClient]:
    """The service, and a client for it; stopped at the end as a signal stops it."""
    stop = asyncio.Event()
    service = asyncio.create_task(serve(config, stop))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{config.api.port}", trust_env=False) as client:
            await until_answered(client, service)
            yield client
    finally:
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await service


async def until_answered(client: httpx.AsyncClient, service: asyncio.Task[None]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not service.done():
            with contextlib.suppress(httpx.ConnectError):
                if (await client.get("/readyz")).is_success:
                    return
            await asyncio.sleep(0.01)
    service.result()


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.02)


async def redis_is(client: httpx.AsyncClient, state: str) -> bool:
    return bool((await client.get("/v1/health")).json()["redis"] == state)


async def workers_when(client: httpx.AsyncClient, condition: Any) -> list[dict[str, Any]]:
    """The list of workers, once it is as `condition` wants it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            workers: list[dict[str, Any]] = (await client.get("/v1/workers")).json()["workers"]
            if condition(workers):
                return workers
            await asyncio.sleep(0.02)


async def test_a_report_over_http_is_in_redis_and_in_the_fleet(redis_server: RedisServer) -> None:
    async with running(config_of(redis_server.url)) as client:
        # Only the connection says who this is, to a server that would believe its proxy.
        answer = await client.post("/v1/worker/register", json=REPORT, headers={"x-forwarded-for": "10.6.6.6"})
        assert answer.json() == {"id": "gpu-1", "address": "127.0.0.1:8000", "sequence": 1}
        async with redis.asyncio.Redis.from_url(redis_server.url) as store:
            state = decode(await store.hget(WORKERS, "gpu-1"))
        assert (state.address, state.phase) == ("127.0.0.1:8000", WorkerPhase.WORKER_PHASE_READY)
        (worker,) = await workers_when(client, len)
        assert (worker["status"], worker["endpoint"]) == ("ready", "127.0.0.1:8000")
        assert worker["models"][0]["family"] == "qwen"

        await client.post("/v1/worker/heartbeat", json=REPORT | {"sequence": 2, "phase": "draining"})
        await workers_when(client, lambda workers: workers[0]["status"] == "draining")
        await client.post("/v1/worker/heartbeat", json=REPORT | {"sequence": 3, "phase": "stopped"})
        await workers_when(client, lambda workers: not workers)


async def test_a_heartbeat_needs_no_registration_before(redis_server: RedisServer) -> None:
    async with running(config_of(redis_server.url)) as client:
        assert (await client.post("/v1/worker/heartbeat", json=REPORT)).status_code == 200
        await workers_when(client, len)


async def test_a_worker_that_was_there_before_us(redis_server: RedisServer) -> None:
    config = config_of(redis_server.url)
    reporter = Reporter(worker_state, api_url=f"http://127.0.0.1:{config.api.port}", interval_ms=50)
    reporting = asyncio.create_task(reporter.run())
    await asyncio.sleep(0.2)
    async with running(config) as client:
        await workers_when(client, lambda workers: workers and workers[0]["status"] == "ready")
        redis_server.restart_empty()
        # Its next beats bring it back, through a Redis that has forgotten everything.
        async with redis.asyncio.Redis.from_url(redis_server.url) as store:
            await eventually(lambda: store.hexists(WORKERS, "gpu-1"))
        await eventually(lambda: redis_is(client, "up"))
        await workers_when(client, lambda workers: workers and workers[0]["status"] == "ready")
        reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting
        # It said farewell.
        await workers_when(client, lambda workers: not workers)


def worker_state() -> WorkerState:
    return WorkerState(id="gpu-1", address="127.0.0.1:8000", phase=WorkerPhase.WORKER_PHASE_READY)


async def test_who_is_gone_for_long_is_taken_out_of_redis(redis_server: RedisServer) -> None:
    liveness = {"min_silence_ms": 100, "grace_ms": 0, "forget_after_ms": 1_000}
    async with (
        running(config_of(redis_server.url, liveness=liveness)) as client,
        redis.asyncio.Redis.from_url(redis_server.url) as store,
    ):
        others = [REPORT | {"id": f"other-{number}", "address": f":810{number}"} for number in range(2)]

        async def others_report() -> None:
            for sequence in range(1, 10_000):
                for other in others:
                    await client.post("/v1/worker/heartbeat", json=other | {"sequence": sequence})
                await asyncio.sleep(0.02)

        reporting = asyncio.create_task(others_report())
        await client.post("/v1/worker/heartbeat", json=REPORT | {"report_interval_ms": 20})
        await workers_when(client, lambda workers: any(each["status"] == "missing" for each in workers))

        async def the_others_are_left() -> bool:
            return sorted(await store.hkeys(WORKERS)) == [b"other-0", b"other-1"]

        await eventually(the_others_are_left)
        await workers_when(client, lambda workers: len(workers) == 2)
        reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting


@pytest.mark.parametrize("how", ["dead", "hanging"])
async def test_redis_away_costs_a_503_and_heals(redis_server: RedisServer, how: str) -> None:
    async with running(config_of(redis_server.url)) as client:
        assert (await client.post("/v1/worker/heartbeat", json=REPORT)).status_code == 200
        await workers_when(client, len)
        redis_server.kill() if how == "dead" else redis_server.pause()
        refused = await client.post("/v1/worker/heartbeat", json=REPORT | {"sequence": 2}, timeout=PATIENCE_S)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "redis_unavailable"
        # Nothing that reads waits for Redis.
        await eventually(lambda: redis_is(client, "down"))
        assert (await client.get("/readyz")).status_code == 200
        assert len((await client.get("/v1/workers")).json()["workers"]) == 1
        assert 'recursant_redis_up{service="api"} 0.0' in (await client.get("/metrics")).text
        redis_server.start() if how == "dead" else redis_server.resume()
        await eventually(lambda: redis_is(client, "up"))
        assert (await client.post("/v1/worker/heartbeat", json=REPORT | {"sequence": 3})).status_code == 200


async def test_redis_away_from_the_start(redis_server: RedisServer) -> None:
    redis_server.kill()
    async with running(config_of(redis_server.url)) as client:
        assert (await client.get("/v1/health")).json()["redis"] == "down"
        assert (await client.post("/v1/worker/register", json=REPORT)).status_code == 503
        redis_server.start()

        async def registered() -> bool:
            return (await client.post("/v1/worker/register", json=REPORT)).is_success

        await eventually(registered)
        await eventually(lambda: redis_is(client, "up"))
        await workers_when(client, len)


async def test_without_redis_the_configured_workers_are_there() -> None:
    config = config_of(None, workers=[{"host": "127.0.0.1", "port": 8123, "models": ["qwen"]}])
    async with running(config) as client:
        (worker,) = (await client.get("/v1/workers")).json()["workers"]
        assert (worker["id"], worker["static"], worker["status"]) == ("127.0.0.1:8123", True, "ready")
        assert worker["load"] is None
        assert (await client.post("/v1/worker/register", json=REPORT)).status_code == 503


async def test_configured_workers_are_scraped(redis_server: RedisServer) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                body = {
                    b"/metrics": b"vllm:num_requests_running 4.0\nvllm:num_requests_waiting 1.0\n",
                    b"/v1/models": b'{"data": [{"id": "Qwen/Qwen3-8B", "max_model_len": 4096}]}',
                }.get(request.split(b" ")[1], b"")
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as vllm:
        port = vllm.sockets[0].getsockname()[1]
        worker = {"host": "127.0.0.1", "port": port, "scrape_interval_ms": 100}
        async with running(config_of(redis_server.url, workers=[worker])) as client:
            (found,) = await workers_when(client, lambda workers: workers[0]["load"] is not None)
            assert found["load"]["running_requests"] == 4
            assert found["models"] == [{"name": "Qwen/Qwen3-8B", "family": "qwen", "max_model_len": 4096}]


async def test_metrics_bring_the_other_services_along(redis_server: RedisServer) -> None:
    config = config_of(redis_server.url)
    registry = CollectorRegistry()
    Gauge("recursant_inflight_requests", "Now.", ["worker"], registry=registry).labels("gpu-1").set(2)
    server, thread = start_http_server(config.extproc.metrics_port, "127.0.0.1", registry)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A service that answers and never comes to an end."""
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"# \n")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()

    async with await asyncio.start_server(drip, "127.0.0.1", config.xds.metrics_port), running(config) as client:
        lines = (await client.get("/metrics", timeout=PATIENCE_S)).text.splitlines()
    await asyncio.to_thread(server.shutdown)
    server.server_close()
    await asyncio.to_thread(thread.join)
    assert 'recursant_inflight_requests{service="extproc",worker="gpu-1"} 2.0' in lines
    assert 'recursant_scrape_up{service="extproc"} 1.0' in lines
    assert 'recursant_scrape_up{service="xds"} 0.0' in lines
    assert any(line.startswith('process_cpu_seconds_total{service="api"}') for line in lines)


async def test_a_port_in_use_is_one_clear_error() -> None:
    config = config_of(None)
    address = f"127.0.0.1:{config.api.port}"
    with (
        socket.create_server(("127.0.0.1", config.api.port)),
        pytest.raises(OSError, match=f"cannot listen on {re.escape(address)}: Address already in use"),
    ):
        await serve(config, asyncio.Event())


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 403), ("0.0.0.0", 200)])
async def test_other_names_are_for_those_who_listen_wider(host: str, status: int) -> None:
    async with running(config_of(None, api={"host": host, "port": free_port()})) as client:
        answer = await client.get("/v1/health", headers={"host": "api.example:8001"})
        assert answer.status_code == status


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
async def test_listening_for_others_warns(host: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(None, api={"host": host, "port": free_port()})
    with caplog.at_level(logging.INFO, "recursant.api"):
        async with running(config):
            pass
    texts = [entry.getMessage() for entry in caplog.records if entry.name == "recursant.api.service"]
    assert f"listening on {host}:{config.api.port}" in texts
    assert any("whoever reaches it" in text for text in texts) is warns


async def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    config = config_of(None, api={"host": "::1", "port": free_port()})
    stop = asyncio.Event()
    service = asyncio.create_task(serve(config, stop))
    async with httpx.AsyncClient(base_url=f"http://[::1]:{config.api.port}", trust_env=False) as client:
        await until_answered(client, service)
    stop.set()
    await service


async def test_stopping_finishes_what_is_running(redis_server: RedisServer) -> None:
    config = config_of(redis_server.url)
    stop = asyncio.Event()
    service = asyncio.create_task(serve(config, stop))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{config.api.port}", trust_env=False) as client:
        await until_answered(client, service)
        redis_server.pause()
        request = asyncio.create_task(client.post("/v1/worker/register", json=REPORT, timeout=PATIENCE_S))
        await asyncio.sleep(0.1)
        stop.set()
        # It got its answer, though Redis hangs and we are going.
        assert (await request).status_code == 503
    begun = time.monotonic()
    await service
    assert time.monotonic() - begun < PATIENCE_S
    redis_server.resume()
