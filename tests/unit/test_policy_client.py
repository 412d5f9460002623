"""The replica as an xDS client, against the product's own server on a real port."""

import asyncio
import contextlib
import json
import struct
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse
from prometheus_client import CollectorRegistry

from extproc.policy_client import RULES_FILE, STATE_FILE, PolicyClient
from extproc.policy_state import PolicyState
from recursant.admission.rules import Admission
from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import TYPE_URL, content_version
from recursant.config.live import GatewayRules
from recursant.config.rules_codec import TYPE_URL as RULES
from xds_server.metrics import Recorder
from xds_server.policies import policy_resources, rules_resource
from xds_server.resource import Resource
from xds_server.server import Settings, XdsServer
from xds_server.snapshot import Snapshot
from xds_server.status import SyncState, TypeStatus
from xds_server.status_page import clients_document

PATIENCE_S = 20.0  # against hanging only
CHAT = AgentPolicy(agent_id="chat", model_family="qwen")
VOICE = AgentPolicy(agent_id="voice", model_family="whisper")
LOUD = CHAT.model_copy(update={"priority": 20})
# Not made by our own code: the model would not let it through.
BAD = Resource.of(TYPE_URL, "chat", b"\x0a\x04chat\x28\x88\x27")  # priority: 5000


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nobody here has an event
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def server(port: int = 0) -> AsyncIterator[tuple[XdsServer, int]]:
    found = XdsServer(Settings(), Recorder(CollectorRegistry()))
    bound = await found.listen("127.0.0.1", port)
    try:
        yield found, bound
    finally:
        await found.stop(0.1)


class Replica:
    def __init__(self, port: int, state_dir: Path | None = None, *configured: AgentPolicy) -> None:
        self.seen: list[tuple[AgentPolicy, ...]] = []
        self.client = PolicyClient(f"127.0.0.1:{port}", "extproc-1", configured, state_dir, self.seen.append)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Replica"]:
        task = asyncio.create_task(self.client.run())
        try:
            yield self
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


def policy_status(xds: XdsServer) -> TypeStatus | None:
    types = [each for client in xds.clients() for each in client.types]
    return types[0] if types else None


def state_of(xds: XdsServer) -> SyncState | None:
    status = policy_status(xds)
    return None if status is None else status.state


async def test_policies_arrive_change_and_go() -> None:
    async with server() as (xds, port), Replica(port).running() as replica:
        xds.publish(Snapshot(policy_resources([CHAT, VOICE])))
        await until(lambda: replica.client.policies == (CHAT, VOICE))
        await until(lambda: state_of(xds) is SyncState.SYNCED)
        xds.publish(Snapshot(policy_resources([LOUD])))
        await until(lambda: replica.client.policies == (LOUD,))
        # Nobody was told of a half of it.
        assert replica.seen[-1] == (LOUD,)
        await until(lambda: state_of(xds) is SyncState.SYNCED)


async def test_a_bad_policy_is_refused_by_field_and_the_last_good_one_stays() -> None:
    async with server() as (xds, port), Replica(port).running() as replica:
        xds.publish(Snapshot(policy_resources([CHAT])))
        await until(lambda: replica.client.policies == (CHAT,))
        xds.publish(Snapshot([BAD, *policy_resources([VOICE])]))
        await until(lambda: state_of(xds) is SyncState.NACK)
        status = policy_status(xds)
        assert status is not None
        assert "'chat': priority: " in status.reason
        # The good one beside it is used.
        assert replica.client.policies == (CHAT, VOICE)
        document = clients_document(xds.clients(), 1e9)
        assert document["clients"][0]["node"] == "extproc-1"
        assert document["clients"][0]["types"][0]["type"] == "AgentPolicy"
        assert document["clients"][0]["types"][0]["state"] == "NACK"
        xds.publish(Snapshot(policy_resources([LOUD, VOICE])))
        await until(lambda: replica.client.policies == (LOUD, VOICE))
        await until(lambda: state_of(xds) is SyncState.SYNCED)


async def test_policies_survive_the_server_and_the_replica(tmp_path: Path) -> None:
    async with server() as (xds, port), Replica(port, tmp_path).running() as replica:
        xds.publish(Snapshot(policy_resources([CHAT, VOICE])))
        await until((tmp_path / STATE_FILE).exists)
    # Away: what is known stays.
    assert replica.client.policies == (CHAT, VOICE)
    again = Replica(port, tmp_path, LOUD)
    again.client.restore()
    assert again.client.policies == (CHAT, VOICE)
    assert again.seen == [(CHAT, VOICE)]
    async with again.running():
        await asyncio.sleep(0.05)
        assert again.client.policies == (CHAT, VOICE)
        # The next server tells what changed meanwhile, and what is gone.
        async with server(port) as (xds, _):
            xds.publish(Snapshot(policy_resources([LOUD])))
            await until(lambda: again.client.policies == (LOUD,))


async def test_a_slow_disk_holds_no_policy_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let = threading.Event()
    written: list[str] = []

    def slow(path: Path, text: str) -> None:
        if path.name == STATE_FILE:
            let.wait(PATIENCE_S)
            written.append(text)

    monkeypatch.setattr("extproc.policy_client.write_atomically", slow)
    async with server() as (xds, port), Replica(port, tmp_path).running() as replica:
        for number in range(10):
            policy = CHAT.model_copy(update={"priority": number})
            xds.publish(Snapshot(policy_resources([policy])))
            await until(lambda policy=policy: replica.client.policies == (policy,))
        assert written == []
        let.set()
        await until(lambda: written and '"priority": 9' in written[-1])
        # Those between the first and the last never reached the disk.
        assert len(written) == 2


async def test_what_a_replica_has_is_not_sent_again(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text(_dumped(CHAT))
    replica = Replica(0, tmp_path)
    replica.client.restore()
    async with server() as (xds, port):
        xds.publish(Snapshot(policy_resources([CHAT, VOICE])))
        again = Replica(port, tmp_path)
        again.client.restore()
        async with again.running():
            await until(lambda: again.client.policies == (CHAT, VOICE))
        status_version = content_version(CHAT)
        assert json.loads((tmp_path / STATE_FILE).read_text())["policies"][0]["version"] == status_version


@pytest.mark.parametrize("text", ["", "[]", '{"format": 9, "policies": []}', '{"format": 1, "policies": [{}]}', "{"])
def test_a_kept_file_that_cannot_be_used_is_told_and_left(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    replica = Replica(1, tmp_path, CHAT)
    replica.client.restore()
    assert replica.client.policies == (CHAT,)
    assert "cannot be used" in caplog.text


async def test_a_configured_policy_that_the_server_does_not_know_goes() -> None:
    async with server() as (xds, port), Replica(port, None, CHAT, VOICE).running() as replica:
        xds.publish(Snapshot(policy_resources([VOICE])))
        await until(lambda: replica.client.policies == (VOICE,))
        assert PolicyState.of([CHAT]).versions == {"chat": content_version(CHAT)}


def test_a_policy_under_another_name_is_refused() -> None:
    response = DeltaDiscoveryResponse(type_url=TYPE_URL)
    [resource] = policy_resources([CHAT])
    added = response.resources.add(name="voice", version="1")
    added.resource.type_url, added.resource.value = TYPE_URL, resource.body
    other = response.resources.add(name="chat", version="1")
    other.resource.type_url = "type.googleapis.com/other"
    state = PolicyState()
    problem = state.take(response)
    assert "'voice': agent_id" in problem
    assert "'chat': is a 'type.googleapis.com/other'" in problem
    assert state.policies == ()


def _dumped(*policies: AgentPolicy) -> str:
    state = PolicyState()
    response = DeltaDiscoveryResponse(type_url=TYPE_URL)
    for each in policy_resources(policies):
        added = response.resources.add(name=each.name, version=each.version)
        added.resource.type_url, added.resource.value = TYPE_URL, each.body
    assert state.take(response) == ""
    return state.dump()


STRICT = GatewayRules(admission=Admission(kv_water_mark=0.5))
RELAXED = GatewayRules(admission=Admission(kv_water_mark=0.9))


async def test_rules_arrive_change_and_survive_the_server_and_the_replica(tmp_path: Path) -> None:
    seen: list[GatewayRules] = []
    async with server() as (xds, port):
        client = PolicyClient(f"127.0.0.1:{port}", "extproc-1", (), tmp_path, lambda _: None, on_rules=seen.append)
        task = asyncio.create_task(client.run())
        xds.publish(Snapshot([*policy_resources([CHAT]), rules_resource(STRICT)]))
        await until(lambda: client.rules == STRICT and client.policies == (CHAT,))
        xds.publish(Snapshot([*policy_resources([CHAT]), rules_resource(RELAXED)]))
        await until(lambda: client.rules == RELAXED)
        # Without any, and with bad ones, the last good ones stay.
        xds.publish(Snapshot(policy_resources([CHAT])))
        await until(lambda: all(each.state is SyncState.SYNCED for each in types_of(xds)))
        bad = b"\x1a\x09\x09" + struct.pack("<d", 7.0)  # admission { kv_water_mark: 7 }
        xds.publish(Snapshot([*policy_resources([CHAT, VOICE]), Resource.of(RULES, "gateway", bad)]))
        await until(lambda: any(each.state is SyncState.NACK for each in types_of(xds)))
        await until(lambda: client.policies == (CHAT, VOICE))
        [refused] = [each for each in types_of(xds) if each.state is SyncState.NACK]
        assert refused.type_url == RULES
        assert "admission.kv_water_mark" in refused.reason
        assert client.rules == RELAXED
        assert seen == [STRICT, RELAXED]
        await until(lambda: "0.9" in (tmp_path / RULES_FILE).read_text())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    again = PolicyClient("127.0.0.1:1", "extproc-1", (), tmp_path, lambda _: None, on_rules=seen.append)
    again.restore()
    assert again.rules == RELAXED
    assert seen[2:] == [RELAXED]


def types_of(xds: XdsServer) -> list[TypeStatus]:
    return [each for client in xds.clients() for each in client.types]


async def test_kept_rules_that_cannot_be_read_are_not_used(tmp_path: Path) -> None:
    (tmp_path / RULES_FILE).write_text("{}")
    client = PolicyClient("127.0.0.1:1", "extproc-1", (), tmp_path, lambda _: None, rules=STRICT)
    client.restore()
    assert client.rules == STRICT
