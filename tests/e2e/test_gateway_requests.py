"""What clients see, and what workers get, through the whole product. Nothing here breaks the shared stack."""

import asyncio
import contextlib
import hashlib
import json
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from harness.stack import Stack
from sim_reply import reply_start

pytestmark = pytest.mark.e2e

QWEN = "Qwen/Qwen2.5-7B-Instruct"
PHI = "microsoft/Phi-3-mini-4k-instruct"


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The OpenAI error of an answer, which must have that shape."""
    assert answer.headers["content-type"].startswith("application/json")
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def recorded(stack: Stack, answer: httpx.Response, request_id: str) -> dict[str, Any]:
    """The request as the worker that served it saw it."""
    url = stack.worker_urls[answer.headers["x-recursant-worker"]]
    requests = httpx.get(f"{url}/sim/state/requests", params={"limit": "256"}, trust_env=False).json()["requests"]
    found: dict[str, Any] = next(request for request in requests if request["id"] == request_id)
    return found


def body_at_worker(stack: Stack, answer: httpx.Response, request_id: str) -> bytes:
    url = stack.worker_urls[answer.headers["x-recursant-worker"]]
    got = httpx.get(f"{url}/sim/state/requests/{request_id}/body", trust_env=False)
    got.raise_for_status()
    return got.content


def no_request_left(stack: Stack) -> None:
    stack.wait_until(lambda: stack.inflight() == 0, what="nothing is in flight")


# --- agents ---


def test_an_agent_gets_its_family(stack: Stack) -> None:
    answer = stack.chat("Hello", agent="chat-web", max_tokens=64)
    assert answer.status_code == 200
    assert answer.json()["model"] == QWEN
    assert answer.headers["x-recursant-agent"] == "chat-web"
    assert answer.headers["x-recursant-worker"] in stack.worker_urls
    assert "x-recursant-fallback" not in answer.headers
    text = answer.json()["choices"][0]["message"]["content"]
    assert text.startswith(reply_start([{"role": "user", "content": "Hello"}]))


@pytest.mark.parametrize(
    ("path", "agent", "model"), [("/api/chat", "chat-web", QWEN), ("/api/summary", "batch-summary", PHI)]
)
def test_the_path_names_the_agent(stack: Stack, path: str, agent: str, model: str) -> None:
    for named in (None, "code-completion"):  # a client's own header does not win here
        answer = stack.chat(agent=named, path=path)
        assert (answer.status_code, answer.json()["model"]) == (200, model)
        assert answer.headers["x-recursant-agent"] == agent


def test_the_issues_curl_needs_no_content_type(stack: Stack) -> None:
    body = b'{"model":"auto","messages":[{"role":"user","content":"Hi"}]}'
    plain = {"x-agent-id": "chat-web"}
    assert stack.client.post("/v1/chat/completions", content=body, headers=plain).status_code == 200
    form = {**plain, "content-type": "application/x-www-form-urlencoded"}  # what curl -d says
    answer = stack.client.post("/v1/chat/completions", content=body, headers=form)
    assert (answer.status_code, answer.json()["model"]) == (200, QWEN)


@pytest.mark.parametrize("agent", [None, "nobody-knows"])
def test_without_an_agent_the_model_decides(stack: Stack, agent: str | None) -> None:
    for model in (QWEN, PHI):
        answer = stack.chat(agent=agent, model=model)
        assert (answer.status_code, answer.json()["model"]) == (200, model)
        assert answer.headers["x-recursant-agent"] == "default"
        assert answer.headers["x-recursant-fallback"] == "round_robin"
    assert stack.chat(agent=agent, model="auto").status_code == 200


def test_models_that_do_not_fit_are_refused(stack: Stack) -> None:
    stack.wait_settled()
    answer = stack.chat(agent=None, model="gpt-99")
    assert (answer.status_code, error_of(answer)["code"]) == (404, "model_not_found")
    answer = stack.chat(agent="chat-web", model=PHI)
    assert (answer.status_code, error_of(answer)["code"]) == (403, "model_not_allowed")
    answer = stack.chat(agent="chat-web", model="gpt-99")
    assert answer.status_code in (403, 404)
    error_of(answer)


def test_a_request_may_narrow_and_not_widen(stack: Stack) -> None:
    answer = stack.chat(headers={"X-Agent-Meta": '{"priority": 99, "latency_sla_ms": 100}'})
    assert (answer.status_code, answer.headers["x-recursant-clamped"]) == (200, "priority")
    answer = stack.chat(headers={"X-Agent-Meta": "{"})
    assert (answer.status_code, error_of(answer)["param"]) == (400, "x-agent-meta")


def test_the_worker_gets_the_metadata(stack: Stack) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = {"x-request-id": "meta-1", "traceparent": trace, "x-agent-priority": "9", "x-session-id": "s-1"}
    answer = stack.chat(headers=headers)
    seen = dict(recorded(stack, answer, "meta-1")["headers"])
    assert (seen["x-recursant-agent"], seen["x-recursant-class"], seen["x-recursant-priority"]) == (
        "chat-web",
        "high",
        "9",
    )
    assert (seen["x-request-id"], seen["traceparent"]) == ("meta-1", trace)
    assert seen["x-agent-id"] == "chat-web"
    assert "x-agent-priority" not in seen


def test_routing_headers_of_a_client_change_nothing(stack: Stack) -> None:
    victim = next(iter(stack.worker_urls.values())).removeprefix("http://")
    forged = {
        "x-gateway-destination-endpoint": victim,
        "x-recursant-agent": "batch-summary",
        "x-recursant-class": "critical",
        "x-envoy-max-retries": "99",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-retry-on": "5xx",
    }
    served = set()
    for number in range(12):
        answer = stack.chat(headers={**forged, "x-request-id": f"forged-{number}"})
        assert (answer.status_code, answer.headers["x-recursant-agent"]) == (200, "chat-web")
        served.add(answer.headers["x-recursant-worker"])
        seen = dict(recorded(stack, answer, f"forged-{number}")["headers"])
        assert seen["x-recursant-class"] == "high"
        assert not [name for name in seen if name.startswith(("x-envoy-upstream", "x-gateway-"))]
    assert len(served) > 1


# --- bodies ---


def test_only_the_model_changes_in_the_body(stack: Stack) -> None:
    sent = (
        b'{ "zeta":1, "model" : "auto" ,"big":123456789012345678901234567890,"a":1,"a":2,\n'
        b'"messages":[{"role":"user","content":"\\u00e9 \\ud83d\\ude00 \xc3\xa9 \\"model\\": \\"auto\\""}],'
        b'"chat_template_kwargs":{"model":"auto"},"max_tokens":4}'
    )
    headers = {"x-agent-id": "chat-web", "x-request-id": "bytes-1", "content-type": "application/json"}
    answer = stack.client.post("/v1/chat/completions", content=sent, headers=headers)
    assert answer.status_code == 200, answer.text
    assert body_at_worker(stack, answer, "bytes-1") == sent.replace(b'"auto"', f'"{QWEN}"'.encode(), 1)
    seen = recorded(stack, answer, "bytes-1")["headers"]
    lengths = [value for name, value in seen if name == "content-length"]
    assert lengths == [str(len(sent) - len('"auto"') + len(QWEN) + 2)]
    assert not [name for name, _ in seen if name == "transfer-encoding"]


@pytest.mark.parametrize("agent", ["chat-web", None])
def test_a_prompt_of_1_mib_arrives_whole(stack: Stack, agent: str | None) -> None:
    content = "".join(f"{number:07d} " for number in range(131_072))
    assert len(content) == 1024 * 1024
    answer = stack.chat(content, agent=agent, model="auto" if agent else QWEN, max_tokens=48)
    assert answer.status_code == 200, answer.text[:500]
    text = answer.json()["choices"][0]["message"]["content"]
    assert text.startswith(reply_start([{"role": "user", "content": content}]))


@pytest.mark.parametrize("agent", ["chat-web", None])
def test_a_chunked_body_passes(stack: Stack, agent: str | None) -> None:
    body = json.dumps(stack.chat_body("chunked", model=QWEN if agent is None else "auto", max_tokens=48)).encode()
    headers = {"content-type": "application/json", "x-request-id": f"chunked-{agent}"}
    if agent:
        headers["x-agent-id"] = agent
    chunks = (body[at : at + 7] for at in range(0, len(body), 7))
    answer = stack.client.post("/v1/chat/completions", content=chunks, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"].startswith(
        reply_start([{"role": "user", "content": "chunked"}])
    )


def raw(stack: Stack, data: bytes, *, pause: Callable[[], None] | None = None, tail: bytes = b"") -> bytes:
    """Send bytes as they are; the answer until the gateway closes or a full response has come."""
    url = httpx.URL(stack.endpoints.gateway)
    with socket.create_connection((url.host, url.port or 80), timeout=30) as connection:
        connection.sendall(data)
        if pause is not None:
            pause()
        connection.sendall(tail)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
        return answer


def test_a_body_may_end_in_a_separate_empty_chunk(stack: Stack) -> None:
    body = json.dumps(stack.chat_body("separate end")).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\nx-agent-id: chat-web\r\n"
        b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n"
    answer = raw(stack, head + chunk, pause=lambda: time.sleep(0.2), tail=b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200"), answer[:300]


@pytest.mark.parametrize("agent", ["chat-web", None])
@pytest.mark.parametrize("content", [b"not json", b'{"model":"auto"', b"[1]", b'{"model":"auto"} x', b'{"model":7}'])
def test_a_body_that_is_not_json_is_the_clients_error(stack: Stack, agent: str | None, content: bytes) -> None:
    request_id = f"broken-{uuid.uuid4().hex}"
    headers = {
        "content-type": "application/json",
        "x-request-id": request_id,
        **({"x-agent-id": agent} if agent else {}),
    }
    answer = stack.client.post("/v1/chat/completions", content=content, headers=headers)
    assert answer.status_code == 400, answer.text
    error_of(answer)
    for url in stack.worker_urls.values():
        seen = httpx.get(f"{url}/sim/state/requests", params={"limit": "256"}, trust_env=False).json()["requests"]
        assert request_id not in {request["id"] for request in seen}
    no_request_left(stack)


@pytest.mark.parametrize("agent", ["chat-web", None])
@pytest.mark.parametrize("framed", [True, False])
def test_a_body_over_the_limit_is_413(stack: Stack, agent: str | None, framed: bool) -> None:
    size = 10 * 1024 * 1024 + 1
    headers = {"content-type": "application/json", **({"x-agent-id": agent} if agent else {})}
    block = b"x" * 65_536
    content: Any = b"x" * size if framed else (block for _ in range(size // len(block) + 1))
    with stack.new_client() as client:
        try:
            answer = client.post("/v1/chat/completions", content=content, headers=headers)
        except (httpx.WriteError, httpx.ReadError):
            pytest.skip("the client did not read the early answer before its connection was closed")
    assert answer.status_code == 413
    error_of(answer)
    no_request_left(stack)


def test_a_body_of_exactly_the_limit_passes(stack: Stack) -> None:
    head, tail = b'{"model":"auto","max_tokens":1,"messages":[{"role":"user","content":"', b'"}]}'
    body = head + b"x" * (10 * 1024 * 1024 - len(head) - len(tail)) + tail
    headers = {"content-type": "application/json", "x-agent-id": "chat-web"}
    answer = stack.client.post("/v1/chat/completions", content=body, headers=headers)
    # The model's context is shorter than that: the worker's own word, after the gateway let it through.
    assert (answer.status_code, "x-recursant-worker" in answer.headers) == (400, True)


def test_http_1_0_is_spoken(stack: Stack) -> None:
    assert raw(stack, b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.")


def test_multipart_and_unknown_paths_pass(stack: Stack) -> None:
    answer = stack.client.post(
        "/v1/audio/transcriptions",
        files={"file": ("a.wav", b"RIFF" + bytes(range(256)))},
        headers={"x-agent-id": "chat-web"},
    )
    assert answer.status_code == 404  # the worker's own answer: it has no audio model
    assert "x-recursant-worker" in answer.headers
    answer = stack.client.post("/tokenize", json={"model": QWEN, "prompt": "four words are here"})
    assert (answer.status_code, "tokens" in answer.json()) == (200, True)


# --- without bodies ---


def test_a_bodiless_get_passes(stack: Stack) -> None:
    for headers in ({}, {"x-agent-id": "chat-web"}):
        answer = stack.client.get("/version", headers=headers)
        assert answer.status_code == 200
        assert "version" in answer.json()


def test_models_are_those_of_the_fleet(stack: Stack) -> None:
    listed = stack.client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert {QWEN, PHI, "auto"} <= {model["id"] for model in listed["data"]}
    assert stack.client.get(f"/v1/models/{QWEN}").json()["id"] == QWEN
    answer = stack.client.get("/v1/models/none-such")
    assert answer.status_code == 404
    error_of(answer)


def test_health_and_readiness(stack: Stack) -> None:
    assert stack.client.get("/healthz").status_code == 200
    assert stack.client.get("/readyz").status_code == 200


def test_a_preflight_is_answered(stack: Stack) -> None:
    headers = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "x-agent-id,content-type",
    }
    answer = stack.client.options("/v1/chat/completions", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] in ("*", "https://app.example")
    assert "POST" in answer.headers["access-control-allow-methods"]
    answer = stack.chat(headers={"origin": "https://app.example"})
    assert answer.headers["access-control-allow-origin"] in ("*", "https://app.example")


def test_options_without_an_origin_goes_to_a_worker(stack: Stack) -> None:
    assert "x-recursant-worker" in stack.client.options("/v1/chat/completions").headers


# --- streams, and clients that leave ---


def test_a_stream_passes_piece_by_piece(stack: Stack) -> None:
    with stack.stream("stream me", max_tokens=24, stream_options={"include_usage": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        pieces = [line for line in answer.iter_lines() if line]
    assert pieces[-1] == "data: [DONE]"
    events = [json.loads(piece.removeprefix("data: ")) for piece in pieces[:-1]]
    assert events[-1]["usage"]["completion_tokens"] == 24
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert text.startswith(reply_start([{"role": "user", "content": "stream me"}]))
    no_request_left(stack)


def test_a_client_that_leaves_after_the_first_token_is_released(stack: Stack) -> None:
    with stack.stream("leave", max_tokens=4_000, ignore_eos=True) as answer:
        worker = answer.headers["x-recursant-worker"]
        lines = answer.iter_lines()
        next(lines)
        assert stack.inflight() == 1
    no_request_left(stack)
    stack.wait_until(lambda: stack.sim_state(worker)["in_flight"] == 0, what="the worker has aborted it")


async def test_clients_that_leave_before_the_first_token_are_released(stack: Stack) -> None:
    async def leave(client: httpx.AsyncClient, after: float) -> None:
        content = hashlib.sha256(str(after).encode()).hexdigest() * 4_000  # a long prefill
        body = stack.chat_body(content, max_tokens=64, stream=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after):
                await client.post("/v1/chat/completions", json=body, headers={"x-agent-id": "chat-web"})

    async with stack.async_client() as client:
        await asyncio.gather(*(leave(client, 0.002 * number) for number in range(1, 21)))
    no_request_left(stack)
    for worker in stack.worker_urls:
        stack.wait_until(lambda: stack.sim_state(worker)["in_flight"] == 0, what=f"{worker} is idle")  # noqa: B023


@pytest.mark.parametrize("agent", [b"x-agent-id: chat-web\r\n", b""])
def test_a_client_that_leaves_while_it_sends_is_released(stack: Stack, agent: bytes) -> None:
    url = httpx.URL(stack.endpoints.gateway)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n" + agent + b"content-type: application/json\r\n"
        b"content-length: 1000000\r\n\r\n"
    )
    for sent in (0, 10, 500_000):
        with socket.create_connection((url.host, url.port or 80), timeout=30) as connection:
            connection.sendall(head + b" " * sent)
    no_request_left(stack)
    assert stack.chat().status_code == 200
