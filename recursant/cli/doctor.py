"""`recursant doctor`: is everything here that Recursant needs?"""

from dataclasses import asdict

import typer

from recursant.cli.options import ConfigOption, Output, OutputOption, RunDirOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    config: ConfigOption = None,
    run_dir: RunDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check this machine: Python, packages, binaries, files, configuration, ports, Redis.

    Says what to do about everything that is not right. Ends with 1 if something fails; warnings do not count.

    Example: recursant doctor --config recursant.yaml
    """
    from recursant.cli.checks import Verdict, run_checks
    from recursant.cli.errors import FAILURE
    from recursant.cli.output import show_document, show_table

    checks = run_checks(config, run_dir)
    if output is Output.TABLE:
        rows = [(each.name, each.verdict.value, each.found, each.advice) for each in checks]
        show_table(("check", "", "found", "what to do"), rows)
    else:
        show_document([asdict(each) for each in checks], output)
    if any(each.verdict is Verdict.FAIL for each in checks):
        raise typer.Exit(FAILURE)
