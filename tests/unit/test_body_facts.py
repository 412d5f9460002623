"""What the decision reads of a body."""

import json
from typing import Any

import pytest

from extproc.body import BodyFacts, read_json_body


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
        *(({"max_tokens": each}, None) for each in (0, -1, True, 1.5, "7", None)),
    ],
)
def test_the_bound_on_the_answer(fields: dict[str, Any], bound: int | None) -> None:
    facts = read_json_body(json.dumps(fields).encode())
    assert isinstance(facts, BodyFacts)
    assert facts.max_tokens == bound
