"""Workers of the control API as rows of a table."""

from collections.abc import Mapping
from typing import Any, Final

COLUMNS: Final = (
    "worker",
    "status",
    "endpoint",
    "models",
    "running",
    "waiting",
    "tokens/s",
    "kv used",
    "free MiB",
    "last beat",
)
# What a worker cannot know is not zero.
UNKNOWN: Final = "-"


def worker_row(worker: Mapping[str, Any]) -> tuple[str, ...]:
    """One worker of `GET /v1/workers`, in the order of `COLUMNS`."""
    load = worker["load"] or {}
    usage = load.get("kv_cache_usage")
    rate = load.get("token_rate")
    age = worker["last_beat_age_s"]
    notes = "".join(f", {note}" for note in ("static", "exclusive") if worker[note])
    return (
        worker["id"],
        f"{worker['status']}{_isolation(worker.get('isolation'))}{notes}",
        worker["endpoint"] or UNKNOWN,
        ", ".join(model["name"] for model in worker["models"]) or UNKNOWN,
        _count(load.get("running_requests")),
        _count(load.get("waiting_requests")),
        UNKNOWN if rate is None else f"{rate:.0f}",
        UNKNOWN if usage is None else f"{usage:.0%}",
        _count(load.get("free_vram_mb")),
        UNKNOWN if age is None else f"{age:.1f} s ago",
    )


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _isolation(isolation: Mapping[str, Any] | None) -> str:
    """Why it is out and for how long yet, or that it is on trial, or should be out."""
    if isolation is None:
        return ""
    said = f"{isolation['reason']}: {isolation['text']}" if isolation["text"] else isolation["reason"]
    if isolation["phase"] == "trial":
        return f" (on trial after {isolation['reason']})"
    if isolation["phase"] == "draining":
        return f" ({isolation['text']})" if isolation["text"] else ""
    if isolation["phase"] == "spared":
        return f" (ALARM, too many are isolated: {said})"
    return f" ({said}, {isolation['left_s']:.0f} s left)"
