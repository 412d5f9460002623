"""`recursant serve`: one service in the foreground, for containers and Kubernetes."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from recursant.cli.options import ConfigOption, LogFormat, LogFormatOption, LogLevel, LogLevelOption

if TYPE_CHECKING:
    import asyncio

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


@app.command()
def extproc(
    config: ConfigOption = None,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", metavar="ADDRESS", help="unix:/path or host:port, instead of the configured ones."),
    ] = None,
    transport: TransportOption = Transport.LEAN,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Answer Envoy's ext_proc streams: resolve the agent, pick the worker.

    Example: recursant serve extproc --config recursant.yaml --listen 0.0.0.0:9002
    """
    from extproc.service import serve
    from extproc.transports.address import AddressError
    from recursant.cli.configuration import read_config
    from recursant.cli.errors import CommandError
    from recursant.cli.runner import run_service

    settings = read_config(config)
    if listen:
        settings = settings.model_copy(
            update={"extproc": settings.extproc.model_copy(update={"listen": tuple(listen)})}
        )

    async def service(stop: "asyncio.Event") -> None:
        try:
            await serve(settings, stop, transport=transport.value)
        except AddressError as error:
            raise CommandError(str(error)) from error

    run_service(service, level=log_level, log_format=log_format)


@app.command()
def xds(
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve Envoy its listeners, routes, clusters and endpoints over ADS.

    Example: recursant serve xds --config recursant.yaml
    """
    from recursant.cli.configuration import read_config
    from recursant.cli.runner import run_service
    from xds_server.service import serve

    settings = read_config(config)
    run_service(lambda stop: serve(settings, stop), level=log_level, log_format=log_format)


@app.command()
def api(
    config: ConfigOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve the control API and the metrics.

    Example: recursant serve api --config recursant.yaml
    """
    from recursant.api.service import serve
    from recursant.cli.configuration import read_config
    from recursant.cli.runner import run_service

    settings = read_config(config)
    run_service(lambda stop: serve(settings, stop), level=log_level, log_format=log_format)


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
