"""Finding and reading `recursant.yaml` for commands."""

from pathlib import Path
from typing import Final

import typer

from recursant.cli.errors import USAGE, CommandError
from recursant.config.load import CheckResult, ConfigError, check_config
from recursant.config.model import Config

CONFIG_FILE: Final = Path("recursant.yaml")
_PACKAGE: Final = Path(__file__).resolve().parent.parent
# In a checkout, and in a wheel.
_BUILT_IN: Final = (_PACKAGE.parent / "recursant.yaml", _PACKAGE / "_default.yaml")


def built_in_config() -> Path:
    """The configuration that comes with Recursant: three agents, everything else by default.

    Raises:
        CommandError: the installation lacks it.
    """
    for path in _BUILT_IN:
        if path.is_file():
            return path
    raise CommandError("the built-in configuration is missing: reinstall Recursant, or name a file with --config")


def find_config(path: Path | None, *, built_in: bool = False) -> Path:
    """The file that configures a command.

    Args:
        path: the one that was named; None: `./recursant.yaml`.
        built_in: whether the built-in one may stand in where that is missing.

    Raises:
        CommandError: there is none.
    """
    if path is not None:
        return path
    if CONFIG_FILE.exists():
        return CONFIG_FILE
    if built_in:
        return built_in_config()
    raise CommandError(f"no {CONFIG_FILE} here: name a configuration with --config", USAGE)


def read_config(path: Path | None) -> Config:
    """The configuration of a command; doubtful things are told on standard error.

    Args:
        path: as in `find_config`.

    Raises:
        CommandError: the file cannot be read or used.
    """
    result = check(find_config(path))
    for warning in result.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return result.config


def check(path: Path) -> CheckResult:
    """Read a configuration.

    Raises:
        CommandError: it cannot be read or used; every problem has its line.
    """
    try:
        return check_config(path)
    except ConfigError as error:
        count = len(error.problems)
        head = "" if count == 1 else f"{count} problems in {path}\n"
        raise CommandError(head + "\n".join(map(str, error.problems)), USAGE) from error
