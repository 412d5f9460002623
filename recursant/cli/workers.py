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


@app.command()
def drain(
    worker: WorkerArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why, for whoever looks at the fleet.")] = "",
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="The longest wait: 90s, 10m, 2h; at most 24h.")
    ] = "10m",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is safe to stop the worker.")] = True,
    api: ApiOption = None,
    run_dir: RunDirOption = None,
) -> None:
    """Give a worker nothing new, for every replica, and wait until what it has is done: then it may be stopped.

    Do this before you stop a vLLM: once it has got its SIGTERM it answers new requests with 500. Its restart ends the
    drain, and so does [bold]workers resume[/bold]. Exit code 1: it was not done in time; it drains on.

    Example: recursant workers drain gpu-7 --timeout 30m && systemctl restart vllm
    """
    from recursant.cli.api_client import drain_path, find_api, send_json
    from recursant.cli.drain_view import wait_until_drained
    from recursant.cli.durations import seconds_of

    seconds = seconds_of(timeout)
    base, path = find_api(api, run_dir), drain_path(worker)
    answer = send_json("POST", base, path, {"reason": reason})
    if not wait:
        print(f"{worker} drains: {answer['text']}")
        return
    wait_until_drained(worker, answer, lambda: send_json("GET", base, path), seconds)


def undrain(worker: WorkerArgument, api: ApiOption = None, run_dir: RunDirOption = None) -> None:
    """Let a worker that drains take requests again.

    Example: recursant workers resume gpu-7, or the same by another name: recursant workers undrain gpu-7
    """
    from recursant.cli.api_client import drain_path, find_api, send_json

    answer = send_json("DELETE", find_api(api, run_dir), drain_path(worker))
    if answer["draining"]:
        print(f"{worker} drains by its own word: it has to take that back itself")
    else:
        print(f"{worker} is {answer['status']}")


app.command("resume")(undrain)
app.command("undrain", hidden=True)(undrain)
