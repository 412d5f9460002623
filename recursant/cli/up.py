"""`recursant up`: the whole product on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recursant import names
from recursant.cli.options import (
    DEFAULT_RUN_DIR,
    RUN_DIR_VARIABLE,
    ConfigOption,
    LogLevel,
    LogLevelOption,
    split_commas,
)
from recursant.cli.serve import MAX_PROCESSES, EnvoyLogLevel, EnvoyLogLevelOption, Transport, TransportOption

if TYPE_CHECKING:
    from recursant.cli.up_view import UpView
    from recursant.config.model import Config
    from recursant.config.reload import Edit
    from recursant.config.watch import ConfigWatch
    from recursant.supervise.layout import Layout, UpOptions
    from recursant.supervise.plan import RunChoices
    from recursant.supervise.rundir import RunDirectory

_WORKERS = "Workers"
_ADDRESSES = "Addresses (port 0: any free one)"
_MAX_WORKERS = 256


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(up)


def up(
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-n",
            min=0,
            max=_MAX_WORKERS,
            help="Simulated workers.",
            show_default="4, or 0 with --worker-urls",
            rich_help_panel=_WORKERS,
        ),
    ] = None,
    worker_urls: Annotated[
        list[str] | None,
        typer.Option(
            "--worker-urls",
            metavar="URL,…",
            help="Real vLLM servers, as http://gpu-1:8000. They take the place of the configured workers.",
            rich_help_panel=_WORKERS,
        ),
    ] = None,
    worker_models: Annotated[
        list[str] | None,
        typer.Option(
            "--worker-models",
            metavar="NAME,…",
            help="Models that every simulated worker serves.",
            show_default="one of each family that the agents ask for",
            rich_help_panel=_WORKERS,
        ),
    ] = None,
    worker_port: Annotated[
        int | None,
        typer.Option(
            "--worker-port",
            min=0,
            max=65535,
            help="Of the first simulated worker.",
            show_default=str(names.WORKER_PORT),
            rich_help_panel=_WORKERS,
        ),
    ] = None,
    config: ConfigOption = None,
    run_dir: Annotated[
        Path,
        typer.Option("--run-dir", envvar=RUN_DIR_VARIABLE, help="For endpoints.json, logs and sockets."),
    ] = DEFAULT_RUN_DIR,
    redis_url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            envvar="RECURSANT_REDIS_URL",
            metavar="URL",
            help="A Redis of yours, 7.0 or newer.",
            show_default="an embedded one",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host", help="Where the gateway listens.", show_default=names.LOOPBACK, rich_help_panel=_ADDRESSES
        ),
    ] = None,
    gateway_port: Annotated[
        int | None,
        typer.Option(
            "--gateway-port",
            min=0,
            max=65535,
            show_default=str(names.GATEWAY_PORT),
            rich_help_panel=_ADDRESSES,
        ),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(
            "--admin-port",
            min=0,
            max=65535,
            help="Envoy's admin interface.",
            show_default=str(names.ENVOY_ADMIN_PORT),
            rich_help_panel=_ADDRESSES,
        ),
    ] = None,
    api_port: Annotated[
        int | None,
        typer.Option("--api-port", min=0, max=65535, show_default=str(names.API_PORT), rich_help_panel=_ADDRESSES),
    ] = None,
    xds_port: Annotated[
        int | None,
        typer.Option("--xds-port", min=0, max=65535, show_default=str(names.XDS_PORT), rich_help_panel=_ADDRESSES),
    ] = None,
    xds_metrics_port: Annotated[
        int | None,
        typer.Option(
            "--xds-metrics-port",
            min=0,
            max=65535,
            show_default=str(names.XDS_METRICS_PORT),
            rich_help_panel=_ADDRESSES,
        ),
    ] = None,
    extproc_processes: Annotated[
        int | None,
        typer.Option(
            "--extproc-processes",
            min=1,
            max=MAX_PROCESSES,
            help="Processes that decide, for more than one core; they count together.",
            show_default="extproc.processes",
        ),
    ] = None,
    extproc_metrics_port: Annotated[
        int | None,
        typer.Option(
            "--extproc-metrics-port",
            min=0,
            max=65535,
            help="Of the first extproc process.",
            show_default=str(names.EXTPROC_METRICS_PORT),
            rich_help_panel=_ADDRESSES,
        ),
    ] = None,
    transport: TransportOption = Transport.LEAN,
    drain_timeout: Annotated[
        float, typer.Option("--drain-timeout", min=0, help="Seconds that running requests get to end when stopped.")
    ] = 10.0,
    log_level: LogLevelOption = LogLevel.INFO,
    envoy_log_level: EnvoyLogLevelOption = EnvoyLogLevel.WARNING,
) -> None:
    """Run everything on this machine: Redis, control plane, Envoy, and workers, simulated or real.

    Prints what runs where and a curl to try, then [bold]ready[/bold]. Processes that die are started again. Ctrl-C lets
    running requests end and stops everything; a second Ctrl-C stops at once.

    Examples:

      recursant up --workers 8

      recursant up --worker-urls http://gpu-1:8000,http://gpu-2:8000

      recursant up --gateway-port 0 --admin-port 0 --api-port 0 --xds-port 0 --worker-port 0
    """
    from recursant.cli.configuration import find_config, read_config
    from recursant.supervise.layout import UpOptions
    from recursant.supervise.rundir import RunDirectory

    config = find_config(config, built_in=True)
    settings = read_config(config)
    options = UpOptions(
        workers=workers,
        worker_urls=split_commas(worker_urls),
        worker_models=split_commas(worker_models),
        worker_port=worker_port,
        host=host,
        gateway_port=gateway_port,
        admin_port=admin_port,
        xds_port=xds_port,
        api_port=api_port,
        extproc_processes=extproc_processes,
        extproc_metrics_port=extproc_metrics_port,
        xds_metrics_port=xds_metrics_port,
        redis_url=redis_url,
    )
    run = RunDirectory(run_dir)
    _up(settings, options, run, _choices(config, transport, log_level, envoy_log_level, drain_timeout))


def _choices(
    config: Path, transport: Transport, log_level: LogLevel, envoy_log_level: EnvoyLogLevel, drain_timeout: float
) -> "RunChoices":
    from recursant.cli.errors import CommandError
    from recursant.supervise.envoy import envoy_binary
    from recursant.supervise.plan import RunChoices

    try:
        return RunChoices(
            envoy_binary=envoy_binary(),
            transport=transport.value,
            log_level=log_level.value,
            envoy_log_level=envoy_log_level.value,
            drain_s=drain_timeout,
            watched=config,
        )
    except FileNotFoundError as error:
        raise CommandError(str(error)) from error


def _watch(
    config: "Config", choices: "RunChoices", layout: "Layout", run: "RunDirectory", view: "UpView"
) -> "ConfigWatch | None":
    """Tells the operator of edits, and keeps what is in force for services that start again."""
    from recursant.config.load import dump_config
    from recursant.config.reload import Outcome, Reloader
    from recursant.config.watch import ConfigWatch

    if choices.watched is None:
        return None
    file = choices.watched

    def edited(edit: "Edit") -> None:
        view.edited(edit.lines(str(file)))
        if edit.outcome is Outcome.APPLIED:
            try:
                run.write(run.config, dump_config(edit.running))
            except OSError as error:
                view.edited([f"{run.config} cannot be written, a service that starts again looks there: {error}"])

    return ConfigWatch(file, Reloader(layout.config, config), edited)


def _up(config: "Config", options: "UpOptions", run: "RunDirectory", choices: "RunChoices") -> None:
    import asyncio

    from recursant.cli.errors import USAGE, CommandError
    from recursant.cli.up_view import UpView
    from recursant.config.load import dump_config
    from recursant.supervise.child import StartError
    from recursant.supervise.layout import LayoutError, lay_out
    from recursant.supervise.plan import plan
    from recursant.supervise.ports import PortError, check_bindings
    from recursant.supervise.rundir import RunDirectoryError
    from recursant.supervise.up import run_up
    from xds_server.resources.bootstrap import render

    try:
        run.claim()
        try:
            layout = lay_out(config, options, run)
            check_bindings(layout.bindings)
            specs = plan(layout, run, choices)
            run.write(run.config, dump_config(layout.config))
            run.write(run.bootstrap, render(layout.config, f"gateway-{layout.config.gateway.port}"))
            with UpView(layout, run, specs) as view:
                asyncio.run(run_up(specs, layout, run, view, _watch(config, choices, layout, run, view)))
        finally:
            run.release()
    except LayoutError as error:
        raise CommandError(str(error), USAGE) from error
    except (PortError, RunDirectoryError, StartError, FileNotFoundError) as error:
        raise CommandError(str(error)) from error
