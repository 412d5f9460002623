"""YAML text to plain values that remember their lines.

PyYAML's safe loader composes the node tree; this module turns the tree into values itself, because the library's
constructor forgets lines, lets a repeated key win in silence and expands aliases without a bound. What YAML 1.1
reads into plain words and numbers (dates, octal `010`, base-60 `1:30`) stays text here, and is refused where a
number is wanted.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from recursant.config.problem import Finding, Location, shown

# A configuration with ten thousand static workers has about 0.6 MB and a hundred thousand values.
MAX_BYTES: Final = 4 * 1024 * 1024
# Values after the expansion of aliases, so that a small file cannot unfold into gigabytes.
MAX_VALUES: Final = 500_000
MAX_DEPTH: Final = 32

_STR: Final = "tag:yaml.org,2002:str"
_NULL: Final = "tag:yaml.org,2002:null"
_BOOL: Final = "tag:yaml.org,2002:bool"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
_MERGE: Final = "tag:yaml.org,2002:merge"
_MAP: Final = "tag:yaml.org,2002:map"
_SEQ: Final = "tag:yaml.org,2002:seq"


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document as plain values.

    Attributes:
        data: None, bool, int, float, str, list and dict with string keys.
        lines: 1-based line of the key, or of the list entry, that gives each value.
        findings: keys given twice, keys and tags that are none of ours.
    """

    data: Any
    lines: dict[Location, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def line_of(self, location: Location) -> int:
        """The line of the value there, or of the nearest value around it."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)


class DocumentError(Exception):
    """The text is not YAML as we accept it.

    Attributes:
        line: 1-based.
    """

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def read_document(text: str) -> Document:
    """Read one YAML document; an empty text is a document without a value.

    Raises:
        DocumentError: not YAML, too deep, too many values, an alias inside itself.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError(f"the character U+{ord(text[error.position]):04X} is not allowed in YAML", line) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_problem(error) from None
    document = Document(None)
    if node is None:
        return document
    return Document(_Builder(document).value(node, (), 0), document.lines, document.findings)


class _Loader(yaml.SafeLoader):
    """The safe loader with a bound on nesting: its composer calls itself once a level."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML's parser has no types
            raise yaml.composer.ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_FLOAT_PATTERN: Final = (
    r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?"
    r"|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
# A plain word is one of these, or text. Narrower than YAML 1.1, whose writers therefore quote all that we would read.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    (_BOOL, r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$", "yYnNtTfFoO"),
    (_INT, r"^(?:[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$", "-+0123456789"),
    (_FLOAT, _FLOAT_PATTERN, "-+0123456789."),
    (_NULL, r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    (_MERGE, r"^<<$", "<"),
):  # fmt: skip
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), ["" if each == "\0" else each for each in _first])


class _Builder:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._values = 0
        # PyYAML's own conversion of the scalars whose tag says bool, int or float.
        self._constructor = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, location: Location, depth: int) -> Any:
        """The node as a plain value; fills in lines and findings below it."""
        self._count(node, depth)
        self._document.lines.setdefault(location, _line(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            return self._mapping(node, location, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            return [self.value(each, (*location, index), depth + 1) for index, each in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, location)
        self._find(location, f"YAML tags are not supported: {node.tag}")
        return None

    def _scalar(self, node: yaml.ScalarNode, location: Location) -> Any:
        text: str = node.value
        if node.tag in (_STR, _MERGE):
            return text
        if node.tag == _NULL:
            return None
        convert = {
            _BOOL: self._constructor.construct_yaml_bool,
            _INT: self._constructor.construct_yaml_int,
            _FLOAT: self._constructor.construct_yaml_float,
        }.get(node.tag)
        if convert is None:
            self._find(location, f"YAML tags are not supported: {node.tag}")
            return None
        try:
            return convert(node)
        except (ValueError, KeyError, IndexError):
            # An explicit tag on text that is none, or a number that Python refuses to read for its length.
            self._find(location, "not a value of its YAML type", shown(text))
            return None

    def _mapping(self, node: yaml.MappingNode, location: Location, depth: int) -> dict[str, Any]:
        result = {}
        for name, (key, value) in self._entries(node, location).items():
            self._document.lines[(*location, name)] = _line(key)
            result[name] = self.value(value, (*location, name), depth + 1)
        return result

    def _entries(self, node: yaml.MappingNode, location: Location) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key and value nodes by key, merge keys followed; what is wrong with the mapping's own keys is noted."""
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            if not _is_text(key):
                text = shown(key.value) if isinstance(key, yaml.ScalarNode) else "a list or mapping"
                self._find(location, "a key must be text; quote it", text, line=_line(key))
            elif key.value in entries:
                message = f"duplicate key, first given on line {_line(entries[key.value][0])}"
                self._find((*location, key.value), message, line=_line(key))
            else:
                entries[key.value] = (key, value)
        self._merge(node, entries, location, 0)
        return entries

    def _merge(
        self,
        node: yaml.MappingNode,
        entries: dict[str, tuple[yaml.Node, yaml.Node]],
        location: Location,
        depth: int,
    ) -> None:
        """`<<: *base`: add the entries of `base`, and of its bases, that are not there yet."""
        for key, source in node.value:
            if key.tag != _MERGE:
                continue
            for base in source.value if isinstance(source, yaml.SequenceNode) else [source]:
                self._count(key, depth)
                if not isinstance(base, yaml.MappingNode):
                    self._find(location, "<< takes a mapping, or a list of mappings", line=_line(key))
                    continue
                for name, value in base.value:
                    if _is_text(name):
                        entries.setdefault(name.value, (name, value))
                self._merge(base, entries, location, depth + 1)

    def _count(self, node: yaml.Node, depth: int) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise DocumentError(f"more than {MAX_VALUES} values once aliases are expanded", _line(node))
        if depth > MAX_DEPTH:
            raise DocumentError(f"nested more than {MAX_DEPTH} levels deep", _line(node))

    def _find(self, location: Location, message: str, value: str | None = None, *, line: int | None = None) -> None:
        self._document.findings.append(Finding(location, message, value, line=line))


def _is_text(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.tag == _STR


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _syntax_problem(error: yaml.MarkedYAMLError) -> DocumentError:
    # Never str(error): it quotes the text around, and there may be a password in it.
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else 1
    message = error.problem or error.context or "not YAML"
    if r"'\t'" in message:
        message = "a tab where YAML wants spaces"
    elif error.context is not None:
        message = f"{error.context}: {message}"
        begun = error.context_mark
        if begun is not None and begun.line + 1 != line:
            message += f" (begun on line {begun.line + 1})"
    return DocumentError(message, line)
