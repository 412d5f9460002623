"""Edits of the configuration file while the product runs: what goes live, what is refused, and that nobody notices."""

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest
import yaml
from harness.programs import recursant
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

QWEN = "Qwen/Qwen2.5-7B-Instruct"
PHI = "microsoft/Phi-3-mini-4k-instruct"
AGENTS = """
agents:
  - {agent_id: chat-web, model_family: qwen, priority: 5, inspect_body: always}
  - {agent_id: batch-summary, model_family: qwen, priority: 5}
probes: {enabled: false}
"""
PATHS = AGENTS + "paths:\n  - {path: /api/chat, agent_id: chat-web}\n"
WITH_NEW_PATH = PATHS + "  - {path: /api/new, agent_id: batch-summary}\n"


def edit(stack: Stack, text: str) -> None:
    """As editors do: a new file takes the old one's name."""
    file = stack.directory / "given.yaml"
    new = file.with_name("given.yaml.new")
    new.write_text(text)
    new.replace(file)


def edits(stack: Stack, outcome: str, service: str = "xds") -> float:
    return stack.metrics().value("recursant_config_reloads_total", outcome=outcome, service=service)


def agent_at(stack: Stack, path: str) -> str | None:
    answer = stack.chat(agent=None, path=path)
    return answer.headers.get("x-recursant-agent") if answer.status_code == 200 else None


def rules_states(stack: Stack) -> list[str]:
    document = json.loads(recursant("status", "-o", "json", "--api", stack.endpoints.api).out or '{"clients": []}')
    types = [each for client in document["clients"] for each in client["types"]]
    return [each["state"] for each in types if each["type"] == "GatewayRules"]


def sim(stack: Stack, worker: str, path: str) -> Any:
    endpoint = next(each["endpoint"] for each in stack.workers() if each["id"] == worker)
    return httpx.get(f"http://{endpoint}/sim/{path}", trust_env=False).json()


def test_paths_go_live_bad_edits_are_refused_by_line_and_the_last_good_one_survives(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=PATHS)
    assert agent_at(stack, "/api/chat") == "chat-web"
    assert agent_at(stack, "/api/new") is None

    edit(stack, WITH_NEW_PATH + "gateway: {port: 7777}\n")
    wait_until(lambda: agent_at(stack, "/api/new") == "batch-summary")
    wait_until(lambda: "given.yaml: in force now: paths\n" in stack.up.errors)
    # What waits for a restart is named, and nothing of it is done.
    wait_until(lambda: "given.yaml: needs a restart: gateway.port\n" in stack.up.errors)
    wait_until(lambda: edits(stack, "applied") == edits(stack, "applied", "api") == 1)

    edit(stack, WITH_NEW_PATH.replace("/api/new", "/api/newer").replace("priority: 5}", "priority: -5}"))
    wait_until(lambda: edits(stack, "refused") == edits(stack, "refused", "api") == 1)
    said = "given.yaml:4: agents[1].priority: out of range, got -5; allowed: a whole number from 0 to 1000\n"
    wait_until(lambda: said in stack.up.errors)
    assert (agent_at(stack, "/api/new"), agent_at(stack, "/api/newer")) == ("batch-summary", None)

    # What they read then has the ports of this run, and the last good paths.
    kept = yaml.safe_load((stack.run_dir / "recursant.yaml").read_text())
    assert [each["path"] for each in kept["paths"]] == ["/api/chat", "/api/new"]
    assert kept["gateway"]["port"] not in (7777, 8000)
    # Services that start again while the file is bad go on with the last good one.
    old = stack.kill("xds"), stack.kill("api"), stack.kill("extproc")
    for name, pid in zip(("xds", "api", "extproc"), old, strict=True):
        stack.wait_restarted(name, pid)
    wait_until(lambda: rules_states(stack) == ["SYNCED"])
    wait_until(lambda: agent_at(stack, "/api/new") == "batch-summary")
    assert agent_at(stack, "/api/newer") is None

    edit(stack, PATHS)
    wait_until(lambda: agent_at(stack, "/api/new") is None)
    assert agent_at(stack, "/api/chat") == "chat-web"


def test_the_class_follows_edited_rules(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=PATHS)
    [worker] = stack.worker_pids
    numbers = itertools.count()

    def class_of(content: str, max_tokens: int = 200) -> str:
        request_id = f"class-{next(numbers)}"
        stack.chat(content, max_tokens=max_tokens, headers={"x-request-id": request_id}).raise_for_status()
        requests = sim(stack, worker, "state/requests")["requests"]
        seen = next(request for request in requests if request["id"] == request_id)
        return str(dict(seen["headers"])["x-recursant-class"])

    assert [class_of("a poem, please"), class_of("a report, please"), class_of("hi", 8)] == ["normal", "low", "high"]
    edit(stack, PATHS + "admission: {rules: {report_words: [poem*], short_output_tokens: 4}}\n")
    wait_until(lambda: class_of("poems, please") == "low")
    assert [class_of("a report, please"), class_of("hi", 8), class_of("hi", 3)] == ["normal", "normal", "high"]
    wait_until(lambda: rules_states(stack) == ["SYNCED"])
    # Agents of the file go live, too; one that was applied stays.
    edit(
        stack,
        PATHS.replace("chat-web, model_family: qwen, priority: 5", "chat-web, model_family: qwen, class: critical"),
    )
    wait_until(lambda: class_of("poems, please") == "critical")
    with stack.new_client(base_url=stack.endpoints.api) as api:
        body = {"agent_id": "chat-web", "model_family": "qwen", "class": "low"}
        api.put("/v1/policies/chat-web", json=body).raise_for_status()
        wait_until(lambda: class_of("poems, please") == "low")
        edit(stack, PATHS + "  - {path: /api/new, agent_id: chat-web}\n")
        wait_until(lambda: agent_at(stack, "/api/new") == "chat-web")
        assert api.get("/v1/policies/chat-web").json()["source"] == "applied"
    assert class_of("poems, please") == "low"


def test_the_water_mark_and_the_limits_follow_the_file(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=PATHS, args=["--worker-models", PHI])
    stack.start_sim("--worker-id", "tight", "--model", QWEN, "--kv-blocks", "400", "--max-model-len", "6000")
    wait_until(lambda: stack.chat(max_tokens=1).status_code == 200)

    def outcome() -> tuple[int, str]:
        answer = stack.chat("short", max_tokens=4)
        return answer.status_code, "" if answer.status_code == 200 else answer.json()["error"]["code"]

    # 6,400 tokens: the prompt alone fills a quarter of them.
    with stack.stream("x" * 6_400, max_tokens=3_000, ignore_eos=True) as running:
        lines = running.iter_lines()
        next(lines)
        assert outcome() == (200, "")
        edit(stack, PATHS + "admission: {kv_water_mark: 0.1}\n")
        wait_until(lambda: outcome() == (429, "kv_memory"))
        edit(stack, PATHS + "admission: {kv_water_mark: 0.95}\n")
        wait_until(lambda: outcome() == (200, ""))
        # The request that ran meanwhile was not touched.
        assert any('"content"' in line for line in itertools.islice(lines, 20))

    session = {"x-session-id": "s" * 100}
    assert stack.chat(headers=session).status_code == 200
    edit(stack, PATHS + "limits: {session_id_bytes: 64}\n")
    wait_until(lambda: stack.chat(headers=session).status_code == 400)


async def test_edits_under_load_fail_no_request(make_stack: MakeStack) -> None:
    stack: Stack = await asyncio.to_thread(make_stack, workers=2, config=PATHS, args=["--extproc-processes", "2"])
    statuses: list[int] = []
    done = asyncio.Event()

    async def load(client: httpx.AsyncClient, path: str) -> None:
        while not done.is_set():
            answer = await client.post(path, json=stack.chat_body("Hello there", max_tokens=4))
            statuses.append(answer.status_code)

    def versions() -> list[str]:
        texts = [
            WITH_NEW_PATH,
            PATHS + "admission: {kv_water_mark: 0.6, slot_shares: {low: 0.3}, rules: {report_words: [hello]}}\n",
            "agents: [\n",
            WITH_NEW_PATH + "routing: {candidates: 1, weights: {token_rate: 0.1}, timeout_ms: 20000}\n",
            PATHS.replace("priority: 5", "priority: 20") + "limits: {held_requests: 10, request_id_bytes: 64}\n",
            PATHS + "admission: {kv_water_mark: 7}\n",
        ]
        return texts * 2

    async with stack.async_client() as client:
        loads = [asyncio.create_task(load(client, path)) for path in ["/api/chat"] * 4]
        for count, text in enumerate(versions(), 1):
            edit(stack, text)

            def taken(count: int = count) -> bool:
                return edits(stack, "applied") + edits(stack, "refused") == count

            await asyncio.to_thread(wait_until, taken)
        edit(stack, WITH_NEW_PATH)
        await asyncio.to_thread(wait_until, lambda: agent_at(stack, "/api/new") == "batch-summary")
        done.set()
        await asyncio.gather(*loads)
    assert len(statuses) > 20
    assert set(statuses) == {200}
    assert await asyncio.to_thread(edits, stack, "refused") == 4
    await asyncio.to_thread(wait_until, lambda: rules_states(stack) == ["SYNCED", "SYNCED"])
