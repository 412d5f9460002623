"""Everything that runs: backend, load, fleets, the servers under test, and the one Envoy before them."""

import contextlib
import json
import shutil
import socket
import urllib.request
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench import compiled, fleets, grpc_go
from bench.gateway.cases import (
    BODY_AGENT,
    COMPILED,
    DIRECT,
    HEADERS_AGENT,
    LEAN,
    NOOP_GO,
    NOOPS,
    PLAIN,
    USUAL_WORKERS,
    Case,
    Mode,
)
from bench.http_backend import addresses
from bench.processes import PYTHON, Child, child, cpu_seconds, helper, ready, until
from bench.static_envoy import Gate, bootstrap
from recursant.config.model import Config
from recursant.names import LOOPBACK
from recursant.store.embedded import embedded_redis_command


def free_port(host: str = LOOPBACK) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port


def accepts(port: int) -> bool:
    """Does somebody listen there?"""
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


class Rig:
    """Backend, load, Redis and beats of each fleet, extproc processes, no-ops, Envoy.

    Attributes:
        transports: those of `cases.OURS` that run, one process for each fleet.
        noops: those of `cases.NOOPS` that run.
        servers: the processes under test, by server and workers.
        ports: of Envoy's listeners, by name.
    """

    def __init__(
        self, folder: Path, sizes: Sequence[int], transports: Sequence[str], noops: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.transports = tuple(transports)
        self.noops = tuple(noops)
        self._sizes = tuple(sizes)
        self.backend_port = 0
        self.load: Child
        self.backend: Child
        self.envoy: Child
        self.servers: dict[tuple[str, int], Child] = {}
        self.ports: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Rig"]:
        """Start everything, and end it; where that fails, show what the processes said."""
        try:
            async with self._started():
                yield self
        except RuntimeError:
            for log in sorted((self.folder / "logs").iterdir()):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-2_000:]}")
            raise

    @contextlib.asynccontextmanager
    async def _started(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            folder = self.folder
            enter = stack.enter_async_context
            self.backend_port = free_port(addresses(1)[0])
            logs = folder / "logs"
            logs.mkdir()
            if COMPILED in self.transports:
                await compiled.build(folder / COMPILED)
            commands = {noop: await self._noop_command(noop) for noop in self.noops}
            arguments = (str(self.backend_port), str(max(self._sizes)))
            self.backend = await enter(helper("bench.http_backend", logs / "backend", *arguments))
            self.load = await enter(helper("bench.http_load", logs / "load"))
            gates = []
            for size in self._sizes:
                redis_port = free_port()
                url = f"redis://{LOOPBACK}:{redis_port}/0"
                redis = await enter(child(embedded_redis_command(folder, port=redis_port), logs / f"redis-{size}"))
                await until(lambda port=redis_port: accepts(port), "Redis listens", redis)
                publisher = (url, str(size), str(self.backend_port))
                await enter(helper("bench.fleets", logs / f"beats-{size}", *publisher))
                for transport in self.transports:
                    path = folder / f"{transport}-{size}.sock"
                    self.servers[transport, size] = await enter(self._extproc(transport, size, url, path))
                    gates.append(Gate(f"{transport}-{size}", size, str(path)))
                gates.append(Gate(f"{PLAIN}-{size}", size, None))
            for noop, command in commands.items():
                paths = {agent: str(folder / f"{noop}-{agent}.sock") for agent in (HEADERS_AGENT, BODY_AGENT)}
                self.servers[noop, USUAL_WORKERS] = await enter(ready((*command, *paths.values()), logs / noop))
                gates += [Gate(f"{noop}-{agent}", USUAL_WORKERS, path) for agent, path in paths.items()]
            await self._start_envoy(stack, gates)
            yield

    @contextlib.asynccontextmanager
    async def _extproc(self, transport: str, size: int, redis_url: str, path: Path) -> AsyncIterator[Child]:
        config = self.folder / f"{transport}-{size}.yaml"
        config.write_text(yaml.safe_dump(configuration(redis_url, path)))
        # A module that is run by its name comes from the working directory first.
        options: dict[str, Any] = {"cwd": self.folder / COMPILED} if transport == COMPILED else {}
        wanted = LEAN if transport == COMPILED else transport
        command = (PYTHON, "-m", "recursant.cli", "serve", "extproc", "--config", str(config), "--transport", wanted)
        async with child(command, self.folder / "logs" / f"{transport}-{size}", **options) as running:
            await until(path.exists, "extproc listens", running)
            yield running

    async def _noop_command(self, noop: str) -> tuple[str, ...]:
        if noop == NOOP_GO:
            return (str(await grpc_go.build(self.folder / noop)),)
        return (PYTHON, "-m", "bench.noop_server")

    async def _start_envoy(self, stack: contextlib.AsyncExitStack, gates: list[Gate]) -> None:
        fleet_records = {size: fleets.records(size, self.backend_port) for size in self._sizes}
        config = Config.model_validate(configuration("unix:///unused", Path("/unused")))
        target = self.folder / "envoy.pb"
        target.write_bytes(bootstrap(config, gates, dict(fleet_records)))
        admin = self.folder / "admin"
        binary = shutil.which("envoy", path=str(Path(PYTHON).parent)) or "envoy"
        command = (
            *(binary, "-c", str(target), "--admin-address-path", str(admin), "--concurrency", "1"),
            *("--disable-hot-restart", "--log-level", "error"),
        )
        log = self.folder / "logs" / "envoy"
        self.envoy = await stack.enter_async_context(child(command, log))
        await until(lambda: admin.exists() and admin.read_text(), "Envoy's admin interface is there", self.envoy)
        url = f"http://{admin.read_text()}/listeners?format=json"

        def listening() -> bool:
            with urllib.request.urlopen(url, timeout=10) as response:
                found = json.load(response).get("listener_statuses", [])
            self.ports = {each["name"]: each["local_address"]["socket_address"]["port_value"] for each in found}
            return len(self.ports) == len(gates)

        await until(listening, "Envoy listens", self.envoy)

    def target(self, case: Case, agent: str) -> tuple[str, int, Child]:
        """Where to send a case's requests, and the process that is measured."""
        if case.server == DIRECT:
            return addresses(1)[0], self.backend_port, self.backend
        if case.server == PLAIN:
            return LOOPBACK, self.ports[f"{PLAIN}-{case.workers}"], self.envoy
        if case.server in NOOPS:
            return LOOPBACK, self.ports[f"{case.server}-{agent}"], self.servers[case.server, case.workers]
        return LOOPBACK, self.ports[f"{case.server}-{case.workers}"], self.servers[case.server, case.workers]

    async def sample(self, case: Case, mode: Mode, requests: int) -> tuple[dict[str, Any], float, float]:
        """One run: what the load saw, CPU seconds of the measured process, CPU seconds of Envoy."""
        host, port, process = self.target(case, mode.agent)
        if process.ended:
            raise RuntimeError(f"{case}: the process has ended")
        before = cpu_seconds(process.pid), cpu_seconds(self.envoy.pid)
        result: dict[str, Any] = await self.load.ask(
            host=host, port=port, connections=case.connections, requests=requests, request=mode.request
        )
        if result["failed"]:
            raise RuntimeError(f"{case}: {result['failed']}")
        return result, cpu_seconds(process.pid) - before[0], cpu_seconds(self.envoy.pid) - before[1]


def configuration(redis_url: str, listen: Path) -> dict[str, Any]:
    """The gateway's configuration: two agents that differ in whether their bodies are read."""
    agent = {"model_family": fleets.FAMILY, "min_vram_mb": 3_200, "latency_sla_ms": 800, "priority": 10}
    return {
        "agents": [
            {"agent_id": HEADERS_AGENT, **agent},
            {"agent_id": BODY_AGENT, "inspect_body": "always", **agent},
        ],
        "extproc": {"listen": [f"unix:{listen}"], "metrics_port": free_port()},
        "redis": {"url": redis_url},
        "probes": {"enabled": False},
    }
