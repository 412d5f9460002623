"""Nothing that lives as long as its process grows without end."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_kit import PHI, QWEN, record, table_of

ROOT = Path(__file__).parents[2]
SOURCES = [path for package in ("recursant", "extproc", "xds_server") for path in (ROOT / package).rglob("*.py")]
# Their arguments are few by nature: the types of the configuration, the scripts that are shipped.
FEW_ARGUMENTS = {"recursant/config/allowed.py", "xds_server/resources/filters.py"}


def unbounded_caches(tree: ast.AST) -> Iterator[int]:
    """The lines that make a cache without a bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from (
                node.lineno for each in node.decorator_list if ast.unparse(each) in ("cache", "functools.cache")
            )
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("lru_cache", "functools.lru_cache"):
            bounds = [each.value for each in node.keywords if each.arg == "maxsize"] + node.args[:1]
            if any(isinstance(bound, ast.Constant) and bound.value is None for bound in bounds):
                yield node.lineno
        if isinstance(node, ast.Call) and ast.unparse(node) in ("asyncio.Queue()", "queue.Queue()"):
            yield node.lineno


def test_no_cache_grows_without_end() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if str(path.relative_to(ROOT)) not in FEW_ARGUMENTS
        for line in unbounded_caches(ast.parse(path.read_text()))
    }
    assert found == set()


@pytest.mark.parametrize(
    "source",
    [
        "@cache\ndef f(): ...",
        "@functools.cache\ndef f(): ...",
        "g = lru_cache(maxsize=None)(f)",
        "@lru_cache(None)\ndef f(): ...",
        "q = asyncio.Queue()",
    ],
)
def test_what_has_no_bound_is_found(source: str) -> None:
    assert list(unbounded_caches(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["@lru_cache(maxsize=8)\ndef f(): ...", "q = asyncio.Queue(9)", "@lru_cache\ndef f(): ..."]
)
def test_what_has_a_bound_is_let_through(source: str) -> None:
    assert not list(unbounded_caches(ast.parse(source)))


def test_candidate_sets_are_bounded() -> None:
    # A client that may name any family can name as many as it likes.
    table = table_of(record("w1"), record("w2", models=[PHI]))
    for number in range(3_000):
        assert table.candidates(family=f"family-{number}").rows.size == 0
    assert len(table._sets) <= 1_024
    assert table.candidates(family="qwen").models == (QWEN.name,)
    assert table.candidates(family="phi").models == (PHI.name,)
