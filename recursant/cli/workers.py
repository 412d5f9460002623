"""`recursant workers`: the fleet."""

import typer

from recursant.cli.options import ApiOption, Output, OutputOption, RunDirOption

app = typer.Typer(no_args_is_help=True, help="Look at the fleet.")


@app.callback()
def _workers() -> None:
    """Look at the fleet."""


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
