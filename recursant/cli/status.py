"""`recursant status`: which gateway and which extproc runs which version of what."""

import typer

from recursant.cli.options import ApiOption, Output, OutputOption, RunDirOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(status)


def status(api: ApiOption = None, run_dir: RunDirOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show every client of the control plane, by type: its version, and whether it follows.

    SYNCED: it runs the newest. PENDING: it has not answered yet. STALE: for too long. NACK: it refused it; the reason
    is shown. Ends with 1 where the xDS server is away.

    Example: recursant status -o json
    """
    from recursant.cli.api_client import find_api, get_json
    from recursant.cli.errors import CommandError
    from recursant.cli.output import show_document, show_table

    document = get_json(find_api(api, run_dir), "/v1/status")
    if output is Output.TABLE:
        rows = [
            [
                client["node"],
                each["type"],
                each["state"],
                each["accepted"] or "-",
                f"{each['last_seen_s']:g} s ago",
                each["reason"],
            ]
            for client in document["clients"]
            for each in client["types"]
        ]
        show_table(("CLIENT", "TYPE", "STATE", "VERSION", "LAST SEEN", "REASON"), rows)
    else:
        show_document(document, output)
    if document["xds"] != "up":
        raise CommandError("the xDS server does not answer: what its clients run cannot be known")
