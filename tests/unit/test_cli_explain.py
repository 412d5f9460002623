"""How explanations and decisions look to people."""

from typing import Any

import pytest

from recursant.cli.decision_rows import COLUMNS, decision_row, plain_line
from recursant.cli.explain_view import number, outcome_line, request_lines, show_explanation

CHECK = {"filter": "vram", "passed": False, "have": 3_199.0, "bound": ">=", "limit": 3_200.0}
SLOTS = {"filter": "slots", "passed": True, "have": 2.0, "bound": "<", "limit": None}
WORKER: dict[str, Any] = {
    "worker_id": "gpu[1]",
    "model": "m",
    "load": 2.0,
    "checks": [CHECK, SLOTS],
    "removed_by": "vram",
    "terms": {"token_rate": 1.0, "queue": 0.5, "total": 0.8},
    "expected_wait_ms": None,
    "rank": None,
}
REFUSED = {"kind": "refused", "status": 503, "code": "no_vram", "message": "no worker has the vram"}
DOCUMENT: dict[str, Any] = {
    "request": None,
    "outcome": REFUSED,
    "waiting": {"low": 3, "high": 0},
    "workers": [WORKER],
    "others": [{"worker_id": "gpu-2", "reason": "isolated"}, {"worker_id": "gpu-3", "reason": "model"}],
}


def test_the_fleet_is_a_table_with_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    show_explanation(DOCUMENT)
    said, waiting, header, first, *others = capsys.readouterr().out.splitlines()
    assert said == "→ 503 no_vram: no worker has the vram"
    assert waiting.startswith("3 requests wait already")
    assert "free vram ≥ 3,200 MiB" in header
    assert " ".join(first.split()) == "- gpu[1] 2 ✗ 3,199 ✓ 2 < ? 1.000 0.500 0.8000 ? removed by vram"
    assert [" ".join(line.split()) for line in others] == ["- gpu-2 isolated", "- gpu-3 serves other models"]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ({"kind": "placed", "workers": ["a", "b"], "fallback": None}, "a[/], then b"),
        ({"kind": "placed", "workers": ["a"], "fallback": "sla"}, "by fallback sla"),
        ({"kind": "held", "for_ms": 600, "fallback": "queue_and_retry"}, "at most 600 ms"),
    ],
)
def test_the_outcome_in_a_line(outcome: dict[str, Any], said: str) -> None:
    assert said in outcome_line(outcome)


def test_a_body_that_is_not_read_and_clamped_fields_are_said() -> None:
    request = {"agent": "a", "known_agent": True, "class": "low", "priority": 1, "clamped": ["priority"]}
    lines = request_lines(request | {"fallback_strategy": "drop", "body_read": False})
    assert "clamped to its policy: priority" in lines[0]
    assert "body is not read" in lines[-1]


@pytest.mark.parametrize(("value", "text"), [(None, "?"), (0.0, "0"), (12_345.0, "12,345"), (0.25, "0.2")])
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_decision_is_a_row_and_a_line() -> None:
    decision = {
        "time": 1_700_000_000.25,
        "request_id": "r",
        "agent": "a",
        "class": "low",
        "kept_because": "fallback",
        "pick": ["w1", "w2"],
        "worker": "w2",
        "fallback": "sla",
        "outcome": "ok",
        "status": 200,
        "refusal": None,
        "held_ms": None,
        "decision_us": 99.6,
        "removed": {"vram": {"count": 2, "workers": ["w3", "w4"]}},
        "scores": [{"worker": "w1", "total": 0.75}],
    }
    row = dict(zip(COLUMNS, decision_row(decision), strict=True))
    assert (row["picked"], row["served by"], row["outcome"]) == ("w1,w2", "w2", "ok (200)")
    assert (row["held ms"], row["µs"], row["removed"], row["score"]) == ("-", "100", "vram: 2", "0.750")
    assert "served_by=w2 fallback=sla outcome=ok (200)" in plain_line(decision)
