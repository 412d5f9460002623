"""Several extproc replicas over one control plane: all of them follow, and one that cannot is shown."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from harness.programs import Program, recursant
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import content_version
from recursant.supervise.ports import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

OLDER = Path(__file__).with_name("older_replica.py")
CONFIG = """
agents:
  - {agent_id: chat-web, model_family: qwen, priority: 10}
  - {agent_id: batch, model_family: qwen, priority: 2}
probes: {enabled: false}
"""


class Replica:
    """One more extproc process of the stack's control plane. Envoy does not ask it."""

    def __init__(self, stack: Stack, name: str, command: tuple[str, ...] | None = None) -> None:
        directory = stack.directory / name
        directory.mkdir()
        config = yaml.safe_load((stack.run_dir / "recursant.yaml").read_text())
        (port,) = free_ports("127.0.0.1", 1, taken=set())
        config["extproc"] |= {
            "listen": [f"unix:{directory / 'socket'}"],
            "metrics_port": port,
            "state_dir": str(directory / "state"),
            "processes": 1,
        }
        (directory / "recursant.yaml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{port}"
        arguments = ["serve", "extproc", "--config", str(directory / "recursant.yaml")]
        options: dict[str, Any] = {} if command is None else {"command": command}
        self.program = Program(directory, name, arguments, **options)
        wait_until(lambda: self.in_force("chat-web") is not None, what=f"{name} answers")

    def in_force(self, agent: str) -> tuple[int, int] | None:
        return in_force(self.url, agent)

    @property
    def node(self) -> str:
        """How the control plane knows it: by host and process."""
        return f"-{self.program.pid}"


def in_force(url: str, agent: str) -> tuple[int, int] | None:
    """Priority and time limit that a replica decides with; None where it knows no such agent."""
    answer = httpx.get(f"{url}/explain", params={"agent": agent}, trust_env=False).raise_for_status()
    request = answer.json()["request"]
    return (request["priority"], request["timeout_ms"]) if request["known_agent"] else None


@pytest.fixture
def stack(make_stack: MakeStack) -> Stack:
    """Two extproc processes serve Envoy."""
    return make_stack(workers=1, config=CONFIG, args=["--extproc-processes", "2"])


@pytest.fixture
def replicas(stack: Stack) -> Iterator[list[Replica]]:
    started: list[Replica] = []
    try:
        yield started
    finally:
        for each in started:
            each.program.end()


def own_urls(stack: Stack) -> list[str]:
    return [stack.endpoints.metrics[name].removesuffix("/metrics") for name in stack.extproc_names]


def clients(stack: Stack) -> dict[str, dict[str, Any]]:
    """What `recursant status` shows of the policies, by node."""
    done = recursant("status", "-o", "json", "--api", stack.endpoints.api)
    assert done.exit_code == 0, done.err
    return {
        client["node"]: each
        for client in json.loads(done.out)["clients"]
        for each in client["types"]
        if each["type"] == "AgentPolicy"
    }


def put(stack: Stack, policy: dict[str, Any]) -> None:
    httpx.put(
        f"{stack.endpoints.api}/v1/policies/{policy['agent_id']}", json=policy, trust_env=False
    ).raise_for_status()


async def test_a_hundred_changes_reach_every_replica_and_fail_no_request(stack: Stack, replicas: list[Replica]) -> None:
    for number in range(2):
        replicas.append(await asyncio.to_thread(Replica, stack, f"replica-{number}"))
    urls = [*own_urls(stack), *(replica.url for replica in replicas)]
    statuses: list[int] = []
    done = asyncio.Event()

    async def load(client: httpx.AsyncClient) -> None:
        while not done.is_set():
            answer = await client.post(
                "/v1/chat/completions", json=stack.chat_body(max_tokens=4), headers={"x-agent-id": "chat-web"}
            )
            statuses.append(answer.status_code)

    def change(number: int) -> dict[str, Any]:
        return {"agent_id": "chat-web", "model_family": "qwen", "priority": number, "timeout_ms": 10_000 + number}

    def everywhere() -> bool:
        return all(in_force(url, "chat-web") == (99, 10_099) for url in urls)

    async with stack.async_client() as client, stack.async_client(base_url=stack.endpoints.api) as control:
        loads = [asyncio.create_task(load(client)) for _ in range(4)]
        began = time.monotonic()
        for number in range(100):
            (await control.put("/v1/policies/chat-web", json=change(number))).raise_for_status()
            await asyncio.sleep(max(0.0, began + 0.05 * (number + 1) - time.monotonic()))
        last = time.monotonic()
        await asyncio.to_thread(wait_until, everywhere, interval=0.01)
        print(f"the last of 100 changes was in force on {len(urls)} replicas after {time.monotonic() - last:.3f} s")
        done.set()
        await asyncio.gather(*loads)
    assert len(statuses) > 20
    assert set(statuses) == {200}
    for name in stack.extproc_names:
        # Both decided.
        assert stack.service_metrics(name).value("recursant_requests_total", agent="chat-web", outcome="ok") > 0
    shown = await asyncio.to_thread(clients, stack)
    assert len(shown) == 4
    assert {each["state"] for each in shown.values()} == {"SYNCED"}
    # What a replica keeps for a start without the control plane is the last one, too.
    version = content_version(AgentPolicy.model_validate(change(99)))

    def kept(replica: Replica) -> str:
        entries = json.loads((replica.program.out.parent / "state" / "policies.json").read_text())["policies"]
        return next(str(entry["version"]) for entry in entries if entry["policy"]["agent_id"] == "chat-web")

    for replica in replicas:
        await asyncio.to_thread(wait_until, lambda replica=replica: kept(replica) == version)


def test_a_replica_that_refuses_a_policy_is_shown_and_keeps_its_last_good_one(
    stack: Stack, replicas: list[Replica]
) -> None:
    replicas.append(Replica(stack, "older", (sys.executable, str(OLDER))))
    (older,) = replicas

    def of_older() -> dict[str, Any]:
        return next(each for node, each in clients(stack).items() if node.endswith(older.node))

    def others() -> list[str]:
        return [each["state"] for node, each in clients(stack).items() if not node.endswith(older.node)]

    assert of_older()["state"] == "SYNCED"
    good = of_older()["accepted"]
    put(stack, {"agent_id": "chat-web", "model_family": "qwen", "priority": 500})
    refused = wait_until(lambda: found if (found := of_older())["state"] == "NACK" else None, what="the NACK is shown")
    assert "'chat-web': priority: Input should be less than or equal to 100" in refused["reason"]
    assert refused["accepted"] == good
    # It goes on with what it had; whoever understands the policy has it.
    assert older.in_force("chat-web") == (10, 15_000)
    wait_until(lambda: {in_force(url, "chat-web") for url in own_urls(stack)} == {(500, 15_000)})
    wait_until(lambda: others() == ["SYNCED", "SYNCED"])
    table = recursant("status", "--api", stack.endpoints.api)
    assert any(older.node in line and "NACK" in line and "priority" in line for line in table.out.splitlines())
    # A NACK holds nothing else up, and is not sent again and again: it still stands while others are taken.
    put(stack, {"agent_id": "batch", "model_family": "qwen", "priority": 3})
    wait_until(lambda: older.in_force("batch") == (3, 15_000))
    assert older.in_force("chat-web") == (10, 15_000)
    assert 1 <= older.program.errors.count("refusing what") <= 2

    put(stack, {"agent_id": "chat-web", "model_family": "qwen", "priority": 50})
    wait_until(lambda: older.in_force("chat-web") == (50, 15_000))
    wait_until(lambda: of_older()["state"] == "SYNCED")
    assert of_older()["reason"] == ""
