"""docs/pitfalls.md names tests that exist, for every pitfall of every kind."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DOCUMENT = (TESTS.parent / "docs" / "pitfalls.md").read_text()
ROW = re.compile(r"^\| (?P<kind>[^|]+) \| (?P<what>[^|]+) \| (?P<tests>`[^|]+`) \|$")
ROWS = [match for line in DOCUMENT.splitlines() if (match := ROW.match(line))]
# How many were collected of each kind.
COLLECTED = {"counting": 4, "old state": 5, "choosing": 3, "answers": 3, "xDS": 7}
_NAMED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def named(row: re.Match[str]) -> list[str]:
    return re.findall(r"`([^`]+)`", row["tests"])


def test_every_kind_is_whole() -> None:
    assert Counter(row["kind"] for row in ROWS) == COLLECTED


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"])
def test_its_tests_exist(row: re.Match[str]) -> None:
    assert named(row)
    for name in named(row):
        file, *places = name.split("::")
        body: list[ast.stmt] = ast.parse((TESTS / file).read_text()).body
        for place in places:
            (found,) = [node for node in body if isinstance(node, _NAMED) and node.name == place]
            body = found.body
        assert places[-1].startswith("test_"), name
