"""`recursant config`: look at configuration files."""

from pathlib import Path
from typing import Annotated

import typer

from recursant.cli.options import Output, OutputOption

app = typer.Typer(no_args_is_help=True, help="Look at configuration files.")


@app.callback()
def _config() -> None:
    """Look at configuration files."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A recursant.yaml, or the file of a single agent.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a file: every mistake with its line, field, value, and what is allowed.

    Ends with 0 if the file can be used and with 2 if it cannot. Starts nothing.

    Example: recursant config check recursant.yaml
    """
    from recursant.cli.configuration import check as check_file
    from recursant.cli.errors import USAGE, CommandError
    from recursant.cli.output import show_document
    from recursant.config.load import ConfigError, check_config

    if output is Output.TABLE:
        result = check_file(file)
        for warning in result.warnings:
            typer.echo(f"warning: {warning}", err=True)
        config = result.config
        typer.echo(f"{file}: ok, {len(config.agents)} agents, {len(config.workers)} static workers")
        return
    try:
        warnings = check_config(file).warnings
    except ConfigError as error:
        problems = [_as_dict(problem) for problem in error.problems]
        show_document({"file": str(file), "valid": False, "problems": problems}, output)
        raise CommandError(f"{file} cannot be used", USAGE) from None
    show_document({"file": str(file), "valid": True, "warnings": [_as_dict(each) for each in warnings]}, output)


def _as_dict(problem: object) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(problem)  # type: ignore[call-overload,no-any-return]
