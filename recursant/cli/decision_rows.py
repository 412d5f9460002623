"""Decisions of the control API as rows of a table and as lines."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

COLUMNS: Final = (
    "time",
    "request",
    "agent",
    "class",
    "kept",
    "picked",
    "served by",
    "fallback",
    "outcome",
    "held ms",
    "µs",
    "removed",
    "score",
)
_NONE: Final = "-"


def decision_row(decision: Mapping[str, Any]) -> tuple[str, ...]:
    """One decision, in the order of `COLUMNS`."""
    status = decision["refusal"] or decision["status"]
    outcome = decision["outcome"] if status is None else f"{decision['outcome']} ({status})"
    removed = ", ".join(f"{name}: {found['count']}" for name, found in decision["removed"].items())
    scores = decision["scores"]
    return (
        datetime.fromtimestamp(decision["time"]).astimezone().strftime("%H:%M:%S.%f")[:-3],
        decision["request_id"] or _NONE,
        decision["agent"],
        decision["class"] or _NONE,
        decision["kept_because"],
        ",".join(decision["pick"]) or _NONE,
        decision["worker"] or _NONE,
        decision["fallback"] or _NONE,
        outcome,
        _number(decision["held_ms"]),
        _number(decision["decision_us"]),
        removed or _NONE,
        f"{scores[0]['total']:.3f}" if scores else _NONE,
    )


def plain_line(decision: Mapping[str, Any]) -> str:
    """One decision as a line that can be written before the next one is known."""
    row = decision_row(decision)
    return " ".join(
        [row[0], *(f"{name.replace(' ', '_')}={value}" for name, value in zip(COLUMNS[1:], row[1:], strict=True))]
    )


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.0f}"
