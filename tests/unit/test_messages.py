"""Answers put together from kept pieces are what protobuf itself would have written."""

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse

from extproc import messages

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
@pytest.mark.parametrize("others", [(), (("model", "Qwen/Qwen2.5-7B"), ("allowed_models", ",a,b,"), ("priority", 0))])
def test_endpoints_among_other_metadata(others: tuple[tuple[str, str | int], ...], length: int) -> None:
    for endpoints in ("e" * length, "f" * length):
        made = ProcessingResponse.FromString(messages.endpoints_piece(endpoints, others))
        written = ProcessingResponse.FromString(messages.metadata_piece({"endpoints": endpoints, **dict(others)}))
        assert made == written


def test_text_beyond_ascii_is_measured_in_bytes() -> None:
    made = ProcessingResponse.FromString(messages.header_piece("request_headers", "x-name", "größer"))
    [option] = made.request_headers.response.header_mutation.set_headers
    assert option.header.raw_value.decode() == "größer"


def test_pieces_add_up_to_one_answer() -> None:
    answer = ProcessingResponse.FromString(
        messages.continue_answer("request_headers", (("x-a", "1"),), ("x-b",))
        + messages.header_piece("request_headers", "x-c", "2")
        + messages.endpoints_piece("10.0.0.1:80", (("model", "m"),))
    )
    mutation = answer.request_headers.response.header_mutation
    assert [(option.header.key, option.header.raw_value) for option in mutation.set_headers] == [
        ("x-a", b"1"),
        ("x-c", b"2"),
    ]
    assert list(mutation.remove_headers) == ["x-b"]
    fields = answer.dynamic_metadata.fields["recursant"].struct_value.fields
    assert {key: value.string_value for key, value in fields.items()} == {"endpoints": "10.0.0.1:80", "model": "m"}
