"""What a worker's answer to a probe says (SPEC F2). Pure.

A port that answers proves little: a probe makes the worker generate. What an arbitrary model answers cannot be known
beforehand, but at temperature 0 the same process must answer the same prompt in the same words every time. It may have
no words: a model can end at once. That it ran is then told by the tokens that it counted.
"""

import json
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final

from recursant.config.model import Probes
from recursant.fleet.engine_errors import classify

# What vLLM gives as `finish_reason` where the engine did not end the generation as it should.
_BROKEN_OFF: Final = frozenset({"abort", "error"})


class Outcome(Enum):
    """How a probe went."""

    PASSED = auto()
    FAILED = auto()
    # The worker cannot be probed like this (no such API, an embedding model), or has no room now.
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class _Completion:
    """What a completion says of itself.

    Attributes:
        text: what was generated.
        finish_reason: why it ended; empty where it does not say.
        tokens: how many were generated; 0 where it does not say.
    """

    text: str
    finish_reason: str
    tokens: int


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
    found = _completion(body)
    if found is None:
        return ProbeResult(Outcome.FAILED, "its answer is no completion")
    if found.finish_reason in _BROKEN_OFF:
        return ProbeResult(Outcome.FAILED, f"it breaks off: {found.finish_reason}")
    if not (found.text or (found.finish_reason and found.tokens > 0)):
        return ProbeResult(Outcome.FAILED, "it generates nothing")
    if known is not None and found.text != known:
        # The prompt is ours, so its answer may be shown.
        return ProbeResult(Outcome.FAILED, f"it answers {found.text[:60]!r}, and {known[:60]!r} before")
    return ProbeResult(Outcome.PASSED, found.text)


def _completion(body: bytes) -> _Completion | None:
    try:
        answer = json.loads(body)
        choice = answer["choices"][0]
        text, reason = choice["text"], choice.get("finish_reason")
        usage = answer.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(text, str):
        return None
    return _Completion(text, reason if isinstance(reason, str) else "", tokens if isinstance(tokens, int) else 0)
