"""The table of docs/http2.md names every conformance test, and no test that does not exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
DOCS = TESTS.parent.parent / "docs" / "http2.md"


def test_the_documented_tests_are_the_tests() -> None:
    documented = set(re.findall(r"`(test_\w+)`", DOCS.read_text()))
    existing = set()
    for file in TESTS.glob("test_http2_*.py"):
        existing |= set(re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE))
    assert documented - existing == set()
    assert {name for name in existing if re.match(r"test_s\d", name)} - documented == set()
