"""From a document's plain values to a `Config`, or to everything that is wrong with them."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from recursant.agents.policy import AgentPolicy
from recursant.config import checks
from recursant.config.allowed import allowed_in
from recursant.config.model import MODEL_DETAILS, MODEL_NAME, Config
from recursant.config.problem import Finding, Location, mask_credentials, shown

# Parts of pydantic's locations that name a choice of ours, not a key of the document.
_TAGS: Final = (MODEL_NAME, MODEL_DETAILS)
# Of an unknown key, as much as is compared with the known ones.
_KEY_LENGTH: Final = 64
_ModelT = TypeVar("_ModelT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Validated:
    """What came of a document.

    Attributes:
        config: None where there are errors.
        errors: what makes it unusable.
        warnings: what is doubtful.
    """

    config: Config | None
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]


def validate(data: Any) -> Validated:
    """Validate a whole configuration, or a single agent (a mapping with `agent_id` and no `agents`)."""
    if isinstance(data, dict) and "agent_id" in data and "agents" not in data:
        return _single_agent(data)
    if isinstance(data, dict):
        # "workers:" with nothing below is what remains when all entries are commented out.
        data = {key: value for key, value in data.items() if value is not None or key not in Config.model_fields}
    config, errors = _build(Config, {} if data is None else data)
    plain = data if isinstance(data, dict) else {}
    errors += checks.errors(plain)
    return Validated(None if errors else config, tuple(errors), tuple(checks.warnings(plain)))


def _single_agent(data: dict[str, Any]) -> Validated:
    policy, errors = _build(AgentPolicy, data)
    return Validated(None if policy is None else Config(agents=(policy,)), tuple(errors), ())


def _build(model: type[_ModelT], data: Any) -> tuple[_ModelT | None, list[Finding]]:
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        return None, list(_findings(model, data, error))


def _findings(model: type[BaseModel], data: Any, error: ValidationError) -> Iterator[Finding]:
    allowed = allowed_in(model)
    for each in error.errors(include_url=False):
        location = _location(data, each["loc"])
        if each["type"] == "extra_forbidden":
            keys = allowed.keys(location[:-1])
            # Without its value: under a key that we do not know there may be a password.
            yield Finding(location, f"unknown key{_did_you_mean(location[-1], keys)}", None, ", ".join(keys))
        elif each["type"] == "missing":
            yield Finding(location, "missing", None, allowed.text(location))
        else:
            words = allowed.text(location)
            yield Finding(location, _message(each, words), _shown_at(data, location), words)


def _message(error: ErrorDetails, allowed: str | None) -> str:
    kind = error["type"]
    if kind == "value_error":
        message = str(error["ctx"]["error"])
        return "not allowed" if allowed is not None and allowed in message else message
    if kind.startswith(("greater_than", "less_than")):
        return "out of range"
    if kind.endswith("_type") or kind.startswith("int_from"):
        return "wrong type"
    return "not allowed"


def _did_you_mean(key: str | int, known: tuple[str, ...]) -> str:
    spelt = str(key)[:_KEY_LENGTH].lower().replace("-", "_")
    close = difflib.get_close_matches(spelt, known, n=1)
    return f", did you mean {close[0]}?" if close else ""


def _location(data: Any, parts: tuple[int | str, ...]) -> Location:
    """Where pydantic's location points in the document: without the names of choices."""
    location: list[str | int] = []
    for part in parts:
        is_key = isinstance(data, dict) and part in data
        if part in _TAGS and not is_key:
            continue
        location.append(part)
        is_index = isinstance(data, list) and isinstance(part, int)
        data = data[part] if is_key or is_index else None
    return tuple(location)


def _shown_at(data: Any, location: Location) -> str | None:
    for part in location:
        try:
            data = data[part]
        except (LookupError, TypeError):
            # A key of the document is spelt like the name of a choice, and led astray.
            return None
    if location == ("api", "token"):
        return "***"
    if location[:1] == ("redis",) and isinstance(data, str):
        # Whatever is wrong with it, what stands before an "@" is secret.
        masked = mask_credentials(data)
        return shown(masked if "://" in masked else f"***@{data.rpartition('@')[2]}" if "@" in data else data)
    return shown(data)
