"""What `recursant up` will run, and where: options and configuration in, an effective configuration out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from recursant.config.model import Config, ExtProc, StaticWorker
from recursant.fleet.address import join_address
from recursant.fleet.families import FamilyResolver
from recursant.names import LOOPBACK, WORKER_PORT
from recursant.supervise.ports import Binding, free_ports, free_range
from recursant.supervise.rundir import RunDirectory

DEFAULT_WORKERS: Final = 4
# A well-known model of each family, so that a simulated fleet looks like one.
MODELS_BY_FAMILY: Final = {
    "qwen": "Qwen/Qwen2.5-7B-Instruct",
    "deepseek": "deepseek-ai/deepseek-coder-6.7b-instruct",
    "phi": "microsoft/Phi-3-mini-4k-instruct",
    "llama": "meta-llama/Llama-3.1-8B-Instruct",
    "mistral": "mistralai/Mistral-7B-Instruct-v0.3",
    "whisper": "openai/whisper-large-v3",
}
_MAX_PORT: Final = 65_535


class LayoutError(Exception):
    """Options that do not fit together. The text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the command line said; None where it said nothing. A port of 0 takes any free one.

    Attributes:
        workers: number of simulated workers.
        worker_urls: base URLs of real ones.
        worker_models: names that every simulated worker serves.
        worker_port: of the first simulated worker; the others follow.
        host: where the gateway listens.
        extproc_processes: that share the requests.
        extproc_metrics_port: of the first of them; the others follow.
        redis_url: instead of the embedded server.
    """

    workers: int | None = None
    worker_urls: tuple[str, ...] = ()
    worker_models: tuple[str, ...] = ()
    worker_port: int | None = None
    host: str | None = None
    gateway_port: int | None = None
    admin_port: int | None = None
    xds_port: int | None = None
    api_port: int | None = None
    extproc_processes: int | None = None
    extproc_metrics_port: int | None = None
    xds_metrics_port: int | None = None
    redis_url: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What will run where.

    Attributes:
        config: the effective configuration: what the file says, with the options merged in and every port chosen.
        worker_ports: of the simulated workers.
        worker_models: that each of them serves.
        redis_port: of the embedded Redis; None where an external one is used.
    """

    config: Config
    worker_ports: tuple[int, ...]
    worker_models: tuple[str, ...]
    redis_port: int | None

    @property
    def bindings(self) -> list[Binding]:
        """Everything that will listen on a TCP port."""
        config = self.config
        return [
            Binding("the gateway", config.gateway.host, config.gateway.port, "--gateway-port"),
            Binding("Envoy's admin interface", config.gateway.admin_host, config.gateway.admin_port, "--admin-port"),
            Binding("the control API", config.api.host, config.api.port, "--api-port"),
            Binding("the xDS server", config.xds.host, config.xds.port, "--xds-port"),
            Binding("the xDS metrics", config.xds.metrics_host, config.xds.metrics_port, "--xds-metrics-port"),
            *(
                Binding("the extproc metrics", config.extproc.metrics_host, port, "--extproc-metrics-port")
                for port in config.extproc.metrics_ports
            ),
            *(
                Binding(f"simulated worker {number}", LOOPBACK, port, "--worker-port")
                for number, port in enumerate(self.worker_ports, 1)
            ),
        ]


def lay_out(config: Config, options: UpOptions, run: RunDirectory) -> Layout:
    """Merge options into the configuration and choose ports. Looks at free ports; starts nothing.

    Raises:
        LayoutError: options that do not fit together.
        PortError: no free port can be found.
        RunDirectoryError: no folder for the socket of extproc.
    """
    count = _simulated_workers(options)
    taken = {port for port in _given_ports(config, options) if port}

    def pick(option: int | None, configured: int, host: str) -> int:
        port = configured if option is None else option
        if port == 0:
            [port] = free_ports(host, 1, taken=taken)
            taken.add(port)
        return port

    gateway = config.gateway
    if options.host is not None:
        gateway = gateway.model_copy(update={"host": options.host})
    gateway = gateway.model_copy(
        update={
            "port": pick(options.gateway_port, gateway.port, gateway.host),
            "admin_port": pick(options.admin_port, gateway.admin_port, gateway.admin_host),
        }
    )
    xds = config.xds.model_copy(
        update={
            "port": pick(options.xds_port, config.xds.port, config.xds.host),
            "metrics_port": pick(options.xds_metrics_port, config.xds.metrics_port, config.xds.metrics_host),
            "state_dir": config.xds.state_dir or str(run.path / "state"),
        }
    )
    api = config.api.model_copy(update={"port": pick(options.api_port, config.api.port, config.api.host)})
    extproc = _extproc(config.extproc, options, run, taken)
    worker_ports = _worker_ports(options.worker_port, count, taken)
    url = options.redis_url or config.redis.url
    redis_port = None
    if url is None:
        redis_port = pick(0, 0, LOOPBACK)
        url = f"redis://{LOOPBACK}:{redis_port}/0"
    effective = config.model_copy(
        update={
            "gateway": gateway,
            "xds": xds,
            "api": api,
            "extproc": extproc,
            "redis": config.redis.model_copy(update={"url": url}),
            "workers": _static_workers(options.worker_urls) or config.workers,
        }
    )
    return Layout(
        config=effective,
        worker_ports=worker_ports,
        worker_models=options.worker_models or _models_of_agents(config),
        redis_port=redis_port,
    )


def _extproc(extproc: ExtProc, options: UpOptions, run: RunDirectory, taken: set[int]) -> ExtProc:
    """One socket and one port for metrics for each process."""
    processes = options.extproc_processes or extproc.processes
    port = extproc.metrics_port if options.extproc_metrics_port is None else options.extproc_metrics_port
    if port == 0:
        port = free_range(extproc.metrics_host, processes, taken=taken)
    if port + processes - 1 > _MAX_PORT:
        raise LayoutError(
            f"{processes} extproc processes from metrics port {port} on go past {_MAX_PORT}: "
            "lower --extproc-metrics-port"
        )
    taken.update(range(port, port + processes))
    folder = run.socket_directory()
    sockets = ["extproc.sock"] if processes == 1 else [f"extproc-{each}.sock" for each in range(1, processes + 1)]
    return extproc.model_copy(
        update={
            "listen": tuple(f"unix:{folder / socket}" for socket in sockets),
            "processes": processes,
            "state_dir": extproc.state_dir or str(run.path / "state"),
            "metrics_port": port,
        }
    )


def _simulated_workers(options: UpOptions) -> int:
    if options.workers is not None:
        return options.workers
    return 0 if options.worker_urls else DEFAULT_WORKERS


def _given_ports(config: Config, options: UpOptions) -> Sequence[int | None]:
    return (
        *(options.gateway_port, options.admin_port, options.xds_port, options.api_port),
        *(options.extproc_metrics_port, options.xds_metrics_port, options.worker_port),
        *(config.gateway.port, config.gateway.admin_port, config.xds.port, config.api.port),
        *(config.extproc.metrics_port, config.xds.metrics_port),
    )


def _worker_ports(first: int | None, count: int, taken: set[int]) -> tuple[int, ...]:
    if count == 0:
        return ()
    if first == 0:
        return tuple(free_ports(LOOPBACK, count, taken=taken))
    start = first if first is not None else WORKER_PORT
    if start + count - 1 > _MAX_PORT:
        raise LayoutError(f"{count} workers from port {start} on go past {_MAX_PORT}: lower --worker-port")
    return tuple(range(start, start + count))


def _static_workers(urls: Sequence[str]) -> tuple[StaticWorker, ...]:
    workers: dict[str, StaticWorker] = {}
    for url in urls:
        worker = _static_worker(url)
        if workers.setdefault(worker.worker_id, worker) is not worker:
            raise LayoutError(f"--worker-urls: {url} is given twice")
    return tuple(workers.values())


def _static_worker(url: str) -> StaticWorker:
    """A worker as the configuration would name it.

    Raises:
        LayoutError: the URL says more than a host and a port, or less.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise LayoutError(f"--worker-urls: {url!r} is not a URL") from None
    if parts.scheme != "http" or not host or parts.path.rstrip("/") or parts.query or parts.username:
        raise LayoutError(f"--worker-urls: {url!r} must look like http://host:port")
    try:
        return StaticWorker(host=host, port=port or 80, id=join_address(host, port or 80))
    except ValueError:
        raise LayoutError(f"--worker-urls: {host!r} is not a host name") from None


def _models_of_agents(config: Config) -> tuple[str, ...]:
    """One model for each family that the agents ask for, in their order."""
    resolver = FamilyResolver.from_config(config)
    families = dict.fromkeys(agent.model_family for agent in config.agents if agent.model_family)
    models = []
    for family in families or ("qwen",):
        name = MODELS_BY_FAMILY.get(family.lower())
        # The configuration's own patterns may say otherwise of a name that we know.
        known = name is not None and (not families or resolver.family_of(name) == family)
        models.append(name if name is not None and known else f"{family}-sim")
    return tuple(models)
