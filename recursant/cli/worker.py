"""`recursant worker`: what runs beside a vLLM."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recursant.cli.options import (
    REPORTING,
    JoinRunDirOption,
    LogFormat,
    LogFormatOption,
    LogLevel,
    LogLevelOption,
    ReportToApiOption,
    ReportToRedisOption,
    split_commas,
)

if TYPE_CHECKING:
    import asyncio

app = typer.Typer(no_args_is_help=True, help="What runs beside a vLLM worker.")

_ENGINE = "The vLLM beside it"
_DECLARED = "What only its operators know"


@app.callback()
def _worker() -> None:
    """What runs beside a vLLM worker."""


@app.command()
def sidecar(
    url: Annotated[
        str,
        typer.Option("--url", envvar="RECURSANT_ENGINE_URL", help="Where the vLLM serves.", rich_help_panel=_ENGINE),
    ] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str,
        typer.Option(
            "--api-key",
            envvar="VLLM_API_KEY",
            show_envvar=True,
            show_default=False,
            help="The key that its clients send, for /v1/models.",
            rich_help_panel=_ENGINE,
        ),
    ] = "",
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="What it serves, where /v1/models wants a key that is not known.", rich_help_panel=_ENGINE
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            envvar=["RECURSANT_GPUS", "CUDA_VISIBLE_DEVICES"],
            metavar="LIST",
            help="Its devices, as CUDA_VISIBLE_DEVICES names them; [bold]none[/bold]: do not look at any.",
            show_default="the only one",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    scrape_interval_ms: Annotated[
        int, typer.Option("--scrape-interval-ms", min=100, max=60_000, rich_help_panel=_ENGINE)
    ] = 500,
    redis_url: ReportToRedisOption = None,
    api: ReportToApiOption = None,
    run_dir: JoinRunDirOption = None,
    worker_id: Annotated[
        str | None,
        typer.Option(
            "--worker-id", envvar="RECURSANT_WORKER_ID", show_default="HOSTNAME-PORT", rich_help_panel=REPORTING
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            envvar="RECURSANT_WORKER_ADDRESS",
            metavar="HOST:PORT",
            help="Where Envoy reaches the vLLM.",
            show_default="this machine and the port of --url",
            rich_help_panel=REPORTING,
        ),
    ] = None,
    interval_ms: Annotated[
        int,
        typer.Option(
            "--report-interval-ms",
            envvar="RECURSANT_REPORT_INTERVAL_MS",
            min=20,
            max=60_000,
            rich_help_panel=REPORTING,
        ),
    ] = 200,
    family: Annotated[
        str,
        typer.Option(
            "--family",
            envvar="RECURSANT_MODEL_FAMILY",
            help="The family of its models, where their names do not tell.",
            show_default=False,
            rich_help_panel=_DECLARED,
        ),
    ] = "",
    capacity: Annotated[
        str,
        typer.Option(
            "--capacity",
            envvar="RECURSANT_CAPACITY_TOKENS",
            metavar="TOKENS",
            help="Tokens that it takes at once.",
            show_default="the annotation, else what its KV cache holds",
            rich_help_panel=_DECLARED,
        ),
    ] = "",
    annotations: Annotated[
        Path | None,
        typer.Option(
            "--annotations-file",
            envvar="RECURSANT_ANNOTATIONS_FILE",
            help="A downward-API file with recursant.io/instance-capacity or volcano.sh/instance-capacity.",
            rich_help_panel=_DECLARED,
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option("--max-num-seqs", min=1, help="As its flag: /metrics does not tell.", rich_help_panel=_DECLARED),
    ] = None,
    priority_scheduling: Annotated[
        bool | None,
        typer.Option(
            "--priority-scheduling/--no-priority-scheduling",
            help="It runs --scheduling-policy priority: /metrics does not tell.",
            show_default="unknown",
            rich_help_panel=_DECLARED,
        ),
    ] = None,
    max_queue: Annotated[
        int | None,
        typer.Option(
            "--max-queue",
            envvar="RECURSANT_MAX_QUEUE",
            min=1,
            help="The longest queue it should have.",
            rich_help_panel=_DECLARED,
        ),
    ] = None,
    exclusive: Annotated[
        bool,
        typer.Option(
            "--exclusive",
            envvar="RECURSANT_EXCLUSIVE",
            help="Only agents whose policy names it may use it.",
            rich_help_panel=_DECLARED,
        ),
    ] = False,
    drain_timeout: Annotated[
        float, typer.Option("--drain-timeout", min=0, help="Seconds that running requests get to end when stopped.")
    ] = 30.0,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Report a vLLM that runs beside this: no change to it, no restart of it.

    It reads /metrics, /health and /v1/models of --url, and the GPU's own figures, and reports them to --redis-url, to
    --api, or to the [bold]recursant up[/bold] of --run-dir. It may start before the vLLM and before the control plane,
    and tries on for ever. While the vLLM sleeps, or does not answer, it gets no requests.

    On SIGTERM it announces that the worker drains, waits until the vLLM has nothing left, and says farewell: stop it
    before the vLLM, and no request is lost.

    Example: recursant worker sidecar --url http://127.0.0.1:8101 --redis-url redis://10.0.0.5:6379/0
    """

    import socket

    from recursant.cli.errors import USAGE, CommandError
    from recursant.cli.runner import run_service
    from recursant.supervise.endpoints import EndpointsError, read_endpoints
    from recursant.worker import settings as names
    from recursant.worker.nvml import GpuSampler
    from recursant.worker.sidecar import Sidecar, SidecarOptions, address_of

    try:
        if run_dir is not None and redis_url is None and api is None:
            redis_url = read_endpoints(run_dir).redis
        if redis_url is None and api is None:
            raise CommandError("say where to report: --redis-url, --api or --run-dir", USAGE)
        annotated = "" if annotations is None else annotations.read_bytes()[: names.MAX_ANNOTATIONS_BYTES].decode()
        address = advertise or address_of(url)
        settings = names.WorkerSettings(
            worker_id=names.check_id(worker_id or f"{socket.gethostname()}-{address.rpartition(':')[2]}"),
            address=names.check_address(address),
            engine_url=url,
            redis_url=redis_url or "",
            # Redis is the shorter way; one of them is enough.
            api_url="" if redis_url else api or "",
            family=names.check_family(family),
            exclusive=exclusive,
            capacity_tokens=names.capacity_of(capacity, annotated),
            max_queue=max_queue,
            gpus=gpus,
            interval_ms=interval_ms,
            api_key=api_key,
        )
        names.check_urls(settings.redis_url, settings.api_url)
        gpu = GpuSampler(gpus)
        options = SidecarOptions(
            settings=settings,
            models=split_commas(model),
            max_num_seqs=max_num_seqs,
            priority_scheduling=priority_scheduling,
            scrape_ms=scrape_interval_ms,
            drain_s=drain_timeout,
            read_gpu=gpu.read,
        )
    except (EndpointsError, OSError) as error:
        raise CommandError(str(error)) from error
    except ValueError as error:
        raise CommandError(str(error), USAGE) from error

    async def service(stop: "asyncio.Event") -> None:
        try:
            beside = Sidecar(options)
        except ValueError as error:
            raise CommandError(str(error), USAGE) from error
        gpu.start()
        try:
            await beside.run(stop)
        finally:
            gpu.stop()

    run_service(service, level=log_level, log_format=log_format)
