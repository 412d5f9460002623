"""`recursant version`: what is installed."""

import typer

from recursant.cli.options import Output, OutputOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(version)


def version(output: OutputOption = Output.TABLE) -> None:
    """Say which versions of Recursant and of what it runs are installed.

    Example: recursant version -o json
    """
    from recursant.cli.output import show_document, show_table
    from recursant.cli.versions import installed_versions

    versions = installed_versions()
    if output is Output.TABLE:
        show_table(("component", "version"), [(name, found or "not installed") for name, found in versions.items()])
    else:
        show_document(versions, output)
