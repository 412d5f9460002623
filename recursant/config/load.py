"""Read and write `recursant.yaml`.

    config = load_config(Path("recursant.yaml"))

What is wrong with a file is found in one go, each problem with its line. The exceptions, all of them `ConfigError`
with the list `problems`, are drawn in `recursant.config.problem`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from recursant.config.document import MAX_BYTES, Document, DocumentError, read_document
from recursant.config.model import Config
from recursant.config.problem import (
    ConfigError,
    ConfigFileError,
    ConfigSyntaxError,
    ConfigValueError,
    Finding,
    Problem,
    field_path,
)
from recursant.config.validate import validate

__all__ = [
    "CheckResult",
    "ConfigError",
    "ConfigFileError",
    "ConfigSyntaxError",
    "ConfigValueError",
    "Problem",
    "check_config",
    "dump_config",
    "load_config",
    "parse_config",
]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A configuration that can be used, and what is doubtful about it."""

    config: Config
    warnings: tuple[Problem, ...]


def load_config(path: Path | str) -> Config:
    """Read a configuration, or a file that is a single agent. An empty file gives the defaults.

    Raises:
        ConfigError: it cannot be read or used; holds every problem found.
    """
    return check_config(path).config


def check_config(path: Path | str) -> CheckResult:
    """Read a configuration and say also what is doubtful.

    Raises:
        ConfigError: as `load_config`.
    """
    return parse_config(_read(Path(path)), str(path))


def parse_config(text: str, file: str) -> CheckResult:
    """Read a configuration from text; `file` is its name in problems.

    Raises:
        ConfigSyntaxError: the text is not YAML as we accept it.
        ConfigValueError: values are wrong.
    """
    try:
        document = read_document(text)
    except DocumentError as error:
        raise ConfigSyntaxError([Problem(file, error.line, "", None, str(error))]) from None
    result = validate(document.data)
    problems = _problems([*document.findings, *result.errors], document, file)
    if problems or result.config is None:
        raise ConfigValueError(problems)
    return CheckResult(result.config, tuple(_problems(result.warnings, document, file)))


def dump_config(config: Config) -> str:
    """The whole configuration as YAML that loads back equal.

    The URL of Redis is written as it is, password included: whoever stores the text keeps it to the owner.
    """
    data = config.model_dump(mode="json", by_alias=True)
    # Everything beyond ASCII escaped: PyYAML writes some of it (U+0085, for one) so that it reads back as a space.
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=False, width=4_096)
    return text


def _read(path: Path) -> str:
    def refuse(message: str, line: int | None = None) -> ConfigFileError:
        return ConfigFileError([Problem(str(path), line, "", None, message)])

    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise refuse("no such file") from None
    except IsADirectoryError:
        raise refuse("is a directory, not a file") from None
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise refuse("is not the name of a file") from None
    if len(raw) > MAX_BYTES:
        raise refuse(f"larger than {MAX_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise refuse("not UTF-8", raw.count(b"\n", 0, error.start) + 1) from None


def _problems(findings: Iterable[Finding], document: Document, file: str) -> list[Problem]:
    problems = []
    for each in findings:
        line = each.line or document.line_of(each.location)
        message = each.message
        if each.first is not None:
            message += f", first on line {document.line_of(each.first)}"
        problems.append(Problem(file, line, field_path(each.location), each.value, message, each.allowed))
    # Stable: problems of one line stay in the order in which they were found.
    return sorted(problems, key=lambda problem: problem.line or 0)
