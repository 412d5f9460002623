"""Numbers and truth values of a request body, as vLLM reads them: by the rules of pydantic, which take much for one."""

import re
from collections.abc import Mapping
from typing import Any, Final

from recursant.sim.errors import ApiError, invalid_body

_INT64: Final = 1 << 63
# Underscores between digits, and a fraction of zeros.
_NUMBER: Final = re.compile(r"\s*([+-]?[0-9]+(?:_[0-9]+)*)(?:\.0+)?\s*", re.ASCII)
_LONGEST_NUMBER: Final = 64
_WORDS: Final = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}


def flag(body: Mapping[str, Any], name: str) -> bool:
    """A truth value; False where there is none.

    Raises:
        ApiError: it is something else.
    """
    value = body.get(name)
    if value is None:
        return False
    if isinstance(value, str):
        value = _WORDS.get(value.lower())
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    raise wrong_type(name, "boolean")


def integer(body: Mapping[str, Any], name: str) -> int | None:
    """A whole number of 64 bits; None where there is none.

    Raises:
        ApiError: it is something else.
    """
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value) if len(value) <= _LONGEST_NUMBER else None
        value = int(found[1]) if found is not None else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not -_INT64 <= value < _INT64:
        raise wrong_type(name, "integer")
    return int(value)


def wrong_type(name: str, kind: str) -> ApiError:
    """The error for a field of the wrong type."""
    return invalid_body(
        f"{{'loc': ('body', '{name}'), 'msg': 'Input should be a valid {kind}'}}",
        f"body.{name}",
    )
