"""Everything that vLLM serves passes the gateway."""

import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from fleet_rig import Fleet
from vllm_rig import MAX_MODEL_LEN, MODEL, REQUEST_S, completion, wait_until

MESSAGES = [{"role": "user", "content": "The queue holds"}]


def events(text: str) -> list[str]:
    """The data of a stream's events."""
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v1/completions", completion(), lambda got: got["choices"][0]["text"]),
        (
            "/v1/chat/completions",
            {"model": MODEL, "messages": MESSAGES, "max_tokens": 8},
            lambda got: got["choices"][0]["message"]["content"],
        ),
        (
            "/v1/responses",
            {"model": MODEL, "input": "The queue holds", "max_output_tokens": 8},
            lambda got: got["output"][0]["content"][0]["text"],
        ),
        (
            "/v1/messages",
            {"model": MODEL, "messages": MESSAGES, "max_tokens": 8},
            lambda got: got["content"][0]["text"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whole_answers(fleet: Fleet, path: str, body: dict[str, Any], text: Any) -> None:
    answer = fleet.ask(path, body)
    assert answer.status_code == 200, answer.text
    assert text(answer.json())
    assert answer.headers["x-recursant-worker"] in {fleet.worker_id(server) for server in fleet.servers}


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/completions", completion(stream=True), "[DONE]"),
        (
            "/v1/chat/completions",
            {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "stream": True},
            "[DONE]",
        ),
        (
            "/v1/responses",
            {"model": MODEL, "input": "The queue holds", "max_output_tokens": 8, "stream": True},
            "response.completed",
        ),
        (
            "/v1/messages",
            {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "stream": True},
            "message_stop",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_streams(fleet: Fleet, path: str, body: dict[str, Any], last: str) -> None:
    answer = fleet.ask(path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = events(answer.text)
    assert len(data) > 2
    assert data[-1] == last or json.loads(data[-1])["type"] == last


def test_the_last_chunk_has_the_usage_if_asked_for(fleet: Fleet) -> None:
    answer = fleet.ask("/v1/completions", completion(stream=True, stream_options={"include_usage": True}))
    *_, last, done = events(answer.text)
    assert done == "[DONE]"
    assert json.loads(last)["choices"] == []
    assert json.loads(last)["usage"]["completion_tokens"] == 8


def test_auto_becomes_a_model_of_the_family(fleet: Fleet) -> None:
    answer = fleet.ask("/v1/completions", {**completion(), "model": "auto"})
    assert answer.status_code == 200, answer.text


def test_models_are_those_of_the_fleet(fleet: Fleet) -> None:
    names = {card["id"] for card in fleet.stack.client.get("/v1/models").json()["data"]}
    assert {MODEL, *(server.model for server in fleet.servers)} <= names


def test_tokenize(fleet: Fleet) -> None:
    answer = fleet.ask("/tokenize", {"model": MODEL, "prompt": "The gateway takes a block"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["count"] == len(answer.json()["tokens"])


@pytest.mark.parametrize(
    ("body", "status", "kind", "param"),
    [
        (completion([7] * (MAX_MODEL_LEN + 1)), 400, "BadRequestError", "input_tokens"),
        (completion(max_tokens=MAX_MODEL_LEN + 1), 400, "BadRequestError", "max_tokens"),
    ],
    ids=["prompt too long", "too many tokens"],
)
def test_the_words_of_a_refusal_are_vllms(
    fleet: Fleet, body: dict[str, Any], status: int, kind: str, param: str
) -> None:
    # Without an agent there is no policy that bounds the answer.
    answer = fleet.ask("/v1/completions", body, agent=None)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (status, kind, param)


def test_a_hang_up_stops_the_engine(fleet: Fleet) -> None:
    server = fleet.lora
    before = server.metrics().value("vllm:generation_tokens_total")
    here = server.load()
    body = {**completion(max_tokens=1_900, stream=True), "model": server.model}
    gateway = HTTPConnection(fleet.stack.endpoints.gateway.removeprefix("http://"), timeout=REQUEST_S)
    # Held, so that it is not over before the hang-up has come.
    with closing(gateway), server.stopped() as engine:
        gateway.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        wait_until(lambda: server.load() > here, what="it has come")
        engine.run_until(lambda: server.metrics().value("vllm:num_requests_running") == 1, what="it runs")
        with gateway.getresponse() as answer:
            assert answer.status == 200
            assert answer.readline().startswith(b"data: ")
        gateway.close()
        wait_until(lambda: fleet.stack.inflight() == 0, what="the gateway has noticed")
    wait_until(lambda: server.metrics().value("vllm:num_requests_running") == 0)
    # It was cut, not finished.
    assert server.metrics().value("vllm:generation_tokens_total") < before + 1_900


def test_answers_are_those_of_the_worker_itself(fleet: Fleet) -> None:
    body = completion("Every request counts", max_tokens=12)
    own = [httpx.post(f"{each.url}/v1/completions", json=body, timeout=60, trust_env=False) for each in fleet.servers]
    # They have the same weights.
    [choices] = {json.dumps(answer.json()["choices"]) for answer in own}
    assert json.dumps(fleet.ask("/v1/completions", body).json()["choices"]) == choices
