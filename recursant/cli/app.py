"""The command line's frame: the commands, the global options, and what an error looks like."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from recursant.cli import (
    config,
    decisions,
    doctor,
    explain,
    plan,
    policy,
    serve,
    sim,
    status,
    up,
    version,
    worker,
    workers,
)
from recursant.cli.errors import FAILURE, CommandError

# Whether expected errors show where they came from.
DEBUG_VARIABLE: Final = "RECURSANT_DEBUG"

app = typer.Typer(
    name="recursant",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from recursant.hot_path import build

        typer.echo(f"recursant {build()}")
        raise typer.Exit


@app.callback(
    epilog="Start everything on this machine with [bold]recursant up[/bold]; look around with "
    "[bold]recursant workers list[/bold] and [bold]recursant doctor[/bold]."
)
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with every error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and end.")
    ] = False,
) -> None:
    """Agent-aware traffic control for vLLM fleets: Envoy carries the bytes, Recursant picks the worker."""
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


up.register(app)
app.add_typer(serve.app, name="serve")
sim.register(app)
app.add_typer(workers.app, name="workers")
app.add_typer(worker.app, name="worker")
explain.register(app)
decisions.register(app)
app.add_typer(policy.app, name="policy")
status.register(app)
app.add_typer(config.app, name="config")
doctor.register(app)
plan.register(app)
version.register(app)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code."""
    try:
        app(args=list(arguments), prog_name="recursant")
    except CommandError as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has gone, as `| head` does. Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILURE
    return 0
