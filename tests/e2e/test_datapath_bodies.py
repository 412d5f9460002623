"""Bodies: edited by Lua, of any size and framing, bounded in size and time (PITFALLS, Bodies and framing)."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from datapath.background import eventually
from datapath.client import Answer, read_answer
from datapath.ext_proc import Verdict
from datapath.rig import Rig, running
from datapath.standard import CHAT, QWEN, standard_config

from recursant.config.model import Limits

pytestmark = pytest.mark.e2e

MIB = 1 << 20
BODY_LIMIT = 2 * MIB
BODY_TIMEOUT_S = 1.0


@pytest.fixture(scope="module")
def module_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("bodies"), standard_config(limits=Limits(body_bytes=BODY_LIMIT))) as rig:
        yield rig


@pytest.fixture(scope="module")
def impatient_module_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    limits = Limits(body_timeout_ms=int(BODY_TIMEOUT_S * 1_000))
    with running(tmp_path_factory.mktemp("impatient"), standard_config(limits=limits)) as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    return fresh(module_rig)


@pytest.fixture
def impatient(impatient_module_rig: Rig) -> Rig:
    """One that gives a body a second. Only for tests about that: a busy machine may need it for anything."""
    return fresh(impatient_module_rig)


def fresh(rig: Rig) -> Rig:
    rig.reset()
    rig.ext_proc.decide = lambda _: decided(rig)
    return rig


def decided(rig: Rig, **metadata: str | float) -> Verdict:
    return Verdict(endpoints=rig.workers[0].endpoint, metadata=metadata)


def post_head(headers: str) -> bytes:
    return f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-agent-id: chat-web\r\n{headers}\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def error_of(answer: Answer) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json"
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status, error["code"]


# --- edits ---


def test_auto_and_priority_are_written_and_the_rest_is_kept(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: decided(rig, model="Qwen/Qwen2.5-7B", priority=-2)
    sent = b'{"z":1,"model" : "auto","n":123456789012345678901234567890,"z":2,"u":"\\u00e9","tools":[{"model":"auto"}]}'
    assert rig.post("/v1/chat/completions", sent, CHAT).status == 200
    seen = rig.only()
    assert seen.body == b'{"priority":-2,' + sent[1:].replace(b'"auto"', b'"Qwen/Qwen2.5-7B"', 1)
    assert seen.header("content-length") == str(len(seen.body))
    assert seen.header("transfer-encoding") is None


def test_without_extproc_the_routes_model_is_written(rig: Rig) -> None:
    with rig.without_ext_proc():
        rig.post("/v1/chat/completions", '{"model":"auto","a":1}', CHAT)
    assert rig.only().body == b'{"model":"%s","a":1}' % QWEN[0].encode()


def test_a_model_that_the_agent_may_not_use_is_refused_with_and_without_extproc(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: decided(rig, allowed_models=",m,")
    answers = [rig.chat(CHAT, model="gpt-4")]
    with rig.without_ext_proc():
        answers.append(rig.chat(CHAT, model="gpt-4"))
    for answer, allowed in zip(answers, ("m", QWEN[0]), strict=True):
        assert error_of(answer) == (403, "model_not_allowed")
        assert answer.json["error"]["type"] == "permission_error"
        assert answer.json["error"]["param"] == "model"
        assert answer.json["error"]["message"].endswith(f"allowed are {allowed}")
    assert rig.seen == []


def test_a_chunked_body_is_edited_and_gets_its_length(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: decided(rig, model="a much longer name than it was")
    parts = [b'{"model":', b'"au', b'to","x":"', b"y" * 100_000, b'"}']
    answer = rig.request(
        "POST",
        "/v1/chat/completions",
        iter(parts),
        {**CHAT, "content-type": "application/json", "transfer-encoding": "chunked"},
    )
    assert answer.status == 200
    seen = rig.only()
    assert json.loads(seen.body) == {"model": "a much longer name than it was", "x": "y" * 100_000}
    assert seen.header("content-length") == str(len(seen.body))
    assert seen.header("transfer-encoding") is None
    # extproc decides on the length, so it hears it, whatever the framing.
    headers = {h.key: h.raw_value for h in rig.ext_proc.seen[0].request_headers.headers.headers}
    assert headers["content-length"] == str(sum(map(len, parts))).encode()


def test_a_separate_empty_end_of_stream(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: decided(rig, model="m")
    head = post_head("content-type: application/json\r\ntransfer-encoding: chunked")
    with rig.raw(head, chunk(b'{"model":"auto"}')) as connection:
        time.sleep(0.1)
        assert rig.seen == []
        connection.sendall(b"0\r\n\r\n")
        assert read_answer(connection).status == 200
    assert rig.only().body == b'{"model":"m"}'


def test_a_client_that_waits_for_100_continue(rig: Rig) -> None:
    with rig.raw(
        post_head("content-type: application/json\r\ncontent-length: 2\r\nexpect: 100-continue")
    ) as connection:
        assert connection.recv(4_096).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"{}")
        assert read_answer(connection).status == 200


@pytest.mark.parametrize("size", [32 << 10, 64 << 10, 128 << 10, MIB, BODY_LIMIT - 64])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_long_prompts_pass_whole(rig: Rig, size: int, framing: str) -> None:
    rig.ext_proc.decide = lambda _: decided(rig, model="m")
    prompt = ("0123456789abcde\\n" * (size // 17 + 1))[: size // 17 * 17]
    body = f'{{"model":"auto","prompt":"{prompt}"}}'.encode()
    if framing == "length":
        answer = rig.post("/v1/completions", body, CHAT)
    else:
        parts = [body[at : at + 50_000] for at in range(0, len(body), 50_000)]
        headers = {**CHAT, "content-type": "application/json", "transfer-encoding": "chunked"}
        answer = rig.request("POST", "/v1/completions", iter(parts), headers)
    assert answer.status == 200
    assert rig.only().body == body.replace(b'"auto"', b'"m"')


def test_extproc_may_ask_for_the_whole_body(rig: Rig) -> None:
    verdict = decided(rig, model="m")
    verdict.ask_for_body = True
    rig.ext_proc.decide = lambda _: verdict
    body = b'{"model":"auto","prompt":"' + b"x" * (BODY_LIMIT - 100) + b'"}'
    assert rig.post("/v1/completions", body, CHAT).status == 200
    assert rig.ext_proc.bodies == [body]
    assert rig.only().body == body.replace(b'"auto"', b'"m"')


# --- content types ---


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded"])
def test_json_without_a_type_of_its_own_becomes_json(rig: Rig, kind: str | None) -> None:
    rig.ext_proc.decide = lambda _: decided(rig, model="m")
    headers = CHAT if kind is None else {**CHAT, "content-type": kind}
    rig.request("POST", "/v1/chat/completions", b'{"model":"auto"}', headers)
    assert rig.only().header("content-type") == "application/json"
    assert rig.only().body == b'{"model":"m"}'
    seen = {h.key: h.raw_value for h in rig.ext_proc.seen[0].request_headers.headers.headers}
    assert seen["content-type"] == b"application/json"


def test_multipart_passes_untouched(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: decided(rig, model="m", priority=-1, allowed_models=",m,")
    body = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nauto\r\n--x--\r\n' + bytes(range(256))
    rig.request("POST", "/v1/audio/transcriptions", body, {**CHAT, "content-type": "multipart/form-data; boundary=x"})
    assert rig.only().body == body
    assert rig.only().header("content-type") == "multipart/form-data; boundary=x"


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "DELETE", "POST"])
def test_requests_without_a_body_pass(rig: Rig, method: str) -> None:
    rig.ext_proc.decide = lambda _: decided(rig, model="m", priority=-1)
    assert rig.request(method, "/v1/anything?x=1", headers=CHAT).status == 200
    assert rig.only().method == method
    assert rig.only().body == b""
    assert rig.only().header("content-type") is None


# --- the client's errors ---


@pytest.mark.parametrize("body", ["{", '{"model":"auto"} x', "[]", "", "not json"])
def test_a_malformed_body_is_refused_before_any_worker(rig: Rig, body: str) -> None:
    assert error_of(rig.post("/v1/chat/completions", body, CHAT)) == (400, "invalid_request")
    assert rig.seen == []
    eventually(lambda: rig.ext_proc.open == 0, "the ext_proc stream ended")


def test_a_name_with_quotes_does_not_break_the_answer(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: decided(rig, allowed_models=",m,")
    answer = rig.chat(CHAT, model='"},{"\\ \u0007 é %REQ(authorization)%')
    assert error_of(answer) == (403, "model_not_allowed")


def test_an_encoded_body_is_refused(rig: Rig) -> None:
    answer = rig.post("/v1/chat/completions", b"\x1f\x8b\x08", {**CHAT, "content-encoding": "gzip"})
    assert error_of(answer) == (415, "unsupported_encoding")


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_body_over_the_limit_is_refused_at_once(rig: Rig, framing: str) -> None:
    over = BODY_LIMIT + 200_000
    kind = f"content-length: {over + 10_000_000}" if framing == "length" else "transfer-encoding: chunked"
    with rig.raw(post_head(f"content-type: application/json\r\n{kind}")) as connection:
        # The answer comes while there is more to send.
        for _ in range(over // 100_000):
            piece = b"x" * 100_000
            try:
                connection.sendall(piece if framing == "length" else chunk(piece))
            except ConnectionError:
                break
        answer = read_answer(connection)
    assert error_of(answer) == (413, "request_too_large")
    assert rig.seen == []
    eventually(lambda: rig.ext_proc.open == 0, "no ext_proc stream is left")


# --- time ---


@pytest.mark.parametrize("trickle", [False, True])
@pytest.mark.parametrize("framing", ["content-length: 1000", "transfer-encoding: chunked"])
def test_an_upload_that_takes_too_long_is_cut(impatient: Rig, framing: str, trickle: bool) -> None:
    began = time.monotonic()
    with impatient.raw(post_head(f"content-type: application/json\r\n{framing}")) as connection:
        # Bytes that keep coming do not buy time.
        while trickle and time.monotonic() - began < 2 * BODY_TIMEOUT_S:
            try:
                connection.sendall(b"x" if "length" in framing else chunk(b"x"))
            except ConnectionError:
                break
            time.sleep(0.05)
        answer = read_answer(connection)
    assert error_of(answer) == (408, "request_timeout")
    assert time.monotonic() - began >= BODY_TIMEOUT_S * 0.9
    assert impatient.seen == []
    eventually(lambda: impatient.ext_proc.open == 0, "no ext_proc stream is left")


def test_neither_a_hold_nor_a_generation_is_cut_by_that(impatient: Rig) -> None:
    held = decided(impatient)
    held.ask_hold_s, held.hold_s = 10.0, 1.5 * BODY_TIMEOUT_S
    impatient.ext_proc.decide = lambda _: held
    impatient.workers[0].do = {"delay": 1.5 * BODY_TIMEOUT_S}
    assert impatient.chat(CHAT).status == 200
    chunked = {**CHAT, "content-type": "application/json", "transfer-encoding": "chunked"}
    assert impatient.request("POST", "/v1/completions", iter([b"{", b"}"]), chunked).status == 200


def test_a_hold_while_extproc_has_the_body_is_not_cut(impatient: Rig) -> None:
    held = decided(impatient)
    held.ask_for_body, held.ask_hold_s, held.hold_s = True, 10.0, 1.5 * BODY_TIMEOUT_S
    impatient.ext_proc.decide = lambda _: held
    assert impatient.chat(CHAT, prompt="x" * 500_000).status == 200


def test_the_default_limit_is_retried_whole(tmp_path: Path) -> None:
    """10 MiB, refused by the first worker, lost by the second, whole at the third."""
    with running(tmp_path) as rig:
        rig.workers[0].do = {"status": 503}
        rig.workers[1].do = {"die": True}
        verdict = Verdict(
            endpoints=",".join(worker.endpoint for worker in rig.workers),
            metadata={"model": "m"},
            headers={"x-envoy-max-retries": "2"},
        )
        rig.ext_proc.decide = lambda _: verdict
        body = b'{"model":"auto","prompt":"' + b"x" * (10 * MIB - 64) + b'"}'
        answer = rig.post("/v1/completions", body, CHAT)
        assert (answer.status, answer.worker) == (200, "w2")
        assert [seen.body for seen in rig.seen] == [body.replace(b'"auto"', b'"m"')] * 3
