"""What a worker's answer to a probe says (SPEC F2). Pure.

A port that answers proves little: a probe makes the worker generate. What an arbitrary model answers cannot be known
beforehand, but at temperature 0 the same process must answer the same prompt in the same words every time.
"""

import json
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

from recursant.config.model import Probes
from recursant.fleet.engine_errors import classify


class Outcome(Enum):
    """How a probe went."""

    PASSED = auto()
    FAILED = auto()
    # The worker cannot be probed like this (no such API, an embedding model), or has no room now.
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How a probe went, and what was said.

    Attributes:
        outcome: whether the worker works.
        text: what it generated, if it passed; else what is wrong.
    """

    outcome: Outcome
    text: str


def probe_body(rules: Probes, model: str) -> dict[str, Any]:
    """The body of a probe, for `/v1/completions`."""
    return {
        "model": model,
        "prompt": rules.prompt,
        "max_tokens": rules.max_tokens,
        "temperature": 0,
        "stream": False,
    }


def read_answer(status: int, body: bytes, known: str | None) -> ProbeResult:
    """Judge an answer.

    Args:
        status: of the answer.
        body: of the answer.
        known: what the same process answered before; None where that is not known, or is not to be compared.
    """
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        evidence, said = classify(status, body)
        return ProbeResult(Outcome.UNKNOWN if evidence is None else Outcome.FAILED, f"it answers {status}: {said}")
    if status != HTTPStatus.OK:
        return ProbeResult(Outcome.UNKNOWN, f"it answers {status}")
    text = _text(body)
    if text is None:
        return ProbeResult(Outcome.FAILED, "its answer is no completion")
    if not text.strip():
        return ProbeResult(Outcome.FAILED, "it generates nothing")
    if known is not None and text != known:
        # The prompt is ours, so its answer may be shown.
        return ProbeResult(Outcome.FAILED, f"it answers {text[:60]!r}, and {known[:60]!r} before")
    return ProbeResult(Outcome.PASSED, text)


def _text(body: bytes) -> str | None:
    try:
        choices = json.loads(body)["choices"]
        text = choices[0]["text"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
    return text if isinstance(text, str) else None
