"""What can be wrong with a configuration file, as values and as exceptions.

ConfigError               something is wrong; holds every problem found
├── ConfigFileError       the file cannot be read: missing, a directory, too large, not UTF-8
├── ConfigSyntaxError     the file is not YAML as we accept it
└── ConfigValueError      the YAML is fine, values are not: unknown keys, wrong types, bad references
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

# Where a value stands: ("agents", 2, "priority").
Location = tuple[str | int, ...]

_SHOWN_LENGTH: Final = 80
_PLAIN_KEY: Final = re.compile(r"^[A-Za-z0-9_-]+$")
# User and password of a URL. A password may hold any character, so up to the last "@".
_USERINFO: Final = re.compile(r"(?<=://).*@", re.DOTALL)
_QUERY_PASSWORD: Final = re.compile(r"(?<=[?&]password=)[^&]*")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, or (as a warning) doubtful. `str()` gives it as one line.

    Attributes:
        file: the file as the caller named it.
        line: 1-based; None where the file could not be read at all.
        field: the way to the value, `agents[2].priority`; empty for the file as a whole.
        value: the offending value for people, secrets masked, bounded in length; None where there is none.
        message: what is wrong.
        allowed: what would be right; None where `message` says it.
    """

    file: str
    line: int | None
    field: str
    value: str | None
    message: str
    allowed: str | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [where, self.field, self.message] if self.field else [where, self.message]
        text = ": ".join(parts)
        if self.value is not None:
            text += f", got {self.value}"
        if self.allowed is not None:
            text += f"; allowed: {self.allowed}"
        return text


class ConfigError(Exception):
    """A configuration that cannot be used.

    Attributes:
        problems: everything found, in the order of the file.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class ConfigFileError(ConfigError):
    """The file cannot be read."""


class ConfigSyntaxError(ConfigError):
    """The file is not YAML as we accept it."""


class ConfigValueError(ConfigError):
    """The YAML is fine, its values are not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem before it is known which file and line it belongs to.

    Attributes:
        line: where to look, if not at the value's own line.
        first: where the same thing stood before, for what is given twice.
    """

    location: Location
    message: str
    value: str | None = None
    allowed: str | None = None
    line: int | None = None
    first: Location | None = None


def field_path(location: Location) -> str:
    """`("agents", 2, "priority")` as `agents[2].priority`; odd keys are quoted and escaped."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not _PLAIN_KEY.match(part):
            text += f"[{shown(part)}]"
        else:
            text += f".{part}" if text else part
    return text


def shown(value: Any) -> str:
    """A value for people: one line, bounded, credentials in URLs masked, the insides of lists and mappings left out."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return _cut(_number(value))
    if isinstance(value, str):
        return _cut(repr(mask_credentials(value)))
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"a {type(value).__name__}"


def mask_credentials(url: str) -> str:
    """A URL with user and password masked."""
    return _QUERY_PASSWORD.sub("***", _USERINFO.sub("***@", url))


def _number(value: float) -> str:
    try:
        return str(value)
    except ValueError:  # Python refuses to write integers of thousands of digits.
        return "a number of thousands of digits"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 1]}…"
