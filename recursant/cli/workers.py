"""`recursant workers`: the fleet."""

from typing import Annotated

import typer

from recursant.cli.options import ApiOption, Output, OutputOption, RunDirOption

app = typer.Typer(no_args_is_help=True, help="Look at the fleet; take workers out and let them back.")


@app.callback()
def _workers() -> None:
    """Look at the fleet; take workers out and let them back."""


WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Its id, as `workers list` shows it.")]


@app.command("list")
def list_workers(
    api: ApiOption = None,
    run_dir: RunDirOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the workers: who is ready, what they serve, how loaded they are.

    The control API is found by --api, by the run directory, or by RECURSANT_API.

    Example: recursant workers list -o json
    """
    from recursant.cli.api_client import find_api, get_json
    from recursant.cli.output import show_document, show_table
    from recursant.cli.worker_rows import COLUMNS, worker_row

    document = get_json(find_api(api, run_dir), "/v1/workers")
    if output is Output.TABLE:
        show_table(COLUMNS, [worker_row(worker) for worker in document["workers"]])
    else:
        show_document(document, output)


@app.command()
def isolate(
    worker: WorkerArgument,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long: 90s, 10m, 2h; at most 24h.")] = "10m",
    reason: Annotated[str, typer.Option("--reason", help="Why, for whoever looks at the fleet.")] = "",
    api: ApiOption = None,
    run_dir: RunDirOption = None,
) -> None:
    """Take a worker out: it finishes what it has and gets nothing new, even after a restart, until its time is over.

    Example: recursant workers isolate gpu-7 --for 30m --reason "fan is loud"
    """
    from recursant.cli.api_client import find_api, isolation_path, send_json
    from recursant.cli.durations import seconds_of

    seconds = seconds_of(for_)
    send_json("POST", find_api(api, run_dir), isolation_path(worker), {"for_s": seconds, "reason": reason})
    print(f"{worker} is isolated for {for_}")


@app.command()
def release(worker: WorkerArgument, api: ApiOption = None, run_dir: RunDirOption = None) -> None:
    """Let a worker back at once, whatever took it out.

    Example: recursant workers release gpu-7
    """
    from recursant.cli.api_client import find_api, isolation_path, send_json

    send_json("DELETE", find_api(api, run_dir), isolation_path(worker))
    print(f"{worker} is released")
