"""The policies' part of the control API: conditions, capacity, the token, and the warm-up hook."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fleet_kit import record
from redis_server import RedisServer
from starlette.responses import PlainTextResponse

from recursant.agents.capacity import missing_for
from recursant.agents.directory import PolicyDirectory
from recursant.agents.policy import AgentPolicy
from recursant.api import errors
from recursant.api.policies import PolicyDesk, router
from recursant.api.status import router as status_router
from recursant.api.token import TokenGate
from recursant.api.warm_up import WarmUp
from recursant.config.model import Api, Config, WarmUpHook
from recursant.fleet.families import FamilyResolver
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from recursant.store.policies import PolicyStore

PATIENCE_S = 20.0  # against hanging only
QWEN = Model("Qwen/Qwen2.5-7B-Instruct", "qwen")
CHAT = AgentPolicy(agent_id="chat", model_family="qwen")
VOICE = {"agent_id": "voice", "model_family": "whisper"}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nobody here has an event
            await asyncio.sleep(0.01)


def families(*policies: AgentPolicy) -> FamilyResolver:
    return FamilyResolver.from_config(Config(agents=policies))


class Rig:
    """The routes over a real Redis, reached through ASGI."""

    def __init__(self, url: str | None, hook: WarmUpHook) -> None:
        self.workers: dict[str, WorkerRecord] = {"w1": record("w1", models=[QWEN])}
        self.directory = PolicyDirectory([CHAT], PolicyStore(url) if url else None)
        self.outside = httpx.AsyncClient(trust_env=False)
        self.warm_up = WarmUp(hook, self.outside)
        app = FastAPI()
        errors.install(app)
        desk = PolicyDesk(self.directory, lambda: self.workers, lambda policy: families(CHAT, policy), self.warm_up)
        app.include_router(router(desk))
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api")

    async def put(self, body: Any, query: str = "", **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.put(f"/v1/policies/{body['agent_id']}{query}", json=body, headers=sent)

    async def close(self) -> None:
        await self.client.aclose()
        await self.warm_up.close()
        await self.outside.aclose()


@pytest.fixture
async def rig(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Rig]:
    command = ("sh", "-c", f'echo "$RECURSANT_AGENT $RECURSANT_MODEL_FAMILY" >> {tmp_path}/hook; sleep 60')
    rig = Rig(redis_server.url, WarmUpHook(command=command, timeout_ms=60_000))
    try:
        yield rig
    finally:
        await rig.close()
        store = rig.directory._store
        assert store is not None
        await store.close()


async def test_what_is_read_can_be_written_once(rig: Rig) -> None:
    seen = await rig.client.get("/v1/policies/chat")
    body = seen.json()["policy"] | {"priority": 9}
    first = await rig.put(body, if_match=seen.headers["etag"], x_recursant_set_by="ann")
    assert first.status_code == 200
    assert (first.json()["source"], first.json()["set_by"], first.json()["warnings"]) == ("applied", "ann", [])
    second = await rig.put(body | {"priority": 1}, if_match=seen.headers["etag"])
    assert second.status_code == 412
    assert first.json()["version"] in second.json()["error"]["message"]
    third = await rig.client.delete("/v1/policies/chat", headers={"if-match": first.headers["etag"]})
    assert third.json() == {"agent_id": "chat", "deleted": True}
    assert (await rig.client.get("/v1/policies/chat")).status_code == 404
    assert (await rig.client.delete("/v1/policies/chat")).status_code == 404
    assert (await rig.client.get("/v1/policies")).json() == {"policies": []}


async def test_only_a_new_one(rig: Rig) -> None:
    assert (await rig.put({"agent_id": "chat"}, if_none_match="*")).status_code == 412
    assert (await rig.put({"agent_id": "new"}, if_none_match="*")).status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"agent_id": "voice", "priority": -3}, "priority", "a whole number from 0 to 1000"),
        ({"agent_id": "voice", "latency_sla": 3}, "latency_sla", "did you mean latency_sla_ms?"),
        ({"agent_id": "voice", "agents": []}, "body", "one policy"),
        ({"agent_id": "voice", "fallback_strategy": "hope"}, "fallback_strategy", "degrade_to_<family>"),
    ],
)
async def test_a_bad_policy_is_refused_by_its_field(rig: Rig, body: Any, param: str, said: str) -> None:
    for answer in (await rig.put(body), await rig.client.post("/v1/policies/validate", json=body)):
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, "invalid_policy")
        assert said in error["message"]
    assert "voice" not in rig.directory.in_force


async def test_the_id_in_path_and_body_is_one(rig: Rig) -> None:
    answer = await rig.client.put("/v1/policies/other", json=VOICE)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "agent_id")


@pytest.mark.parametrize("header", ["abc", '""', ""])
async def test_a_condition_that_is_none_is_no_licence(rig: Rig, header: str) -> None:
    assert (await rig.put({"agent_id": "chat"}, if_match=header)).status_code == 400


async def test_a_policy_without_a_worker_warns_and_wakes_once(rig: Rig, tmp_path: Path) -> None:
    refused = await rig.put(VOICE, "?require_capacity=true")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_capacity")
    assert "voice" not in rig.directory.in_force
    first, second = await rig.put(VOICE), await rig.put(VOICE | {"priority": 9})
    assert first.json()["warnings"] == ["no ready worker serves the family 'whisper'"]
    # The hook sleeps: nobody waited for it, and it does not run twice.
    assert (first.json()["warm_up"], second.json()["warm_up"]) == ("started", "running")
    hook = tmp_path / "hook"
    await until(hook.exists)
    await until(lambda: hook.read_text() == "voice whisper\n")


async def test_a_hook_that_fails_or_hangs_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        policy = AgentPolicy.model_validate(VOICE)
        for hook, said in (
            (WarmUpHook(command=("sh", "-c", "echo no gpu >&2; exit 3")), "ended with 3: no gpu"),
            (WarmUpHook(command=("sleep", "60"), timeout_ms=50), "took longer than 50 ms"),
            (WarmUpHook(command=("/nonexistent",)), "failed"),
            (WarmUpHook(url="http://127.0.0.1:9/"), "failed"),
        ):
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                assert WarmUp(hook, client).ask_for(policy, "nobody") == "started"
                await until(lambda: said in caplog.text)  # noqa: B023 - awaited here
        assert WarmUp(WarmUpHook(), client).ask_for(policy, "nobody") == "none"


async def test_without_redis_nothing_is_applied() -> None:
    rig = Rig(None, WarmUpHook())
    assert (await rig.put({"agent_id": "chat"})).status_code == 503
    assert (await rig.client.get("/v1/policies/chat")).json()["source"] == "file"
    await rig.close()


@pytest.mark.parametrize(
    ("policy", "worker", "said"),
    [
        ({"model_family": "qwen"}, record("w", models=[QWEN]), None),
        ({"model_family": "qwen"}, record("w", models=[QWEN], status=WorkerStatus.MISSING), "no worker is ready"),
        ({"model_family": "qwen"}, record("w", models=[QWEN], exclusive=True), "no worker is ready"),
        ({"model_family": "qwen", "workers": ("w",)}, record("w", models=[QWEN], exclusive=True), None),
        ({"model": QWEN.name}, record("w", models=[QWEN]), None),
        ({"model": "other"}, record("w", models=[QWEN]), "no ready worker serves the model 'other'"),
        ({"min_vram_mb": 5000}, record("w", models=[QWEN], free_vram_mb=4000), "has free is 4000"),
        ({"min_vram_mb": 5000}, record("w", models=[QWEN], free_vram_mb=5000), None),
        # Unknown is not zero.
        ({"min_vram_mb": 5000}, record("w", models=[QWEN]), None),
    ],
)
def test_capacity(policy: dict[str, Any], worker: WorkerRecord, said: str | None) -> None:
    wanted = AgentPolicy(agent_id="a", **policy)
    missing = missing_for(wanted, [worker], families(wanted, CHAT))
    assert missing is None if said is None else missing is not None and said in missing


def test_nobody_is_nobody() -> None:
    assert missing_for(CHAT, [], families(CHAT)) == "no worker is ready for this agent"


@pytest.mark.parametrize(
    ("token", "exposed", "method", "path", "authorization", "status"),
    [
        ("secret-token", False, "GET", "/v1/policies", None, 401),
        ("secret-token", False, "GET", "/v1/policies", "Bearer secret-tokem", 401),
        ("secret-token", False, "GET", "/v1/policies", "Basic secret-token", 401),
        ("secret-token", False, "GET", "/v1/policies", "bearer secret-token", 200),
        ("secret-token", False, "DELETE", "/v1/workers/w/isolation", None, 401),
        ("secret-token", True, "POST", "/v1/worker/heartbeat", None, 200),
        ("secret-token", True, "GET", "/metrics", None, 200),
        (None, False, "PUT", "/v1/policies/a", None, 200),
        (None, True, "PUT", "/v1/policies/a", None, 401),
        (None, True, "GET", "/v1/policies/a", None, 200),
    ],
)
async def test_the_token(
    token: str | None, exposed: bool, method: str, path: str, authorization: str | None, status: int
) -> None:
    transport = httpx.ASGITransport(TokenGate(PlainTextResponse("in"), token, exposed=exposed))
    headers = {} if authorization is None else {"authorization": authorization}
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        answer = await client.request(method, path, headers=headers)
    assert answer.status_code == status
    assert ("www-authenticate" in answer.headers) is (status == 401)


def test_the_token_is_never_shown() -> None:
    assert "secret" not in repr(Config(api=Api(token="secret-token")))


@pytest.mark.parametrize(("clients", "xds"), [(None, "away"), ([{"node": "n", "types": []}], "up")])
async def test_status(clients: list[Any] | None, xds: str) -> None:
    async def read() -> list[Any] | None:
        return clients

    app = FastAPI()
    app.include_router(status_router(read))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:
        assert (await client.get("/v1/status")).json() == {"xds": xds, "clients": clients or []}
