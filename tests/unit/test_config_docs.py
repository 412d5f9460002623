"""docs/configuration.md describes every key there is, and nothing else, and what it says is so."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from recursant.agents.policy import AgentPolicy
from recursant.config.allowed import allowed_in
from recursant.config.load import ConfigError, parse_config
from recursant.config.model import Config, FamilyPattern, PathEntry, StaticModel, StaticWorker

DOCUMENT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
ROW = re.compile(
    r"^\| `(?P<key>[^`]+)` \| (?P<default>.*?) \| (?P<allowed>.*?) \| (?P<unit>.*?) \| `(?P<example>.*?)` \|"
)
# Lists whose entries have keys of their own, with what an entry needs besides the key that is looked at.
ENTRIES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "agents[]": (AgentPolicy, {"agent_id": "a"}),
    "workers[]": (StaticWorker, {"host": "n"}),
    "workers[].models[]": (StaticModel, {"name": "m"}),
    "paths[]": (PathEntry, {"path": "/x", "agent_id": "chat-web"}),
    "families[]": (FamilyPattern, {"pattern": "x", "family": "f"}),
}
UNITS = {"_ms": "ms", "_s": "s", "_bytes": "bytes", "_mb": "MiB", "_mb_s": "MiB/s", "_tokens": "tokens"}


class Key(NamedTuple):
    """A key of the configuration, and the field behind it."""

    path: str
    field: FieldInfo


def keys() -> Iterator[Key]:
    """Every key that takes a value, by its path in the document."""
    yield from _below(Config, "")
    for prefix, (model, _) in ENTRIES.items():
        yield from _below(model, f"{prefix}.")


def _below(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        path = prefix + (field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _below(field.annotation, f"{path}.")
        elif f"{path}[]" not in ENTRIES or prefix:
            yield Key(path, field)


KEYS = {key.path: key.field for key in keys()}
ROWS = {match["key"]: match for line in DOCUMENT.splitlines() if (match := ROW.match(line))}


def location(path: str) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    for part in path.split("."):
        parts.append(part.removesuffix("[]"))
        if part.endswith("[]"):
            parts.append(0)
    return tuple(parts)


def test_every_key_is_described_and_no_other() -> None:
    assert sorted(ROWS) == sorted(KEYS)
    # The lists that have no row of their own have a section.
    assert {name.removesuffix("[]") for name in ENTRIES} - set(KEYS) == {"agents", "workers", "paths", "families"}


@pytest.mark.parametrize("path", KEYS)
def test_what_is_said_of_a_key_is_so(path: str) -> None:
    row, field = ROWS[path], KEYS[path]
    if field.is_required():
        assert row["default"] == "required"
    elif field.default is None:
        assert row["default"] == "none"
    else:
        assert yaml.safe_load(row["default"].strip("`")) == _plain(field.default)
    assert row["allowed"] == allowed_in(Config).text(location(path))
    unit = next((unit for suffix, unit in sorted(UNITS.items(), key=_longest) if path.endswith(suffix)), None)
    if unit is not None:
        assert row["unit"] == unit


def _longest(item: tuple[str, str]) -> int:
    return -len(item[0])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("path", KEYS)
def test_the_example_of_a_key_can_be_used(path: str) -> None:
    value = yaml.safe_load(ROWS[path]["example"])
    *sections, name = path.split(".")
    data: dict[str, Any] = {name: value}
    for depth in range(len(sections), 0, -1):
        prefix = ".".join(sections[:depth])
        if prefix in ENTRIES:
            data = {sections[depth - 1].removesuffix("[]"): [ENTRIES[prefix][1] | data]}
        else:
            data = {sections[depth - 1]: data}
    if "paths" in data:
        data["agents"] = [{"agent_id": "chat-web"}]
    text = yaml.safe_dump(data)
    try:
        parse_config(text, "example")
    except ConfigError as error:
        pytest.fail(f"{error}\n{text}")


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL))
def test_the_pieces_of_yaml_can_be_used(block: str) -> None:
    agents = "" if "agent_id: voice" in block else "\nagents: [{agent_id: chat-web}, {agent_id: batch-summary}]\n"
    parse_config(block + agents, "example")


def test_the_default_paths_are_the_documented_ones() -> None:
    (block,) = [block for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL) if block.startswith("paths")]
    agents = "agents: [{agent_id: chat-web}, {agent_id: batch-summary}]\n"
    assert parse_config(block + agents, "f").config.path_entries == parse_config(agents, "f").config.path_entries


def test_no_key_hides_its_type_from_these_tests() -> None:
    # A list of sections that ENTRIES does not know would go unseen.
    for path, field in KEYS.items():
        models = [arg for arg in get_args(field.annotation) if isinstance(arg, type) and issubclass(arg, BaseModel)]
        assert not models or f"{path}[]" in ENTRIES, path
