"""Running and parsing our own command line in tests."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.main import get_command

from recursant.cli.app import app


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    exit_code: int
    out: str
    err: str


def recursant(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 60
) -> Done:
    """Run the command as a process of its own, wide enough that nothing is folded."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "recursant.cli", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def parse(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Parse a command line without running it: the command's path and its options.

    Raises:
        Exception: a command or an option does not exist, or a value is not allowed; typer's own error.
    """
    command: Any = get_command(app)
    context = command.make_context("recursant", list(arguments))
    while hasattr(command, "resolve_command"):
        _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(command.name, rest, parent=context)
    return context.command_path, context.params


def commands() -> list[tuple[str, ...]]:
    """Every command and group, as the words that name it."""

    def walk(command: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        children = getattr(command, "commands", {})
        return [path, *(found for name, child in children.items() for found in walk(child, (*path, name)))]

    return walk(get_command(app), ())
