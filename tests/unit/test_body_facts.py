"""What the decision reads of a body."""

import json
from typing import Any

import pytest

from extproc.body import MOST_TOKENS, BodyFacts, read_json_body


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        # vLLM lets the newer name of a chat win.
        ({"max_tokens": 7, "max_completion_tokens": 5}, 5),
        # Responses have their own.
        ({"input": "x", "max_output_tokens": 9}, 9),
        # The engine says what is wrong with these.
        *(({"max_tokens": each}, None) for each in (0, -1, True, 1.5, "1.5", "-7", "x", "", [7], float("inf"), None)),
        # It takes these, and so must the reserve.
        *(({"max_tokens": each}, 7) for each in ("7", " 007 ", "7.0", 7.0)),
        # A client may write any number.
        *(({"max_tokens": each}, MOST_TOKENS) for each in (10**25, 10**400, 1e300, "9" * 5_000)),
    ],
)
def test_the_bound_on_the_answer(fields: dict[str, Any], bound: int | None) -> None:
    facts = read_json_body(json.dumps(fields).encode())
    assert isinstance(facts, BodyFacts)
    assert facts.max_tokens == bound


def test_a_text_of_zeros_costs_no_more_than_its_length() -> None:
    # 1 MiB took hours when zeros could be divided among two parts of the pattern.
    for text in ("0" * (1 << 20) + "x", "1" + "0" * (1 << 20) + "x", "1." + "0" * (1 << 20) + "x"):
        facts = read_json_body(json.dumps({"max_tokens": text}).encode())
        assert isinstance(facts, BodyFacts)
        assert facts.max_tokens is None
