"""`recursant explain`: what would happen to a request now, and why."""

from typing import Annotated

import typer

from recursant.cli.options import ApiOption, Output, OutputOption, RunDirOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explain)


def explain(
    agent: Annotated[str | None, typer.Option("--agent", help="X-Agent-ID; without it, a request of no agent.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="Length of the prompt, in tokens.")] = 0,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="The body's bound on the answer, in tokens.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help='The body\'s model; without it, "auto".')] = None,
    session: Annotated[str | None, typer.Option("--session", help="X-Session-ID.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header that describes the request; repeatable."),
    ] = None,
    api: ApiOption = None,
    run_dir: RunDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say where a request would go now, and why: a dry run against the live fleet.

    Nothing is sent, counted or held. The running extproc answers, with its own counts and policies.

    Example: recursant explain --agent chat-web --tokens 2000
    """
    from urllib.parse import urlencode

    from recursant.cli.api_client import find_api, get_json
    from recursant.cli.errors import USAGE, CommandError
    from recursant.cli.output import show_document

    for each in header or ():
        if "=" not in each:
            raise CommandError(f"--header {each!r} is no NAME=VALUE, as X-Agent-Priority=3 is", USAGE)
    asked = {"agent": agent, "tokens": tokens, "max_tokens": max_tokens, "model": model, "session": session}
    parameters = [(name, str(value)) for name, value in asked.items() if value is not None]
    parameters += [("header", each) for each in header or ()]
    document = get_json(find_api(api, run_dir), f"/v1/explain?{urlencode(parameters)}")
    if output is Output.TABLE:
        from recursant.cli.explain_view import show_explanation

        show_explanation(document)
    else:
        show_document(document, output)
