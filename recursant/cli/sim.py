"""`recursant sim`: one simulated vLLM worker."""

from enum import StrEnum
from typing import Annotated

import typer

from recursant import names
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

_WORKER = "The worker"
_ENGINE = "Its engine"


class Scheduling(StrEnum):
    """vLLM's --scheduling-policy."""

    FCFS = "fcfs"
    PRIORITY = "priority"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sim)


def sim(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="0: any free one.", rich_help_panel=_WORKER)
    ] = names.WORKER_PORT,
    host: Annotated[str, typer.Option("--host", help="Where it listens.", rich_help_panel=_WORKER)] = names.LOOPBACK,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="A model it serves; repeat for more.", show_default="sim", rich_help_panel=_WORKER
        ),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option("--lora", help="An adapter of the first model; repeat for more.", rich_help_panel=_WORKER),
    ] = None,
    worker_id: Annotated[
        str | None, typer.Option("--worker-id", show_default="sim-PORT", rich_help_panel=_WORKER)
    ] = None,
    exclusive: Annotated[
        bool,
        typer.Option("--exclusive", help="Only agents whose policy names it may use it.", rich_help_panel=_WORKER),
    ] = False,
    redis_url: ReportToRedisOption = None,
    api: ReportToApiOption = None,
    run_dir: JoinRunDirOption = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="HOST:PORT",
            help="Where Envoy reaches it.",
            show_default="its own host and port",
            rich_help_panel=REPORTING,
        ),
    ] = None,
    report_interval_ms: Annotated[
        int, typer.Option("--report-interval-ms", min=1, max=60_000, rich_help_panel=REPORTING)
    ] = 200,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            help="Hardware and model it behaves like: small, tiny, or one of docs/calibration.md, as a100-llama-3-8b.",
            rich_help_panel=_ENGINE,
        ),
    ] = "small",
    capacity: Annotated[
        int | None,
        typer.Option(
            "--capacity",
            min=1,
            help="Tokens that it declares to take at once.",
            show_default="what its KV cache holds",
            rich_help_panel=_ENGINE,
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option("--speed", help="Times faster than its profile's hardware.", rich_help_panel=_ENGINE)
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random in it.", rich_help_panel=_ENGINE)] = 0,
    scheduling_policy: Annotated[
        Scheduling, typer.Option("--scheduling-policy", help="As vLLM's flag.", rich_help_panel=_ENGINE)
    ] = Scheduling.FCFS,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", min=2, show_default="the profile's", rich_help_panel=_ENGINE)
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option("--max-num-seqs", min=1, show_default="the profile's", rich_help_panel=_ENGINE)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option("--max-num-batched-tokens", min=1, show_default="the profile's", rich_help_panel=_ENGINE),
    ] = None,
    kv_blocks: Annotated[
        int | None, typer.Option("--kv-blocks", min=1, show_default="the profile's", rich_help_panel=_ENGINE)
    ] = None,
    max_queue: Annotated[
        int | None, typer.Option("--max-queue", min=0, help="The longest queue it wants.", rich_help_panel=_ENGINE)
    ] = None,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Run one simulated vLLM worker: vLLM's HTTP API over a model of its scheduler.

    It joins the fleet of --redis-url, of --api, or of the [bold]recursant up[/bold] of --run-dir. Without any of them
    it serves alone. Faults on command: POST /sim/faults; what it holds: GET /sim/state.

    Example: recursant sim --port 8105 --model Qwen/Qwen2.5-7B-Instruct --run-dir run
    """
    from recursant.cli.errors import USAGE, CommandError
    from recursant.cli.runner import run_service
    from recursant.sim.options import SimOptions
    from recursant.sim.service import serve
    from recursant.supervise.endpoints import EndpointsError, read_endpoints

    try:
        if run_dir is not None and redis_url is None and api is None:
            redis_url = read_endpoints(run_dir).redis
        options = SimOptions(
            worker_id=worker_id,
            host=host,
            port=port,
            models=split_commas(model) or ("sim",),
            lora_adapters=split_commas(lora),
            redis_url=redis_url,
            # Redis is the shorter way; one of them is enough.
            api_url=api if redis_url is None else None,
            report_interval_ms=report_interval_ms,
            advertise=advertise,
            exclusive=exclusive,
            capacity_tokens=capacity,
            max_queue=max_queue,
            profile=profile,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_blocks=kv_blocks,
            scheduling_policy=scheduling_policy.value,
            seed=seed,
            speed=speed,
        )
    except EndpointsError as error:
        raise CommandError(str(error)) from error
    except ValueError as error:
        raise CommandError(str(error), USAGE) from error
    run_service(lambda stop: serve(options, stop), level=log_level, log_format=log_format)
