"""docs/policies.md describes every field of a policy, and what it says of it is so."""

import re
from pathlib import Path

import pytest
import yaml

from recursant.agents.policy import AgentPolicy

DOCUMENT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
ROW = re.compile(
    r"^\| `(?P<field>\w+)` \| (?P<default>.+?) \| `(?P<example>.+?)` \| (?P<formula>.+?) \| (?P<seen>.+) \|$"
)
ROWS = {match["field"]: match for line in DOCUMENT.splitlines() if (match := ROW.match(line))}
FIELDS = {field.alias or name: field for name, field in AgentPolicy.model_fields.items()}


def test_every_field_has_its_row_and_no_other() -> None:
    assert ROWS.keys() == FIELDS.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_default_and_example(name: str) -> None:
    row, field = ROWS[name], FIELDS[name]
    if field.is_required():
        assert row["default"] == "required"
    elif field.default is None:
        assert row["default"] == "none"
    else:
        default = field.default
        assert yaml.safe_load(row["default"].strip("`")) == (list(default) if isinstance(default, tuple) else default)
    example = yaml.safe_load(row["example"])
    policy = AgentPolicy.model_validate({"agent_id": "a", name: example})
    shown = policy.model_dump(by_alias=True, mode="json")[name]
    assert shown == example


def test_every_field_is_explained_below_the_table() -> None:
    headings = [line for line in DOCUMENT.splitlines() if line.startswith("### ")]
    named = [name for line in headings for name in re.findall(r"`(\w+)`", line)]
    assert sorted([*named, "agent_id", "inspect_body"]) == sorted(FIELDS)


def test_the_policy_shown_is_one() -> None:
    block = re.search(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    assert block is not None
    AgentPolicy.model_validate(yaml.safe_load(block[1]))
