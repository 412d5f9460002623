"""The api service: the control API on its port, the fleet followed, the configured workers scraped."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import uvicorn
from prometheus_client import CollectorRegistry, ProcessCollector
from starlette.types import ASGIApp

from recursant.agents.directory import PolicyDirectory
from recursant.agents.policy import AgentPolicy
from recursant.api.app import create_app
from recursant.api.dependencies import Dependencies
from recursant.api.inspection import ExtProcInspection
from recursant.api.metrics import ApiCollector
from recursant.api.own_host import OwnHost
from recursant.api.peers import Peers
from recursant.api.policies import PolicyDesk
from recursant.api.policies import router as policy_routes
from recursant.api.reports import ReportSink
from recursant.api.status import clients_reader
from recursant.api.status import router as status_routes
from recursant.api.token import TokenGate
from recursant.api.warm_up import WarmUp
from recursant.config.checks import is_loopback
from recursant.config.follow import watch_config
from recursant.config.model import Config
from recursant.fleet.address import join_address
from recursant.fleet.directory import FleetDirectory
from recursant.fleet.families import FamilyResolver
from recursant.fleet.isolation_metrics import IsolationCollector
from recursant.store.policies import PolicyStore
from recursant.store.workers import WorkerStore
from recursant.worker.prober import Prober
from recursant.worker.scrape import StaticScraper

# Requests here take a second at most.
DRAIN_SECONDS: Final = 3
_KEEP_ALIVE_SECONDS: Final = 30
_BACKLOG: Final = 1_024

_log = logging.getLogger(__name__)


async def serve(config: Config, stop: asyncio.Event, *, watched: Path | None = None) -> None:
    """Serve the control API on `config.api` until `stop` is set, then finish what is running.

    Args:
        config: the whole configuration.
        stop: set by the caller, for instance on a signal.
        watched: the file whose edits go live; None: there is none.

    Raises:
        OSError: the address cannot be used.
        ValueError: `redis.url` is not a URL of Redis.
    """
    directory = FleetDirectory(config, name="api", judges=True)
    store = WorkerStore(config.redis.url) if config.redis.url else None
    with _bound(config.api.host, config.api.port) as listener:
        # The other services are our own: no proxy for the way out stands between.
        async with httpx.AsyncClient(trust_env=False) as client:
            policies = _policies(config, directory)
            warm_up = WarmUp(config.warm_up, client)
            dependencies = _dependencies(config, directory, store, client)
            api = create_app(dependencies)
            api.include_router(policy_routes(_policy_desk(config, directory, policies, warm_up)))
            api.include_router(status_routes(clients_reader(config, client)))
            app: ASGIApp = TokenGate(api, config.api.token, exposed=not is_loopback(config.api.host))
            if is_loopback(config.api.host):
                app = OwnHost(app)
            server = _Server(app, join_address(config.api.host, config.api.port))
            try:
                async with asyncio.TaskGroup() as tasks:
                    background = [tasks.create_task(directory.run()), tasks.create_task(policies.run())]
                    if store is not None and config.workers:
                        background.append(tasks.create_task(StaticScraper(config, store).run()))
                    if config.probes.enabled:
                        prober = Prober(config.probes, lambda: directory.records, directory.ward.witness)
                        background.append(tasks.create_task(prober.run()))
                    if watched is not None:
                        following = watch_config(
                            watched,
                            config,
                            dependencies.registry,
                            lambda edit: policies.set_file(edit.running.agents),
                        )
                        background.append(tasks.create_task(following))
                    await server.serve_until(stop, listener)
                    for task in background:
                        task.cancel()
            finally:
                await warm_up.close()
                if store is not None:
                    await store.close()


def _policies(config: Config, directory: FleetDirectory) -> PolicyDirectory:
    """The policies, whose families the fleet knows."""
    policies = PolicyDirectory(config.agents, PolicyStore(config.redis.url) if config.redis.url else None)
    policies.subscribe(lambda: directory.set_agents(policies.policies))
    return policies


def _policy_desk(config: Config, directory: FleetDirectory, policies: PolicyDirectory, warm_up: WarmUp) -> PolicyDesk:
    def families(policy: AgentPolicy) -> FamilyResolver:
        agents = (*policies.policies, policy)
        return FamilyResolver.from_config(config.model_copy(update={"agents": agents}))

    return PolicyDesk(policies, lambda: directory.records, families, warm_up)


def _dependencies(
    config: Config, directory: FleetDirectory, store: WorkerStore | None, client: httpx.AsyncClient
) -> Dependencies:
    sink = ReportSink(None if store is None else store.publish)
    registry = CollectorRegistry()
    registry.register(ApiCollector(directory, sink, time.monotonic))
    registry.register(IsolationCollector(directory.ward.figures))
    ProcessCollector(registry=registry)
    return Dependencies(
        fleet=directory,
        reports=sink,
        registry=registry,
        read_peers=Peers(config, client).read,
        clock=time.monotonic,
        isolation=directory.ward,
        inspect=ExtProcInspection(config, client).ask,
    )


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound here: uvicorn itself would end the process where the port is in use."""
    if not is_loopback(host):
        _log.warning(
            "the control API listens on %s: whoever reaches it can add workers, to which prompts are sent; "
            "keep it behind a firewall",
            host,
        )
    try:
        # The first address of a name, as the printed one should be the one that is used.
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(f"cannot listen on {join_address(host, port)}: {error.strerror}") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise OSError(f"cannot listen on {join_address(host, port)}: {error.strerror}") from error
        yield listener


class _Server(uvicorn.Server):
    """uvicorn without its own ideas about signals and logs: the process has one owner for each."""

    def __init__(self, app: ASGIApp, address: str) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                # Not what a proxy says: a report's host is filled in from the real one.
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                lifespan="off",
                ws="none",
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=DRAIN_SECONDS,
                backlog=_BACKLOG,
            )
        )
        self._address = address

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so when it is true."""
        await super().startup(sockets)
        _log.info("listening on %s", self._address)

    async def serve_until(self, stop: asyncio.Event, listener: socket.socket) -> None:
        """Serve on a bound socket until `stop` is set."""
        stopping = asyncio.create_task(self._stop_at(stop))
        try:
            await self.serve([listener])
        finally:
            stopping.cancel()

    async def _stop_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.should_exit = True
