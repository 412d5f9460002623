"""envoy/lua/attempt.lua: which answers are tried once more, and what is kept of them."""

import pytest
from lua_kit import Outcome, Script

from recursant import names
from recursant.fleet.engine_errors import MAX_BODY_BYTES

HOST = "10.0.0.1:8000"
FAILED = f"{names.METADATA_NAMESPACE}/{names.METADATA_FAILED}"
FAILED_BODY = f"{names.METADATA_NAMESPACE}/{names.METADATA_FAILED_BODY}"


@pytest.fixture(scope="module")
def script() -> Script:
    return Script("attempt")


def answer(script: Script, status: str, body: bytes | None = b"", *, decision: bool = True, **known: str) -> Outcome:
    headers = {":status": status} | ({} if body is None else {"content-length": str(len(body))})
    return script.run(
        headers=headers,
        decision={names.METADATA_SELECTED: HOST, **known} if decision else None,
        body=body,
        on="envoy_on_response",
    )


def test_the_first_500_is_marked_and_kept(script: Script) -> None:
    outcome = answer(script, "500", b"CUDA error")
    assert outcome.headers[names.RETRY_MARK] == "1"
    assert outcome.metadata == {FAILED: HOST.encode(), FAILED_BODY: b"base64:CUDA error"}
    assert outcome.body is None  # it was not changed


def test_a_second_500_is_not(script: Script) -> None:
    outcome = answer(script, "500", b"CUDA error", failed="10.0.0.2:8000")
    assert names.RETRY_MARK not in outcome.headers
    assert outcome.metadata == {}


@pytest.mark.parametrize("status", ["200", "400", "404", "429", "501", "502", "503", "504"])
def test_no_other_answer_is_touched(script: Script, status: str) -> None:
    outcome = answer(script, status, b"x")
    assert names.RETRY_MARK not in outcome.headers
    assert outcome.metadata == {}


def test_a_workers_own_mark_is_taken_away(script: Script) -> None:
    headers = {":status": "200", names.RETRY_MARK: "1"}
    assert names.RETRY_MARK not in script.run(headers=headers, on="envoy_on_response").headers


@pytest.mark.parametrize("length", [str(MAX_BODY_BYTES + 1), None, "junk"])
def test_a_body_that_is_long_or_of_no_known_length_is_not_waited_for(script: Script, length: str | None) -> None:
    headers = {":status": "500"} | ({} if length is None else {"content-length": length})
    decision = {names.METADATA_SELECTED: HOST}
    outcome = script.run(headers=headers, decision=decision, body=b"x", on="envoy_on_response")
    assert outcome.headers[names.RETRY_MARK] == "1"
    assert outcome.metadata == {FAILED: HOST.encode()}


def test_a_body_of_the_largest_length_is_kept(script: Script) -> None:
    outcome = answer(script, "500", b"x" * MAX_BODY_BYTES)
    assert outcome.metadata[FAILED_BODY] == b"base64:" + b"x" * MAX_BODY_BYTES


def test_an_error_without_a_body(script: Script) -> None:
    outcome = script.run(headers={":status": "500", "content-length": "0"}, decision=None, on="envoy_on_response")
    assert outcome.headers[names.RETRY_MARK] == "1"
    # Nobody chose a host here: Envoy alone did.
    assert outcome.metadata == {FAILED: b""}
