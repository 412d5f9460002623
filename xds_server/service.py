"""The xDS service: configuration and fleet in, resources for Envoy out, metrics."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app, start_http_server

from recursant.agents.directory import PolicyDirectory
from recursant.config.follow import watch_config
from recursant.config.model import Config
from recursant.config.reload import Edit
from recursant.fleet.directory import FleetDirectory
from recursant.store.policies import PolicyStore
from xds_server.metrics import Gauges, Recorder, XdsCollector
from xds_server.policy_keeper import PolicyKeeper
from xds_server.publisher import Publisher
from xds_server.resources.build import build
from xds_server.server import Settings, XdsServer
from xds_server.status_page import clients_document, with_clients

# How often the directory is asked whether it knows the fleet yet.
_LOADED_POLL_S: Final = 0.01
# For streams to end after we said so.
_STOP_GRACE_S: Final = 1.0
# A scrape reads the loop's tables on the loop; one that waits longer than this fails rather than piling up.
_SCRAPE_S: Final = 5.0

_log = logging.getLogger(__name__)


async def serve(config: Config, stop: asyncio.Event, *, watched: Path | None = None) -> None:
    """Serve ADS on `config.xds.host:port` until `stop` is set.

    Args:
        config: the whole configuration.
        stop: set by the caller, for instance on a signal.
        watched: the file whose edits go live; None: there is none.

    Raises:
        OSError: the port of the service or of its metrics cannot be used.
    """
    # The first build imports what building needs: not while a joining worker waits for it.
    build(config, ())
    registry = CollectorRegistry()
    recorder = Recorder(registry)
    server = XdsServer(Settings(ack_timeout_s=config.xds.ack_timeout_ms / 1000), recorder)
    publisher = Publisher(config, server.publish, recorder)
    directory = FleetDirectory(config)
    directory.subscribe(publisher.observe, publisher.remove)
    keeper = PolicyKeeper(Path(config.xds.state_dir)) if config.xds.state_dir and config.redis.url else None
    policies = PolicyDirectory(
        config.agents,
        PolicyStore(config.redis.url) if config.redis.url else None,
        kept=keeper.restore() if keeper is not None else None,
    )

    def policies_changed() -> None:
        directory.set_agents(policies.policies)
        publisher.set_agents(policies.policies)

    policies.subscribe(policies_changed)
    if keeper is not None:
        policies.subscribe_applied(keeper.changed)
        policies_changed()

    def edited(edit: Edit) -> None:
        policies.set_file(edit.running.agents)
        publisher.set_config(edit.running.model_copy(update={"agents": policies.policies}))

    def gauges() -> Gauges:
        return Gauges(
            clients=server.clients(),
            workers=publisher.fleet.statuses(),
            snapshot_age_s=directory.snapshot_age_s(time.monotonic()),
            redis_up=directory.redis_up,
            failing=publisher.failing,
        )

    async with _metrics(config, registry, gauges):
        try:
            port = await server.listen(config.xds.host, config.xds.port)
            _log.info("listening on %s port %d", config.xds.host, port)
            works = [directory.run(), policies.run(), _publish(directory, policies, publisher)]
            if keeper is not None:
                works.append(keeper.run(lambda: policies.applied))
            if watched is not None:
                works.append(watch_config(watched, config, registry, edited))
            await _until(stop, *works)
        finally:
            await server.stop(_STOP_GRACE_S)


async def _publish(directory: FleetDirectory, policies: PolicyDirectory, publisher: Publisher) -> None:
    """Serve nothing before fleet and policies are known: clients wait, and an Envoy that runs keeps what it has."""
    while not (directory.loaded and policies.loaded):  # noqa: ASYNC110 - the directory has a flag only
        await asyncio.sleep(_LOADED_POLL_S)
    await publisher.run()


async def _until(stop: asyncio.Event, *works: Coroutine[Any, Any, None]) -> None:
    """Run `works` until `stop`. None of them ever ends by itself: if one does, that is a bug, and it is raised here."""
    tasks = [asyncio.create_task(work) for work in (stop.wait(), *works)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def _metrics(config: Config, registry: CollectorRegistry, gauges: Callable[[], Gauges]) -> AsyncIterator[None]:
    """Serve the metrics from a thread of their own."""
    loop = asyncio.get_running_loop()

    async def read() -> Gauges:
        return gauges()

    def read_on_loop() -> Gauges:
        return asyncio.run_coroutine_threadsafe(read(), loop).result(_SCRAPE_S)

    def read_clients() -> dict[str, Any]:
        return clients_document(read_on_loop().clients, time.monotonic())

    registry.register(XdsCollector(read_on_loop))
    ProcessCollector(registry=registry)
    server, thread = start_http_server(config.xds.metrics_port, config.xds.metrics_host, registry)
    server.set_app(with_clients(make_wsgi_app(registry), read_clients))
    try:
        yield
    finally:
        # Off the loop: a scrape in progress still needs it.
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)
