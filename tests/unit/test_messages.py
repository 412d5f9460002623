"""Answers put together from kept pieces are what protobuf itself would have written."""

from typing import Any

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse

from extproc import answers, messages
from extproc.decision import Decision
from recursant import names

# Lengths that need one, two and three bytes in front, in the value itself and in what encloses it.
LENGTHS = (1, 2, 7, 8, 55, 90, 110, 120, 126, 127, 128, 200, 255, 256, 16_300, 16_384, 20_000)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("phase", ["request_headers", "request_body"])
def test_a_header_of_one_request(phase: messages.Phase, length: int) -> None:
    for value in ("v" * length, "w" * length):
        made = ProcessingResponse.FromString(messages.header_piece(phase, "x-request-id", value))
        written = ProcessingResponse.FromString(messages.continue_piece(phase, (("x-request-id", value),)))
        assert made == written


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("others", [{}, {"model": "m/7B", "allowed_models": ",a,b,", "priority": 0, "max_tokens": 9}])
def test_endpoints_among_other_metadata(others: dict[str, Any], length: int) -> None:
    for endpoints in ("e" * length, "f" * length):
        decision = Decision(
            (0,),
            endpoints,
            others.get("model", ""),
            others.get("allowed_models", ""),
            others.get("priority"),
            max_tokens=others.get("max_tokens"),
        )
        made = ProcessingResponse.FromString(answers.to_worker("request_headers", decision, "a", "high", 9, ()))
        written = ProcessingResponse.FromString(messages.metadata_piece({"endpoints": endpoints, **others}))
        assert made.dynamic_metadata == written.dynamic_metadata


def test_text_beyond_ascii_is_measured_in_bytes() -> None:
    made = ProcessingResponse.FromString(messages.header_piece("request_headers", "x-name", "größer"))
    [option] = made.request_headers.response.header_mutation.set_headers
    assert option.header.raw_value.decode() == "größer"


def test_pieces_add_up_to_one_answer() -> None:
    decision = Decision((3, 5), "10.0.0.1:80,10.0.0.2:80", "m", "", None)
    own = (("x-request-id", "2"),)
    answer = ProcessingResponse.FromString(answers.to_worker("request_body", decision, "chat-web", "high", 10, own))
    mutation = answer.request_body.response.header_mutation
    assert [(option.header.key, option.header.raw_value) for option in mutation.set_headers] == [
        (names.WORKER_AGENT, b"chat-web"),
        (names.WORKER_CLASS, b"high"),
        (names.WORKER_PRIORITY, b"10"),
        ("x-envoy-max-retries", b"1"),
        ("x-request-id", b"2"),
    ]
    assert tuple(mutation.remove_headers) == names.AGENT_DESCRIPTION_HEADERS
    fields = answer.dynamic_metadata.fields["recursant"].struct_value.fields
    assert {key: value.string_value for key, value in fields.items()} == {
        "endpoints": "10.0.0.1:80,10.0.0.2:80",
        "model": "m",
    }


def test_the_client_is_told_what_there_is_to_tell() -> None:
    def told(*facts: Any) -> dict[str, bytes]:
        response = ProcessingResponse.FromString(answers.to_client(*facts)).response_headers.response
        return {option.header.key: option.header.raw_value for option in response.header_mutation.set_headers}

    assert told("chat-web", "", None, None, (), None) == {names.SERVED_AGENT: b"chat-web"}
    assert told("chat-web", "w1", "sla", "kept", ("priority", "max_tokens"), "1") == {
        names.SERVED_AGENT: b"chat-web",
        names.SERVED_BY: b"w1",
        names.FALLBACK: b"sla",
        names.AFFINITY: b"kept",
        names.CLAMPED: b"priority,max_tokens",
        names.RETRY_AFTER: b"1",
    }
