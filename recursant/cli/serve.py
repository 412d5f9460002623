"""`recursant serve`: one service in the foreground, for containers and Kubernetes."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recursant.cli.options import ConfigOption, LogFormat, LogFormatOption, LogLevel, LogLevelOption

if TYPE_CHECKING:
    import asyncio

    from recursant.config.model import Config, ExtProc

# As recursant.config.model has it, whose import takes longer than `--help` may.
MAX_PROCESSES = 64

app = typer.Typer(no_args_is_help=True, help="Run one service in the foreground, for containers and Kubernetes.")


class Transport(StrEnum):
    """Who speaks gRPC on extproc's side."""

    LEAN = "lean"
    GRPCIO = "grpcio"


class EnvoyLogLevel(StrEnum):
    """Envoy's log levels."""

    TRACE = "trace"
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
    OFF = "off"


TransportOption = Annotated[
    Transport, typer.Option("--transport", help="How extproc speaks gRPC: our own framing, or grpcio.")
]
EnvoyLogLevelOption = Annotated[EnvoyLogLevel, typer.Option("--envoy-log-level", help="The least level Envoy logs.")]

WatchOption = Annotated[
    Path | None,
    typer.Option(
        "--watch",
        metavar="FILE",
        help="Take edits of this file instead, where --config names one that was made from it.",
        show_default="the one of --config",
    ),
]


@app.command()
def extproc(
    config: ConfigOption = None,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", metavar="ADDRESS", help="unix:/path or host:port, instead of the configured ones."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=1,
            max=MAX_PROCESSES,
            show_default="extproc.processes",
            help="Share the work among so many, each with an address of its own.",
        ),
    ] = None,
    process: Annotated[
        int | None,
        typer.Option(
            "--process", min=1, max=MAX_PROCESSES, help="Be this one of them, for whoever starts each; counts from 1."
        ),
    ] = None,
    counts_file: Annotated[
        Path | None, typer.Option("--counts-file", help="Where they count together; with --process.")
    ] = None,
    transport: TransportOption = Transport.LEAN,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Answer Envoy's ext_proc streams: resolve the agent, pick the worker.

    Examples:

      recursant serve extproc --config recursant.yaml --listen 0.0.0.0:9002

      recursant serve extproc --processes 2 --listen unix:/run/recursant/1.sock --listen unix:/run/recursant/2.sock
    """
    from recursant.cli.configuration import read_config
    from recursant.cli.errors import USAGE, CommandError

    settings = read_config(config)
    changes = {"listen": tuple(listen) if listen else None, "processes": processes}
    changed = {key: value for key, value in changes.items() if value is not None}
    settings = settings.model_copy(update={"extproc": settings.extproc.model_copy(update=changed)})
    own = settings.extproc
    if len(own.listen) < own.processes:
        raise CommandError(
            f"{own.processes} processes need an address each, and there are {len(own.listen)}: "
            "see --listen and extproc.listen",
            USAGE,
        )
    if process is None and own.processes == 1:
        _extproc(settings, None, transport, log_level, log_format)
    elif process is None:
        arguments = [] if config is None else ["--config", str(config)]
        arguments += [argument for address in own.listen for argument in ("--listen", address)]
        arguments += ["--transport", transport.value, "--log-level", log_level.value, "--log-format", log_format.value]
        _extproc_processes(own, arguments, log_level, log_format)
    else:
        if counts_file is None or process > own.processes:
            what = "--counts-file is missing" if counts_file is None else f"there are {own.processes} processes"
            raise CommandError(f"--process {process}: {what}", USAGE)
        _extproc(settings, (process, counts_file), transport, log_level, log_format)


def _extproc(
    settings: "Config",
    share: tuple[int, Path] | None,
    transport: Transport,
    log_level: LogLevel,
    log_format: LogFormat,
) -> None:
    """One process, in this one."""
    from extproc.service import serve
    from extproc.sharing import Share
    from extproc.transports.address import AddressError
    from recursant.cli.errors import CommandError
    from recursant.cli.runner import run_service
    from recursant.fleet.shared_file import SharedFileError

    async def service(stop: "asyncio.Event") -> None:
        try:
            await serve(settings, stop, transport=transport.value, share=None if share is None else Share(*share))
        except (AddressError, SharedFileError) as error:
            raise CommandError(str(error)) from error

    run_service(service, level=log_level, log_format=log_format)


def _extproc_processes(own: "ExtProc", arguments: list[str], log_level: LogLevel, log_format: LogFormat) -> None:
    """Several processes, kept running by this one."""
    import asyncio

    from recursant.cli.errors import CommandError
    from recursant.logs import configure
    from recursant.supervise.child import StartError
    from recursant.supervise.extproc_service import serve
    from recursant.supervise.plan import recursant_command

    def command(process: int, counts: Path) -> tuple[str, ...]:
        which = ("--processes", str(own.processes), "--process", str(process), "--counts-file", str(counts))
        return recursant_command("serve", "extproc", *arguments, *which)

    configure(log_level.value, log_format.value)
    try:
        asyncio.run(serve(own, command))
    except StartError as error:
        raise CommandError(str(error)) from error


@app.command()
def xds(
    config: ConfigOption = None,
    watch: WatchOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve Envoy its listeners, routes, clusters and endpoints over ADS.

    Example: recursant serve xds --config recursant.yaml
    """
    from recursant.cli.configuration import find_config, read_config
    from recursant.cli.runner import run_service
    from xds_server.service import serve

    config = find_config(config)
    settings = read_config(config)
    watched = watch or config
    run_service(lambda stop: serve(settings, stop, watched=watched), level=log_level, log_format=log_format)


@app.command()
def api(
    config: ConfigOption = None,
    watch: WatchOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve the control API and the metrics.

    Example: recursant serve api --config recursant.yaml
    """
    from recursant.api.service import serve
    from recursant.cli.configuration import find_config, read_config
    from recursant.cli.runner import run_service

    config = find_config(config)
    settings = read_config(config)
    watched = watch or config
    run_service(lambda stop: serve(settings, stop, watched=watched), level=log_level, log_format=log_format)


@app.command()
def envoy(
    config: ConfigOption = None,
    node_id: Annotated[
        str | None,
        typer.Option("--node-id", show_default="the host's name", help="Unique among the Envoys of a control plane."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", min=1, max=1024, show_default="cores, at most 4", help="Worker threads."),
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option("--drain-timeout", min=0, help="Seconds that running requests get to end when stopped.")
    ] = 30.0,
    envoy_log_level: EnvoyLogLevelOption = EnvoyLogLevel.WARNING,
) -> None:
    """Run Envoy with the bundled bootstrap; everything else it gets from xDS.

    On SIGTERM it tells clients to hang up, waits for running requests, and ends.

    Example: recursant serve envoy --config recursant.yaml --node-id gateway-1
    """
    import asyncio
    import socket

    from recursant.cli.configuration import read_config
    from recursant.cli.errors import CommandError
    from recursant.supervise.child import StartError
    from recursant.supervise.envoy_service import serve

    settings = read_config(config)
    try:
        asyncio.run(
            serve(
                settings,
                node_id=node_id or socket.gethostname(),
                concurrency=concurrency,
                drain_s=drain_timeout,
                log_level=envoy_log_level.value,
            )
        )
    except (StartError, FileNotFoundError) as error:
        raise CommandError(str(error)) from error
