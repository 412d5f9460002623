"""What a request body tells: the model that it names. The body itself is never changed here."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final

from recursant import names
from recursant.problems import ApiProblem, bad_request
from recursant.routing.affinity_blocks import chained_blocks, prompt_bytes

# More than any context holds; a client may write any number, and sums of what is in flight must stay exact.
MOST_TOKENS: Final = 1_000_000_000
# A whole number above 0 as text, as pydantic reads it. No two parts can match one character: a text of zeros that is
# no number must not be tried in all its divisions.
_WHOLE: Final = re.compile(r"\s*\+?0*([1-9][0-9]*)(?:\.0*)?\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """What the decision needs of a JSON body.

    Attributes:
        model: the explicit model name; None for "auto", and where the body names none.
        max_tokens: the bound on the output that the client set, MOST_TOKENS at most.
        text: the prompt, or the last message: where the instruction stands.
        blocks: chained hashes of the prompt's blocks; empty where nobody asked for them.
    """

    model: str | None = None
    max_tokens: int | None = None
    text: str = ""
    blocks: tuple[int, ...] = ()


def read_json_body(body: bytes, prefix_seed: str | None = None) -> BodyFacts | ApiProblem:
    """Read a JSON request body, or say what is wrong with it.

    Args:
        body: the whole of it.
        prefix_seed: take the blocks of its prompt, chained to this; None: nobody asks for them.

    Python's own parser is what vLLM uses, so both sides accept the same bytes; of duplicate keys both take the last.
    """
    try:
        content = json.loads(body)
    except RecursionError:
        return bad_request("the request body is nested too deeply", param="body")
    except ValueError:
        return bad_request("the request body is not valid JSON", param="body")
    if not isinstance(content, dict):
        return bad_request("the request body must be a JSON object", param="body")
    model = content.get("model")
    if model is not None and not isinstance(model, str):
        return bad_request("model must be a string", param="model")
    limit = _bound(
        content.get("max_completion_tokens") or content.get("max_tokens") or content.get("max_output_tokens")
    )
    named = None if model in (None, "", names.AUTO_MODEL) else model
    # A cache belongs to a model: what another one has read is of no use.
    blocks = () if prefix_seed is None else chained_blocks(prompt_bytes(content), f"{prefix_seed}\0{named or ''}")
    return BodyFacts(named, limit, _instruction(content), blocks)


def _bound(value: Any) -> int | None:
    """A bound on the output as vLLM reads it, who takes whole numbers as text and with a point, too."""
    if isinstance(value, str):
        found = _WHOLE.fullmatch(value)
        # Python refuses to read thousands of digits.
        value = int(found[1][: len(str(MOST_TOKENS)) + 1]) if found else None
    elif isinstance(value, float):
        value = int(value) if math.isfinite(value) and value.is_integer() else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        return None
    return min(value, MOST_TOKENS)


def _instruction(content: dict[str, Any]) -> str:
    """The text that says what to do; "" where the shape is not one that we know."""
    prompt = content.get("prompt")
    if isinstance(prompt, str):
        return prompt
    messages = content.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    text = last.get("content") if isinstance(last, dict) else None
    if isinstance(text, list):
        parts = (part.get("text") for part in text if isinstance(part, dict))
        return " ".join(part for part in parts if isinstance(part, str))
    return text if isinstance(text, str) else ""


def is_json(content_type: bytes | None) -> bool:
    """Is a body of this content type JSON? A missing type counts as JSON (DESIGN §9)."""
    if not content_type:
        return True
    media_type = content_type.split(b";", 1)[0].strip().lower()
    return media_type == b"application/json" or media_type.endswith(b"+json")
