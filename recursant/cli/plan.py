"""`recursant plan`: how many workers of which kind a load needs."""

from pathlib import Path
from typing import Annotated

import typer

from recursant.cli.options import ConfigOption, Output, OutputOption, split_commas

_LOAD = "The load"
_FLEET = "The fleet"
_CHECK = "The check"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(plan)


def plan(
    load: Annotated[
        list[str] | None,
        typer.Option(
            "--load",
            metavar="FIELD=VALUE,...",
            help="One agent: agent, rate (requests/s), prompt and output (mean tokens); sla_ms (first token) and "
            "family if the configuration does not say them. Repeat for more agents.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Instead: Azure's CSV or Mooncake's JSON lines, compressed or not.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    agent: Annotated[
        str,
        typer.Option(
            "--agent",
            help='Whose the requests of the trace are; "by-length": code-completion where short, batch-summary from '
            "4,096 prompt tokens, else chat-web.",
            rich_help_panel=_LOAD,
        ),
    ] = "chat-web",
    rate_factor: Annotated[
        float, typer.Option("--rate-factor", help="Requests come so many times as fast.", rich_help_panel=_LOAD)
    ] = 1.0,
    sla_ms: Annotated[
        int | None,
        typer.Option(
            "--sla-ms",
            min=1,
            help="Target for the first token, for agents that have none.",
            show_default="none",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    config: ConfigOption = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="KIND",
            help="A kind of worker to consider, a profile of docs/calibration.md; repeat for more.",
            show_default="all that are of real devices",
            rich_help_panel=_FLEET,
        ),
    ] = None,
    most_workers: Annotated[
        int,
        typer.Option("--most-workers", min=1, max=1000, help="Of a kind, for a family.", rich_help_panel=_FLEET),
    ] = 64,
    goal: Annotated[
        float,
        typer.Option(
            "--goal", min=0.5, max=1.0, help="Share of each agent's requests in time.", rich_help_panel=_CHECK
        ),
    ] = 0.99,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=1,
            max=3600,
            help="Length of the simulated load; of a trace, its busiest part.",
            rich_help_panel=_CHECK,
        ),
    ] = 60.0,
    simulate: Annotated[
        bool,
        typer.Option("--simulate/--estimate", help="Check by simulation, or estimate only.", rich_help_panel=_CHECK),
    ] = True,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.", rich_help_panel=_CHECK)] = 0,
    output: OutputOption = Output.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
) -> None:
    """Plan a fleet: how many workers of which kind keep the agents' targets, and the vLLM settings that fit.

    Agents that need the same family of models share workers. For each kind, a formula says how many it should take;
    the fleet simulation, which routes with Recursant's own code, then looks for the smallest number that is enough.
    Nothing is started, and no GPU is needed. What the numbers rest on is printed with them.

    Targets, priorities and families of agents come from --config (./recursant.yaml if it is there), unless --load
    says them.

    Columns: [bold]estimate[/bold] is the formula's number, [bold]load[/bold] the share of what the workers take at
    the very most, [bold]in time[/bold], [bold]p50[/bold] and [bold]p99[/bold] (time to the first token) those of the
    agent that fares worst.

    Example: recursant plan --load agent=chat-web,rate=20,prompt=1200,output=200,sla_ms=800,family=llama
    --worker a100-llama-3-8b --worker h100-llama-3-8b

    Example: recursant plan --trace conversation_trace.jsonl.gz --sla-ms 5000 --worker h100-qwen2-7b --seconds 120
    """
    from recursant.cli.errors import USAGE, CommandError

    if bool(load) == bool(trace):
        raise CommandError("say what the load is: --load for each agent, or --trace FILE", USAGE)

    from rich.console import Console

    from recursant.cli.configuration import CONFIG_FILE, read_config
    from recursant.cli.output import show_document
    from recursant.cli.plan_view import show_plan
    from recursant.sizing.document import plan_document
    from recursant.sizing.kinds import kinds_for, kinds_named
    from recursant.sizing.load import arrivals_of, grouped, parse_rate, trace_load
    from recursant.sizing.search import plan_kind

    known = read_config(config).agents if config is not None or CONFIG_FILE.exists() else ()
    try:
        kinds = kinds_named(split_commas(worker))
        rates = [parse_rate(text) for text in load or ()]
        if trace is not None:
            arrivals = trace_load(trace, agent, rate_factor, seconds, seed)
            source = f"{trace}, the busiest {seconds:g} s at {rate_factor:g} times its rate"
        else:
            rates = [one.faster(rate_factor) for one in rates]
            arrivals = arrivals_of(rates, seconds, seed)
            agents = "1 agent" if len(rates) == 1 else f"{len(rates)} agents"
            source = f"{agents}, {sum(one.rate for one in rates):g} requests/s for {seconds:g} s"
        candidates = [(group, kinds_for(group, kinds)) for group in grouped(arrivals, seconds, known, rates, sla_ms)]
    except ValueError as error:
        raise CommandError(str(error), USAGE) from error
    planned = []
    with Console(stderr=True).status("planning") as told:
        for group, possible in candidates:
            choices = []
            for kind in possible:
                told.update(f"{kind.name} for family {group.family}" if group.family else kind.name)
                choices.append(
                    plan_kind(group, kind, goal=goal, most_workers=most_workers, simulate=simulate, seed=seed)
                )
            planned.append((group, choices))
    document = plan_document(planned, source=source, goal=goal, simulated=simulate, generated=trace is None)
    if as_json:
        output = Output.JSON
    if output is Output.TABLE:
        show_plan(document)
    else:
        show_document(document, output)
    if document["devices"] is None:
        raise CommandError("no kind of worker that was considered is enough for every agent")
