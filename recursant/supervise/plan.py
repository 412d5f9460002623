"""The processes of `recursant up`, as data."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recursant import __version__
from recursant.config.model import Config
from recursant.fleet.address import join_address
from recursant.names import LOOPBACK
from recursant.store.embedded import embedded_redis_command
from recursant.supervise.endpoints import Endpoints, ProcessEndpoint, WorkerEndpoint
from recursant.supervise.envoy import EnvoyAdmin, envoy_command
from recursant.supervise.layout import Layout
from recursant.supervise.probe import HttpProbe, Probe, RedisProbe, TcpProbe, UnixProbe
from recursant.supervise.process import ProcessSpec
from recursant.supervise.restart import WORKER
from recursant.supervise.rundir import RunDirectory

# Not on the command line, which everybody on the machine can read: the URL may hold a password.
REDIS_VARIABLE: Final = "RECURSANT_REDIS_URL"
REDIS: Final = "redis"
XDS: Final = "xds"
API: Final = "api"
EXTPROC: Final = "extproc"
ENVOY: Final = "envoy"
_WILDCARDS: Final = {"0.0.0.0": LOOPBACK, "::": "::1"}


@dataclass(frozen=True, slots=True)
class RunChoices:
    """How the processes run; what they serve is the layout's.

    Attributes:
        envoy_binary: Envoy's executable.
        transport: of extproc, "lean" or "grpcio".
        log_level: of our own services.
        envoy_log_level: of Envoy.
        drain_s: seconds that running requests get to end when all is stopped.
        watched: the operator's file, whose edits the control plane takes; None: there is none.
    """

    envoy_binary: Path
    transport: str = "lean"
    log_level: str = "info"
    envoy_log_level: str = "warning"
    drain_s: float = 10.0
    watched: Path | None = None


def dialled(host: str) -> str:
    """Where to reach, from this machine, a server that listens on `host`."""
    return _WILDCARDS.get(host, host)


def recursant_command(*arguments: str) -> tuple[str, ...]:
    """The command line of our own command, whatever is on the path; nothing of the current folder is imported."""
    return (sys.executable, "-P", "-m", "recursant.cli", *arguments)


def extproc_names(config: Config) -> list[str]:
    """The extproc processes: `extproc` where there is one, else `extproc-1`, `extproc-2`, …"""
    processes = config.extproc.processes
    return [EXTPROC] if processes == 1 else [f"{EXTPROC}-{number}" for number in range(1, processes + 1)]


def worker_name(port: int) -> str:
    """Name and id of the simulated worker on a port."""
    return f"sim-{port}"


def plan(layout: Layout, run: RunDirectory, choices: RunChoices) -> list[ProcessSpec]:
    """The processes in the order of their start: Redis; xDS, API, extproc and workers; Envoy.

    Raises:
        FileNotFoundError: the embedded Redis is needed and not installed.
    """
    specs: list[ProcessSpec] = []
    if layout.redis_port is not None:
        specs.append(
            ProcessSpec(
                name=REDIS,
                command=tuple(embedded_redis_command(run.redis, port=layout.redis_port)),
                ready=RedisProbe(LOOPBACK, layout.redis_port),
                address=f"{LOOPBACK}:{layout.redis_port}",
            )
        )
    first = tuple(spec.name for spec in specs)
    services = [*_services(layout, run, choices, first), *_workers(layout, choices, first)]
    gateway = layout.config.gateway
    admin = EnvoyAdmin(dialled(gateway.admin_host), gateway.admin_port)
    envoy = ProcessSpec(
        name=ENVOY,
        command=envoy_command(choices.envoy_binary, run.bootstrap, log_level=choices.envoy_log_level),
        ready=HttpProbe(admin.host, admin.port, "/ready"),
        address=join_address(gateway.host, gateway.port),
        after=tuple(spec.name for spec in services),
        quiesce=lambda: admin.drain(choices.drain_s),
    )
    return [*specs, *services, envoy]


def _services(layout: Layout, run: RunDirectory, choices: RunChoices, after: tuple[str, ...]) -> list[ProcessSpec]:
    config = layout.config
    watched = () if choices.watched is None else ("--watch", str(choices.watched.absolute()))
    common = ("--config", str(run.config), "--log-level", choices.log_level, *watched)
    xds_host = dialled(config.xds.host)
    api_host = dialled(config.api.host)
    services: list[tuple[str, Probe, str]] = [
        (XDS, TcpProbe(xds_host, config.xds.port), join_address(config.xds.host, config.xds.port)),
        (
            API,
            HttpProbe(api_host, config.api.port, "/v1/health"),
            join_address(config.api.host, config.api.port),
        ),
    ]
    specs = [
        ProcessSpec(
            name=name,
            command=recursant_command("serve", name, *common),
            ready=ready,
            address=address,
            after=after,
        )
        for name, ready, address in services
    ]
    return [*specs, *_extproc(layout, run, choices, after)]


def _extproc(layout: Layout, run: RunDirectory, choices: RunChoices, after: tuple[str, ...]) -> list[ProcessSpec]:
    common = ("--config", str(run.config), "--log-level", choices.log_level, "--transport", choices.transport)
    names = extproc_names(layout.config)
    specs = []
    for process, name in enumerate(names, 1):
        [listen] = layout.config.extproc.listen_of(process)
        which = ("--process", str(process), "--counts-file", str(run.counts)) if len(names) > 1 else ()
        specs.append(
            ProcessSpec(
                name=name,
                command=recursant_command("serve", EXTPROC, *common, *which),
                ready=UnixProbe(listen.removeprefix("unix:")),
                address=listen,
                after=after,
            )
        )
    return specs


def _workers(layout: Layout, choices: RunChoices, after: tuple[str, ...]) -> list[ProcessSpec]:
    models = [argument for model in layout.worker_models for argument in ("--model", model)]
    url = layout.config.redis.url
    return [
        ProcessSpec(
            name=worker_name(port),
            command=recursant_command(
                "sim",
                *("--worker-id", worker_name(port)),
                *("--port", str(port)),
                *models,
                *("--log-level", choices.log_level),
            ),
            ready=HttpProbe(LOOPBACK, port, "/health"),
            address=join_address(LOOPBACK, port),
            after=after,
            env={REDIS_VARIABLE: url} if url is not None else {},
            restart=WORKER,
        )
        for port in layout.worker_ports
    ]


def endpoints(layout: Layout, run: RunDirectory, specs: Sequence[ProcessSpec], pids: dict[str, int]) -> Endpoints:
    """The document for `endpoints.json`, for the processes that run now."""
    config = layout.config

    def url(host: str, port: int, path: str = "") -> str:
        return f"http://{join_address(dialled(host), port)}{path}"

    static = [
        WorkerEndpoint(worker.worker_id, f"http://{join_address(worker.host, worker.port)}", None)
        for worker in config.workers
    ]
    simulated = [
        WorkerEndpoint(worker_name(port), url(LOOPBACK, port), pids.get(worker_name(port)))
        for port in layout.worker_ports
    ]
    return Endpoints(
        version=__version__,
        run_dir=str(run.path),
        pid=os.getpid(),
        gateway=url(config.gateway.host, config.gateway.port),
        admin=url(config.gateway.admin_host, config.gateway.admin_port),
        api=url(config.api.host, config.api.port),
        xds=join_address(dialled(config.xds.host), config.xds.port),
        redis=config.redis.url or "",
        extproc=list(config.extproc.listen),
        metrics={
            **{
                name: url(config.extproc.metrics_host, port, "/metrics")
                for name, port in zip(extproc_names(config), config.extproc.metrics_ports, strict=True)
            },
            XDS: url(config.xds.metrics_host, config.xds.metrics_port, "/metrics"),
            API: url(config.api.host, config.api.port, "/metrics"),
        },
        workers=[*static, *simulated],
        processes=[ProcessEndpoint(spec.name, pids.get(spec.name), spec.address) for spec in specs],
        pids=pids,
    )
