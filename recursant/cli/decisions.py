"""`recursant decisions`: the log of decisions."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from recursant.cli.options import ApiOption, RunDirOption

_POLL_S: Final = 0.5


class LogOutput(StrEnum):
    """How decisions are shown."""

    TABLE = "table"
    # One object a line.
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(decisions)


def decisions(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with every request that ends.")] = False,
    agent: Annotated[str | None, typer.Option("--agent", help="Of this agent alone.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="The newest so many.")] = 20,
    api: ApiOption = None,
    run_dir: RunDirOption = None,
    output: Annotated[LogOutput, typer.Option("--output", "-o", help="How to show it.")] = LogOutput.TABLE,
) -> None:
    """Show recent decisions: a sample of all, and every refusal, fallback and slow one.

    Example: recursant decisions --follow --agent chat-web
    """
    import json
    import time
    from urllib.parse import urlencode

    from recursant.cli.api_client import find_api, get_json
    from recursant.cli.decision_rows import COLUMNS, decision_row, plain_line
    from recursant.cli.output import show_table

    base = find_api(api, run_dir)
    parameters = {"limit": str(limit)} | ({} if agent is None else {"agent": agent})
    document = get_json(base, f"/v1/decisions?{urlencode(parameters)}")
    if output is LogOutput.TABLE and not follow:
        show_table(COLUMNS, [decision_row(each) for each in document["decisions"]])
        if not document["decisions"]:
            typer.echo("nothing kept yet: a sample of all, and every refusal, fallback and slow one", err=True)
        return
    show = json.dumps if output is LogOutput.JSON else plain_line
    # What still runs is shown once, when it has ended.
    for each in document["decisions"]:
        if not follow or each["outcome"] != "running":
            typer.echo(show(each))
    parameters["limit"] = "1000"
    while follow:
        time.sleep(_POLL_S)
        document = get_json(base, f"/v1/decisions?{urlencode(parameters | {'after': document['cursor']})}")
        for each in document["decisions"]:
            typer.echo(show(each))
