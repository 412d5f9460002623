"""What Envoy answers itself: health, models, CORS, and errors in OpenAI's form."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from datapath.background import eventually
from datapath.client import read_answer
from datapath.ext_proc import Verdict
from datapath.rig import Rig, running
from datapath.standard import CHAT, PHI, QWEN, record, standard_config, standard_fleet

from recursant.config.model import Cors, Gateway

pytestmark = pytest.mark.e2e

ORIGIN = {"origin": "https://app.example"}


@pytest.fixture(scope="module")
def module_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("answers")) as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    module_rig.reset()
    return module_rig


# --- health ---


def test_alive_whatever_happens(rig: Rig) -> None:
    assert (rig.get("/healthz").status, rig.get("/healthz").json) == (200, {"status": "ok"})
    with rig.without_ext_proc():
        assert rig.get("/healthz").status == 200
    assert rig.seen == []


def test_ready_is_what_extproc_says(rig: Rig) -> None:
    rig.ext_proc.decide = lambda headers: (
        Verdict(immediate=(200, {"content-type": "application/json"}, '{"status":"ready"}'))
        if headers[":path"] == "/readyz"
        else Verdict()
    )
    answer = rig.get("/readyz")
    assert (answer.status, answer.json) == (200, {"status": "ready"})
    assert answer.headers["content-type"] == "application/json"


def test_not_ready_without_extproc(rig: Rig) -> None:
    with rig.without_ext_proc():
        answer = rig.get("/readyz")
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json["error"] == {
        "message": "the ext_proc service is away",
        "type": "service_unavailable_error",
        "param": None,
        "code": "unavailable",
    }
    assert rig.seen == []


# --- models ---


def test_the_models_of_the_fleet(rig: Rig) -> None:
    answer = rig.get("/v1/models?x=1", CHAT)
    assert answer.headers["content-type"] == "application/json"
    assert [card["id"] for card in answer.json["data"]] == [QWEN[0], "auto", PHI[0]]
    assert answer.json["object"] == "list"
    assert (rig.seen, rig.ext_proc.seen) == ([], [])


@pytest.mark.parametrize("name", [QWEN[0], PHI[0], "auto"])
@pytest.mark.parametrize("safe", ["/", ""])
def test_one_model(rig: Rig, name: str, safe: str) -> None:
    assert rig.get(f"/v1/models/{quote(name, safe=safe)}").json["id"] == name


def test_a_model_that_is_not_there(rig: Rig) -> None:
    answer = rig.get("/v1/models/gpt-4")
    assert answer.status == 404
    assert answer.json["error"] == {
        "message": "no worker serves a model of this name",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }


def test_models_follow_the_fleet(rig: Rig) -> None:
    new = record("w2", rig.workers[2].endpoint, PHI, ("new-model", ""), lora_adapters=["sql"])
    try:
        rig.push(fleet=[*standard_fleet(rig.workers)[:2], new])
        eventually(lambda: rig.get("/v1/models/new-model").status == 200, "the new model is listed")
        assert {"sql", "new-model"} < {card["id"] for card in rig.get("/v1/models").json["data"]}
    finally:
        rig.push(fleet=standard_fleet(rig.workers))
    eventually(lambda: rig.get("/v1/models/new-model").status == 404, "and is gone again")


def test_other_methods_are_the_workers_business(rig: Rig) -> None:
    assert rig.post("/v1/models", "{}", CHAT).status == 200
    assert rig.only().method == "POST"


# --- CORS ---


def test_a_preflight_is_answered_without_a_worker(rig: Rig) -> None:
    asks = {
        **ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-agent-id",
    }
    for path in ("/v1/chat/completions", "/api/chat", "/v1/models"):
        answer = rig.request("OPTIONS", path, headers=asks)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == ORIGIN["origin"]
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == "*, Authorization"
        assert answer.headers["access-control-max-age"] == "600"
    assert rig.seen == []


def test_answers_to_browsers_may_be_read(rig: Rig) -> None:
    for answer in (rig.chat({**CHAT, **ORIGIN}), rig.chat({"x-agent-id": "lonely", **ORIGIN})):
        assert answer.headers["access-control-allow-origin"] == ORIGIN["origin"]
        assert "x-recursant-worker" in answer.headers["access-control-expose-headers"]
    for path in ("/v1/models", "/v1/models/auto", "/v1/models/none", "/healthz"):
        assert rig.get(path, ORIGIN).headers["access-control-allow-origin"] == "*"


def test_only_the_configured_origins_may_read(tmp_path: Path) -> None:
    cors = Cors(allow_origins=["https://app.example", "https://b.example"])
    other = {"origin": "https://evil.example"}
    with running(tmp_path, standard_config(gateway=Gateway(cors=cors))) as rig:
        for path in ("/v1/models", "/v1/x"):
            assert rig.get(path, ORIGIN).headers["access-control-allow-origin"] == ORIGIN["origin"]
            for headers in (other, {}):
                answer = rig.get(path, headers)
                assert answer.status == 200
                assert "access-control-allow-origin" not in answer.headers
        preflight = rig.request("OPTIONS", "/v1/x", headers={**other, "access-control-request-method": "POST"})
        assert "access-control-allow-origin" not in preflight.headers
        assert [seen.method for seen in rig.seen] == ["GET"] * 3


# --- errors ---


def test_extprocs_own_answers_stay_as_they_are(rig: Rig) -> None:
    body = '{"error":{"message":"too much","type":"rate_limit_error","param":null,"code":"kv_full"}}'
    headers = {"content-type": "application/json", "retry-after": "7", "x-recursant-agent": "chat-web"}
    rig.ext_proc.decide = lambda _: Verdict(immediate=(429, headers, body))
    answer = rig.chat(CHAT)
    assert (answer.status, answer.body) == (429, body.encode())
    assert headers.items() <= answer.headers.items()


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("away", [False, True])
def test_a_workers_429_and_503_get_a_retry_after_and_keep_their_body(rig: Rig, status: int, away: bool) -> None:
    body = '{"object":"error","message":"mine"}'
    for worker in rig.workers:
        worker.do = {"status": status, "body": body}

    def check() -> None:
        answer = rig.chat(CHAT)
        assert (answer.status, answer.body, answer.headers["retry-after"]) == (status, body.encode(), "1")
        for worker in rig.workers:
            worker.do = {**worker.do, "headers": {"Retry-After": "30"}}
        assert rig.chat(CHAT).headers["retry-after"] == "30"

    if away:
        with rig.without_ext_proc():
            check()
    else:
        check()


@pytest.mark.parametrize("status", [200, 400, 404, 500, 502, 504])
def test_other_answers_of_workers_pass_as_they_are(rig: Rig, status: int) -> None:
    for worker in rig.workers:
        worker.do = {"status": status, "body": "mine", "headers": {"x-own": "1"}}
    answer = rig.chat(CHAT)
    assert (answer.status, answer.body, answer.headers["x-own"]) == (status, b"mine", "1")
    assert "retry-after" not in answer.headers


def test_no_worker_left_is_503(rig: Rig) -> None:
    answer = rig.chat({"x-agent-id": "lonely"})
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json["error"]["type"] == "service_unavailable_error"


def test_a_worker_that_dies_on_everybody_is_503(rig: Rig) -> None:
    for worker in rig.workers:
        worker.do = {"die": True}
    answer = rig.chat(CHAT)
    assert answer.status in (502, 503)
    assert answer.json["error"]["type"] in ("server_error", "service_unavailable_error")
    # Three candidates at most, so a request that kills its worker reaches no more than that.
    assert len(rig.seen) <= 3


def test_envoys_own_400_says_why(rig: Rig) -> None:
    with rig.raw(b"GET /v1/x HTTP/1.1\r\n\r\n") as connection:
        answer = read_answer(connection)
    assert answer.status == 400
    assert answer.json["error"]["message"] == "the request is malformed: missing_host_header"


@pytest.mark.parametrize(
    ("request_bytes", "status", "message"),
    [
        (b"\x16\x03\x01\x00\xc8 the first bytes of TLS\r\n\r\n", 400, "http1.codec_error"),
        (b"G@T / HTTP/1.1\r\nhost: a\r\n\r\n", 400, "http1.codec_error"),
        (b"GET /a b HTTP/1.1\r\nhost: a\r\n\r\n", 400, "http1.codec_error"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nno name: x\r\n\r\n", 400, "http1.codec_error"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\x00b\r\n\r\n", 400, "http1.invalid_characters"),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n", 400, "http1.codec_error"),
        (
            b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "http1.content_length_and_chunked_not_allowed",
        ),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", 501, "Not Implemented"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 100_000 + b"\r\n\r\n", 431, "Request Header Fields Too Large"),
    ],
)
def test_what_is_no_http_gets_an_answer_all_the_same(rig: Rig, request_bytes: bytes, status: int, message: str) -> None:
    with rig.raw(request_bytes) as connection:
        answer = read_answer(connection)
    assert answer.status == status
    error = answer.json["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].endswith(message)
    assert rig.seen == []


def test_envoy_does_not_log_what_clients_send(rig: Rig) -> None:
    rig.chat(CHAT, prompt="a secret prompt")
    rig.post("/v1/chat/completions", '{"secret":', CHAT)
    assert "secret" not in rig.envoy_log()
