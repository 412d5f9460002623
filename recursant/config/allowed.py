"""What a place in the configuration allows, in words, read from the models' own JSON schema."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import BaseModel

from recursant.config.problem import Location

Schema = dict[str, Any]


class Allowed:
    """Answers what may stand where in a model.

    Args:
        model: the model of the whole document.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self._root: Schema = model.model_json_schema()

    def text(self, location: Location) -> str | None:
        """What is allowed there: `a whole number from 0 to 1000`; None where nothing is said."""
        choices = [text for schema in self._schemas(location) if (text := _words(schema))]
        return " or ".join(dict.fromkeys(choices)) or None

    def keys(self, location: Location) -> tuple[str, ...]:
        """The keys of the mapping there, sorted; empty where none is wanted."""
        return tuple(sorted({key for schema in self._schemas(location) for key in schema.get("properties", ())}))

    def _schemas(self, location: Location) -> Iterable[Schema]:
        found = list(self._alternatives(self._root))
        for part in location:
            below = [_below(schema, part) for schema in found]
            found = [each for schema in below if schema is not None for each in self._alternatives(schema)]
        return found

    def _alternatives(self, schema: Schema) -> Iterable[Schema]:
        """The schema without references and choices; what is said beside a choice holds for it."""
        if "allowed" in schema:
            yield schema
            return
        if "$ref" in schema:
            yield from self._alternatives(self._root["$defs"][schema["$ref"].rsplit("/", 1)[1]])
            return
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices is None:
            yield schema
            return
        for choice in choices:
            # Where null is allowed, it means the same as leaving the key out: not worth a word.
            if choice.get("type") != "null":
                yield from self._alternatives(choice)


@cache
def allowed_in(model: type[BaseModel]) -> Allowed:
    """The answers for a model, built once."""
    return Allowed(model)


def _below(schema: Schema, part: str | int) -> Schema | None:
    below: Schema | None = schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(part)
    return below


def _words(schema: Schema) -> str | None:
    allowed = schema.get("allowed")
    if isinstance(allowed, str):
        return allowed
    choices = allowed or schema.get("enum")
    if choices is None and "const" in schema:
        choices = [schema["const"]]
    if choices:
        return ", ".join(map(str, choices))
    match schema.get("type"):
        case "integer":
            return f"a whole number{_range(schema)}"
        case "number":
            return f"a number{_range(schema)}"
        case "string":
            return f"text{_length(schema)}"
        case "boolean":
            return "true or false"
        case "array":
            return "a list"
        case "object":
            return "a mapping"
    return None


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    return f" of at least {low}" if low is not None else ""


def _length(schema: Schema) -> str:
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    return f" of {low} to {high} characters" if high is not None else ""
