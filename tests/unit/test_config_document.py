"""YAML to plain values with lines: what is read, what is refused, what is bounded."""

from typing import Any

import pytest

from recursant.config.document import MAX_DEPTH, DocumentError, read_document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("1_000", 1_000),
        ("0x1f", 31),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1.0e+3", 1000.0),
        ("yes", True),
        ("false", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("!!int '12'", 12),
        # YAML 1.1 would make 8, 90 and a date of these.
        ("010", "010"),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("'='", "="),
        ("=", "="),
    ],
)
def test_reads_scalars(text: str, value: Any) -> None:
    assert read_document(f"k: {text}").data == {"k": value}


def test_remembers_the_line_of_keys_and_entries() -> None:
    document = read_document("a:\n  b:\n\n    1\nc:\n- x\n- {d: 1,\n   e: 2}\n")
    assert document.data == {"a": {"b": 1}, "c": ["x", {"d": 1, "e": 2}]}
    assert document.line_of(("a", "b")) == 2
    assert document.line_of(("c", 0)) == 6
    assert document.line_of(("c", 1)) == 7
    assert document.line_of(("c", 1, "e")) == 8
    # What is missing is where it should be.
    assert document.line_of(("c", 1, "nothing", 3)) == 7


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "null\n"])
def test_nothing_is_a_document_without_a_value(text: str) -> None:
    assert read_document(text).data is None


def test_a_repeated_key_is_found_with_both_lines() -> None:
    document = read_document("a: 1\nb: 2\na: 3\n")
    assert document.data == {"a": 1, "b": 2}
    (finding,) = document.findings
    assert (finding.location, finding.line) == (("a",), 3)
    assert finding.message == "duplicate key, first given on line 1"


def test_merge_keys_fill_in_what_is_not_given() -> None:
    text = "base: &base {x: 1, y: 2}\nmid: &mid {<<: *base, y: 3}\nend: {z: 4, <<: [*mid, {w: 5, x: 6}]}\n"
    document = read_document(text)
    assert document.data["end"] == {"x": 1, "y": 3, "z": 4, "w": 5}
    assert document.findings == []
    # An error in a merged value is corrected where the value is written.
    assert document.line_of(("end", "x")) == 1


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("ok: 1\n3: x\n", "a key must be text; quote it", 2),
        ("? [a, b]\n: x\n", "a key must be text; quote it", 1),
        ("on: x\n", "a key must be text; quote it", 1),
        ("a: 1\nb: {<<: 7}\n", "<< takes a mapping, or a list of mappings", 2),
        ("a: !!python/object/apply:os.system [ls]\n", "YAML tags are not supported", 1),
        ("a: !mine x\n", "YAML tags are not supported", 1),
        ("a: !!binary aGk=\n", "YAML tags are not supported", 1),
        ("a: !!set {x}\n", "YAML tags are not supported", 1),
        ("a: !!int x\n", "not a value of its YAML type", 1),
        ("a: !!int ''\n", "not a value of its YAML type", 1),
        ("a: !!bool perhaps\n", "not a value of its YAML type", 1),
        ("a: " + "9" * 5_000, "not a value of its YAML type", 1),
    ],
)
def test_what_is_none_of_ours_is_found(text: str, message: str, line: int) -> None:
    document = read_document(text)
    (finding,) = document.findings
    assert finding.message.startswith(message)
    assert (finding.line or document.line_of(finding.location)) == line


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: 1\n\tb: 2\n", "a tab where YAML wants spaces", 2),
        ("a: b: c\n", "mapping values are not allowed here", 1),
        ("a: 1\nb: {x: 1\n\nc: 2\n", "begun on line 2", 4),
        ("a: *nope\n", "undefined alias 'nope'", 1),
        ("a: 1\n---\nb: 2\n", "expected a single document", 2),
        ("a: 1\nb: \x01\n", "U+0001 is not allowed", 2),
        ("a: 1\nb: &b [*b]\n", f"more than {MAX_DEPTH} levels", 2),
        ("a: " + "[" * 100_000, f"more than {MAX_DEPTH} levels", 1),
        ("a: " + "{a: " * 100_000, f"more than {MAX_DEPTH} levels", 1),
        ("a: &a {<<: *a}\n", f"more than {MAX_DEPTH} levels", 1),
    ],
)
def test_what_is_not_yaml_is_refused_with_its_line(text: str, message: str, line: int) -> None:
    with pytest.raises(DocumentError, match=message.replace("+", r"\+")) as caught:
        read_document(text)
    assert caught.value.line == line
    assert "\n" not in str(caught.value)


def _unfolding(entry: str, joint: str) -> str:
    """Each line holds the one before nine times."""
    lines = [f"k0: &k0 {entry}"]
    lines += [f"k{n}: &k{n} {joint % ', '.join([f'*k{n - 1}'] * 9)}" for n in range(1, 20)]
    return "\n".join(lines)


@pytest.mark.parametrize("text", [_unfolding("[x]", "[%s]"), _unfolding("{x: 1}", "{<<: [%s]}")])
def test_aliases_do_not_unfold_without_bound(text: str) -> None:
    with pytest.raises(DocumentError, match="once aliases are expanded"):
        read_document(text)


def test_errors_do_not_quote_the_text_around() -> None:
    with pytest.raises(DocumentError) as caught:
        read_document("redis: {url: 'redis://:hunter2@h'\nx: ]\n")
    assert "hunter2" not in str(caught.value)
