"""The extproc service: configuration in, ext_proc streams answered, metrics out."""

import asyncio
import contextlib
import gc
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from extproc.decisions import DecisionLog
from extproc.desk import Desk, Ticket
from extproc.gateway import Gateway
from extproc.holding import DeskRunner
from extproc.inspection import Inspector, Parameters, inspection_app
from extproc.metrics import ExtProcCollector, Gauges, Recorder
from extproc.policy_client import PolicyClient, node_id, target_of
from extproc.session import sessions
from extproc.session_sharing import SessionSharing
from extproc.shared_desk import SharedDesk
from extproc.sharing import Neighbours, Share
from extproc.transports.base import MESSAGE_MARGIN_BYTES, Transport
from extproc.transports.grpcio import GrpcioTransport
from extproc.transports.lean import LeanTransport
from recursant.admission.queue import HoldQueue
from recursant.agents.policy import AgentPolicy
from recursant.config.live import GatewayRules
from recursant.config.model import Config
from recursant.fleet.counts_file import ColumnsFullError
from recursant.fleet.directory import FleetDirectory
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import WorkerRecord
from recursant.hot_path import build
from recursant.problems import ApiProblem
from recursant.store.sessions import SessionStore

# How long running streams may go on after we are told to stop. Ending one after its answers costs the client
# nothing: Envoy lets the response run on without us. So this only waits for requests that are still undecided.
DRAIN_SECONDS: Final = 5.0
# A scrape reads the loop's tables on the loop; one that waits longer than this fails rather than piling up.
_SCRAPE_SECONDS: Final = 5.0
# How long the first look at the fleet is waited for, and how often that is checked.
_FIRST_LOAD_SECONDS: Final = 3.0
_FIRST_LOAD_POLL_SECONDS: Final = 0.01

# Objects made before young ones are looked through, and how many such turns an older generation waits.
_GC_THRESHOLDS: Final = (20_000, 20, 20)

_TRANSPORTS: Final[Mapping[str, Callable[..., Transport]]] = {"lean": LeanTransport, "grpcio": GrpcioTransport}

_log = logging.getLogger(__name__)


async def serve(config: Config, stop: asyncio.Event, *, transport: str = "lean", share: Share | None = None) -> None:
    """Answer ext_proc streams on `config.extproc.listen` until `stop` is set, then drain.

    Args:
        config: the whole configuration.
        stop: set by the caller, for instance on a signal.
        transport: `lean` or `grpcio`.
        share: which of several processes of this host this is, with its part of the addresses; None: the only one.

    Raises:
        AddressError: a listening address cannot be used.
        SharedFileError: the file that the processes share cannot be used.
        OSError: the metrics port cannot be used.
        ValueError: no such transport.
    """
    if transport not in _TRANSPORTS:
        raise ValueError(f"no transport {transport!r}: expected one of {', '.join(_TRANSPORTS)}")
    neighbours = None if share is None else Neighbours(config, share)
    process = 1 if share is None else share.process
    listen = config.extproc.listen if share is None else config.extproc.listen_of(process)
    _log.info("recursant %s", build())
    directory = FleetDirectory(config, name="extproc", judges=True)
    table = FleetTable(None if neighbours is None else neighbours.slots, config.admission)
    recorder = Recorder()
    gateway = Gateway(
        config=config,
        table=table,
        recorder=recorder,
        clock=time.monotonic,
        rng=random.Random(),
        ready=lambda: directory.loaded,
        settled=lambda: directory.settled(time.monotonic()),
        evidence=directory.ward.witness,
    )

    runner = DeskRunner(lambda now: desk.run(now), time.monotonic)
    queue: HoldQueue[Ticket] = HoldQueue(config.limits.held_requests, config.admission.ageing_s)
    line = None if neighbours is None else neighbours.line(gateway)
    desk: Desk
    if line is None:
        desk = Desk(gateway, queue, runner.wake)
    else:
        desk = shared = SharedDesk(gateway, queue, runner.wake, line)
        line.attach(shared.answered, shared.waiting)
    decisions = DecisionLog(config.decisions, config.routing, table, clock=time.monotonic, rng=random.Random())

    def known(record: WorkerRecord) -> None:
        try:
            table.upsert(record)
        except ColumnsFullError as error:
            assert neighbours is not None  # noqa: S101 - for the type checker; counts of our own have no end
            neighbours.no_room(record.worker_id, error)
            return
        state = record.state
        gateway.affinity.observe(record.worker_id, state.incarnation, time.monotonic())
        if state.HasField("finished_requests"):
            gateway.calibration.reported(
                record.worker_id,
                state.incarnation,
                state.finished_requests,
                state.finished_prompt_tokens,
                state.finished_answer_tokens if state.HasField("finished_answer_tokens") else None,
            )
        desk.capacity_changed(runner.wake_for_report)

    def gone(worker_id: str) -> None:
        table.remove(worker_id)
        recorder.forget_worker(worker_id)
        gateway.calibration.forget(worker_id)
        gateway.affinity.forget(worker_id)

    directory.subscribe(known, gone)
    sharing = _session_sharing(config, gateway)

    def policies_changed(policies: tuple[AgentPolicy, ...]) -> None:
        gateway.set_policies(policies)
        recorder.keep_agents(policy.agent_id for policy in policies)
        directory.set_agents(policies)

    def rules_changed(rules: GatewayRules) -> None:
        gateway.set_rules(rules)
        table.set_admission(rules.admission)
        decisions.set_routing(rules.routing)
        desk.set_limits(rules.limits.held_requests, rules.admission.ageing_s)

    client = _policy_client(config, policies_changed, rules_changed)
    server: Transport = _TRANSPORTS[transport](
        sessions(gateway, desk, decisions), max_message_bytes=config.limits.body_bytes + MESSAGE_MARGIN_BYTES
    )

    def gauges() -> Gauges:
        return Gauges(
            inflight=table.in_flight(),
            workers=table.statuses(),
            snapshot_age_s=directory.snapshot_age_s(time.monotonic()),
            redis_up=directory.redis_up,
            queue_depth=desk.depth(),
            transport=server.stats,
            isolation=directory.ward.figures(),
            estimates=gateway.calibration.estimates(),
            remembered=(len(gateway.affinity.sessions), len(gateway.affinity.prefixes)),
            unshared=0 if sharing is None else sharing.unshared,
        )

    inspector = Inspector(gateway, desk, decisions)
    metrics_port = config.extproc.metrics_ports[process - 1]
    async with (
        contextlib.nullcontext() if neighbours is None else neighbours.reaping(desk.capacity_changed),
        contextlib.nullcontext() if line is None else line.running(),
        _following(directory, client, sharing) as following,
        _metrics((config.extproc.metrics_host, metrics_port), recorder, gauges, inspector),
    ):
        try:
            await _fleet_known(directory)
            if sharing is not None:
                await sharing.load()
            for bound in await server.listen(listen):
                _log.info("listening on %s (%s transport)", bound, transport)
            _collect_seldom()
            await _until(stop, following)
        finally:
            await server.drain(DRAIN_SECONDS)
            runner.stop()


def _policy_client(
    config: Config,
    on_policies: Callable[[tuple[AgentPolicy, ...]], None],
    on_rules: Callable[[GatewayRules], None],
) -> PolicyClient:
    """The client that follows policies and rules, with those that the last run kept in force."""
    client = PolicyClient(
        target_of(config.xds.host, config.xds.port),
        node_id(),
        config.agents,
        Path(config.extproc.state_dir) if config.extproc.state_dir else None,
        on_policies,
        rules=GatewayRules.of(config),
        on_rules=on_rules,
    )
    client.restore()
    return client


def _session_sharing(config: Config, gateway: Gateway) -> SessionSharing | None:
    """What keeps sessions in step with other gateways, where there is a Redis."""
    if config.redis.url is None:
        return None
    store = SessionStore(
        config.redis.url,
        sender=f"{os.getpid()}-{random.getrandbits(64):016x}",
        ttl_s=lambda: gateway.config.routing.affinity.session_ttl_s,
    )
    return SessionSharing(gateway.affinity, store, config.routing.affinity.sessions)


@contextlib.asynccontextmanager
async def _following(
    directory: FleetDirectory, client: PolicyClient, sharing: SessionSharing | None
) -> AsyncIterator[asyncio.Task[None]]:
    """Follow the fleet and the policies in the background."""

    async def follow() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(directory.run())
            tasks.create_task(client.run())
            if sharing is not None:
                tasks.create_task(sharing.run())

    task = asyncio.create_task(follow())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _collect_seldom() -> None:
    """Leave what was loaded so far out of every garbage collection, and collect less often.

    A request makes no reference cycles, and walking the modules again and again took 3 % of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def _fleet_known(directory: FleetDirectory) -> None:
    """Wait for the first look at the fleet: before it, Envoy routes better without us."""
    deadline = time.monotonic() + _FIRST_LOAD_SECONDS
    while not directory.loaded and time.monotonic() < deadline:  # noqa: ASYNC110 - the directory has a flag only
        await asyncio.sleep(_FIRST_LOAD_POLL_SECONDS)


async def _until(stop: asyncio.Event, following: asyncio.Task[None]) -> None:
    """Wait for `stop`. The directory never ends by itself: if it does, that is a bug, and it is raised here."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((stopping, following), return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
    finally:
        stopping.cancel()


@contextlib.asynccontextmanager
async def _metrics(
    address: tuple[str, int], recorder: Recorder, gauges: Callable[[], Gauges], inspector: Inspector
) -> AsyncIterator[None]:
    """Serve the metrics, and what operators may ask, from a thread of their own."""
    loop = asyncio.get_running_loop()

    async def read() -> Gauges:
        return gauges()

    def read_on_loop() -> Gauges:
        return asyncio.run_coroutine_threadsafe(read(), loop).result(_SCRAPE_SECONDS)

    async def inspect(path: str, parameters: Parameters) -> dict[str, Any] | ApiProblem | None:
        return inspector.answer(path, parameters)

    def inspect_on_loop(path: str, parameters: Parameters) -> dict[str, Any] | ApiProblem | None:
        return asyncio.run_coroutine_threadsafe(inspect(path, parameters), loop).result(_SCRAPE_SECONDS)

    registry = CollectorRegistry()
    registry.register(ExtProcCollector(recorder, read_on_loop))
    ProcessCollector(registry=registry)
    host, port = address
    server, thread = start_http_server(port, host, registry)
    metrics = server.get_app()
    assert metrics is not None  # noqa: S101 - for the type checker; it was set as the server was made
    server.set_app(inspection_app(metrics, inspect_on_loop))
    try:
        yield
    finally:
        # Off the loop: a scrape in progress still needs it.
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)
