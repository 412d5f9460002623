"""Policies through the running product: applied, followed by every replica, kept, refused, deleted."""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.programs import recursant
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

WHISPER = "openai/whisper-large-v3"
VOICE = """
agent_id: voice-transcribe
model_family: whisper
latency_sla_ms: 3000
fallback_strategy: reject
timeout_ms: 15000
"""
CONFIG = """
agents:
  - {agent_id: chat-web, model_family: qwen, priority: 10}
warm_up: {command: [sh, -c, 'echo "$RECURSANT_AGENT $RECURSANT_MODEL_FAMILY" > "$HOOK_FILE"']}
probes: {enabled: false}
"""


def policy(stack: Stack, *arguments: str) -> Any:
    return recursant("policy", *arguments, "--api", stack.endpoints.api)


def api(stack: Stack) -> httpx.Client:
    return stack.new_client(base_url=stack.endpoints.api)


def clients_of(stack: Stack, kind: str) -> list[dict[str, Any]]:
    document = json.loads(recursant("status", "-o", "json", "--api", stack.endpoints.api).out)
    return [
        {"node": client["node"], **each}
        for client in document["clients"]
        for each in client["types"]
        if each["type"] == kind
    ]


def served_as(stack: Stack, agent: str) -> str:
    return stack.chat("Hello", agent=agent).headers.get("x-recursant-agent", "")


def agents_counted(stack: Stack) -> set[str]:
    return set(stack.service_metrics("extproc").by("recursant_requests_total", "agent"))


def test_a_policy_that_nobody_can_serve_warns_wakes_and_works_when_a_worker_comes(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    hook = tmp_path / "hook"
    stack = make_stack(workers=2, config=CONFIG, env={"HOOK_FILE": str(hook)})
    file = tmp_path / "voice.yaml"
    file.write_text(VOICE)

    refused = policy(stack, "apply", "-f", str(file), "--require-capacity")
    assert refused.exit_code == 1
    assert "no ready worker serves the family 'whisper'" in refused.err
    assert not hook.exists()

    applied = policy(stack, "apply", "-f", str(file))
    assert applied.exit_code == 0, applied.err
    assert "no ready worker serves the family 'whisper' (warm-up started)" in applied.err
    wait_until(hook.exists)
    wait_until(lambda: hook.read_text() == "voice-transcribe whisper\n")

    # The replica knows the agent, and that nobody serves it.
    wait_until(lambda: served_as(stack, "voice-transcribe") != "default")
    assert stack.chat("Hello", agent="voice-transcribe").status_code in (404, 503)
    stack.start_sim("--model", WHISPER, "--worker-id", "ears")
    answer = wait_until(
        lambda: (found := stack.chat("Hello", agent="voice-transcribe")).status_code == 200 and found,
        what="requests of voice-transcribe flow",
    )
    assert answer.headers["x-recursant-worker"] == "ears"
    assert answer.headers["x-recursant-agent"] == "voice-transcribe"
    assert policy(stack, "validate", "-f", str(file), "--require-capacity").exit_code == 0
    assert policy(stack, "diff", "-f", str(file)).exit_code == 0

    # Envoy and extproc are shown, and both follow.
    wait_until(lambda: [each["state"] for each in clients_of(stack, "AgentPolicy")] == ["SYNCED"])
    assert clients_of(stack, "AgentPolicy")[0]["node"].startswith("extproc-")
    assert clients_of(stack, "RouteConfiguration")[0]["node"].startswith("gateway-")

    assert policy(stack, "delete", "voice-transcribe").exit_code == 0
    wait_until(lambda: served_as(stack, "voice-transcribe") == "default")
    # Its name leaves the metrics, its counts do not.
    wait_until(lambda: agents_counted(stack) == {"default", "other"})
    assert policy(stack, "get", "voice-transcribe").exit_code == 1
    assert policy(stack, "diff", "-f", str(file)).exit_code == 1


def test_two_writers_and_bad_policies(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=CONFIG)
    with api(stack) as client:
        seen = client.get("/v1/policies/chat-web")
        assert seen.json()["source"] == "file"
        etag = {"if-match": seen.headers["etag"]}
        body = {"agent_id": "chat-web", "model_family": "qwen", "priority": 12}
        first = client.put("/v1/policies/chat-web", json=body, headers=etag)
        assert (first.status_code, first.json()["source"]) == (200, "applied")
        late = client.put("/v1/policies/chat-web", json=body | {"priority": 1}, headers=etag)
        assert (late.status_code, late.json()["error"]["code"]) == (412, "version_conflict")
        bad = client.put("/v1/policies/chat-web", json=body | {"priority": -3})
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "priority")
        assert client.get("/v1/policies/chat-web").json()["policy"]["priority"] == 12


async def test_a_hundred_changes_under_load_fail_no_request_and_the_last_one_wins(make_stack: MakeStack) -> None:
    stack = await asyncio.to_thread(make_stack, workers=2, config=CONFIG)
    statuses: list[int] = []
    done = asyncio.Event()

    async def load(client: httpx.AsyncClient) -> None:
        while not done.is_set():
            answer = await client.post(
                "/v1/chat/completions", json=stack.chat_body(max_tokens=4), headers={"x-agent-id": "chat-web"}
            )
            statuses.append(answer.status_code)

    async with stack.async_client() as client, stack.async_client(base_url=stack.endpoints.api) as control:
        loads = [asyncio.create_task(load(client)) for _ in range(4)]
        began = time.monotonic()
        for number in range(100):
            body = {"agent_id": "chat-web", "model_family": "qwen", "priority": number, "latency_sla_ms": 1000 + number}
            (await control.put("/v1/policies/chat-web", json=body)).raise_for_status()
            await asyncio.sleep(max(0.0, began + 0.05 * (number + 1) - time.monotonic()))
        last = (await control.get("/v1/policies/chat-web")).json()["version"]
        kept = stack.run_dir / "state" / "policies.json"
        await asyncio.to_thread(
            wait_until, lambda: [each["version"] for each in json.loads(kept.read_text())["policies"]] == [last]
        )
        done.set()
        await asyncio.gather(*loads)
    assert len(statuses) > 20
    assert set(statuses) == {200}
    synced = await asyncio.to_thread(clients_of, stack, "AgentPolicy")
    assert [each["state"] for each in synced] == ["SYNCED"]


def test_without_xds_policies_stay_over_a_restart_of_extproc(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=CONFIG)
    with api(stack) as client:
        body = {"agent_id": "late-comer", "model_family": "qwen"}
        client.put("/v1/policies/late-comer", json=body).raise_for_status()
    wait_until(lambda: served_as(stack, "late-comer") == "late-comer")
    kept = stack.run_dir / "state" / "policies.json"
    wait_until(lambda: "late-comer" in kept.read_text())
    xds = stack.kill("xds")
    assert served_as(stack, "late-comer") == "late-comer"
    extproc = stack.kill("extproc")
    stack.wait_restarted("extproc", extproc)
    wait_until(lambda: served_as(stack, "late-comer") == "late-comer")
    assert "starting with the 2 policies that were kept" in stack.log("extproc")
    stack.wait_restarted("xds", xds)
    wait_until(lambda: [each["state"] for each in clients_of(stack, "AgentPolicy")] == ["SYNCED"])
    assert served_as(stack, "late-comer") == "late-comer"


def test_what_was_applied_survives_the_end_of_everything(make_stack: MakeStack) -> None:
    first = make_stack(workers=1, config=CONFIG)
    kept = first.run_dir / "state" / "applied-policies.json"
    with api(first) as client:
        body = {"agent_id": "late-comer", "model_family": "qwen", "priority": 7}
        client.put("/v1/policies/late-comer", json=body).raise_for_status()
        client.delete("/v1/policies/chat-web").raise_for_status()
    wait_until(lambda: kept.exists() and all(name in kept.read_text() for name in ("late-comer", "chat-web")))
    # At once, and without a farewell: Redis and the control plane have nothing left in memory.
    first.up.send(signal.SIGKILL)
    first.up.wait()
    second = Stack(first.directory, workers=1, config=CONFIG)
    try:
        second.start()
        with api(second) as client:
            wait_until(lambda: client.get("/v1/policies/late-comer").status_code == 200)
            found = client.get("/v1/policies/late-comer").json()
            assert (found["source"], found["policy"]["priority"]) == ("applied", 7)
            # The file's policy stays deleted.
            assert client.get("/v1/policies/chat-web").status_code == 404
        wait_until(lambda: served_as(second, "late-comer") == "late-comer")
        assert served_as(second, "chat-web") == "default"
    finally:
        second.close()
