"""Errors in the shape that OpenAI's clients read."""

import json

import pytest

from recursant import problems
from recursant.problems import ApiProblem


def test_the_body_is_openais() -> None:
    problem = ApiProblem(400, 'quotes " and\nbreaks and ü', "invalid_request_error", "x-agent-meta", "invalid_request")
    assert json.loads(problem.body()) == {
        "error": {
            "message": 'quotes " and\nbreaks and ü',
            "type": "invalid_request_error",
            "param": "x-agent-meta",
            "code": "invalid_request",
        }
    }
    # OpenAI's clients expect all four keys.
    assert json.loads(ApiProblem(500, "m", "t").body())["error"] == {
        "message": "m",
        "type": "t",
        "param": None,
        "code": None,
    }


@pytest.mark.parametrize("status", [429, 503])
def test_who_may_come_again_is_told_when(status: int) -> None:
    assert ApiProblem(status, "m", "t").retry_after_s == 1
    assert ApiProblem(status, "m", "t", retry_after_s=10).retry_after_s == 10


@pytest.mark.parametrize("status", [400, 403, 404, 413, 500, 504])
def test_others_are_not(status: int) -> None:
    assert ApiProblem(status, "m", "t").retry_after_s is None


@pytest.mark.parametrize(
    ("problem", "status", "type_", "param", "code"),
    [
        (problems.bad_request("m", param="p"), 400, "invalid_request_error", "p", "invalid_request"),
        (problems.forbidden("m"), 403, "permission_error", None, "agent_not_allowed"),
        (problems.model_not_found("qwen"), 404, "not_found_error", "model", "model_not_found"),
        (problems.too_large(11, 10), 413, "invalid_request_error", "body", "request_too_large"),
        (problems.unavailable("m"), 503, "service_unavailable_error", None, "unavailable"),
    ],
)
def test_the_common_ones(problem: ApiProblem, status: int, type_: str, param: str | None, code: str) -> None:
    assert (problem.status, problem.type, problem.param, problem.code) == (status, type_, param, code)


def test_a_model_of_any_length_gives_a_short_message() -> None:
    assert len(problems.model_not_found("x" * 100_000).body()) < 1_000


def test_problems_are_values() -> None:
    assert ApiProblem(400, "m", "t") == ApiProblem(400, "m", "t")
    with pytest.raises(AttributeError):
        ApiProblem(400, "m", "t").status = 500  # type: ignore[misc]
