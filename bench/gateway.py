"""What the gateway costs: CPU per request and latency, of ours, of the yardsticks, and of nothing at all.

    python -m bench.gateway [--quick]

Every server stands behind the same Envoy, with the product's own resources, before the same backend. Runs are short
and interleaved, so that a busy machine is busy for all of them, and every figure is a median over the rounds.
Writes bench/out/gateway.json. See docs/performance.md for what the rows mean.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import socket
import statistics
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvloop
import yaml

from bench import compiled, fleets
from bench.http_backend import addresses
from bench.processes import PYTHON, Child, child, cpu_seconds, helper, until
from bench.static_envoy import Gate, bootstrap
from recursant.config.model import Config
from recursant.names import AGENT_ID, LOOPBACK
from recursant.store.embedded import embedded_redis_command

OUT = Path(__file__).parent / "out"
WORKERS = (10, 100, 1_000)
USUAL_WORKERS = 100
# `lean` with its hot path compiled.
COMPILED = "lean-compiled"
OURS = ("lean", COMPILED, "grpcio")
IDLE_S = 5.0

# The agent whose requests are decided on their headers, as agents are by default, and the same with its body read.
HEADERS_AGENT = "chat"
BODY_AGENT = "reader"


@dataclass(frozen=True)
class Mode:
    """A kind of request.

    Attributes:
        prompt_bytes: of the prompt in its body.
        agent: who sends it.
        stream: the answer comes in several chunks, the latency is that of the first.
        connections: for one sample each: alone, and enough to keep the machine busy.
        requests: of a sample, for each of `connections`.
        workers: sizes of the fleet.
    """

    name: str
    prompt_bytes: int
    agent: str
    connections: tuple[int, ...] = (1, 32)
    requests: tuple[int, ...] = (400, 1_600)
    workers: tuple[int, ...] = (USUAL_WORKERS,)
    stream: bool = False

    @property
    def request(self) -> str:
        """The bytes of a request, as text."""
        prompt = ("the quick brown fox jumps over the lazy dog " * (self.prompt_bytes // 44 + 1))[: self.prompt_bytes]
        document = {"model": "auto", "max_tokens": 64, "messages": [{"role": "user", "content": prompt}]}
        body = json.dumps(document)
        stream = "x-bench-stream: 1\r\n" if self.stream else ""
        return (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nuser-agent: bench\r\naccept: */*\r\n"
            f"authorization: Bearer {'x' * 40}\r\n{AGENT_ID}: {self.agent}\r\n{stream}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        )


MODES = (
    Mode("headers", 200, HEADERS_AGENT, workers=WORKERS),
    Mode("body-1k", 1_024, BODY_AGENT, workers=WORKERS),
    Mode("body-32k", 32 * 1_024, BODY_AGENT, requests=(200, 640)),
    Mode("body-1m", 2**20, BODY_AGENT, connections=(1, 8), requests=(24, 64)),
    Mode("stream", 200, HEADERS_AGENT, requests=(150, 960), stream=True),
)


@dataclass(frozen=True, order=True)
class Case:
    """A row of the table."""

    mode: str
    workers: int
    connections: int
    server: str


@dataclass
class Samples:
    """What the rounds gave for one case, one entry a round."""

    cpu_us: list[float] = field(default_factory=list)
    envoy_us: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    rps: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """One line of the table: medians over the rounds.

    Attributes:
        cpu_us_per_request: of the process under test, user and system: the ext_proc server (heartbeats taken off),
            Envoy for `envoy-only`, the backend for `direct`.
        envoy_us_per_request: of Envoy.
        added_p50_ms, added_p99_ms: over plain Envoy, the median of the rounds' differences.
    """

    server: str
    mode: str
    workers: int
    connections: int
    cpu_us_per_request: float
    p50_ms: float
    p99_ms: float
    rps: float
    envoy_us_per_request: float
    added_p50_ms: float | None
    added_p99_ms: float | None


@dataclass(frozen=True)
class Beats:
    """What heartbeats cost an extproc process that has nothing else to do."""

    server: str
    workers: int
    beats_per_s: float
    cpu_us_per_s: float


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
    """Everything that runs: backend, load, Redis and beats of each fleet, extproc processes, no-op, Envoy."""

    def __init__(self, folder: Path, sizes: tuple[int, ...], transports: tuple[str, ...], *, yardsticks: bool) -> None:
        self.folder = folder
        self._sizes = sizes
        self._transports = transports
        self._yardsticks = yardsticks
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
            arguments = (str(self.backend_port), str(max(self._sizes)))
            self.backend = await enter(helper("bench.http_backend", logs / "backend", *arguments))
            self.load = await enter(helper("bench.http_load", logs / "load"))
            if COMPILED in self._transports:
                await compiled.build(folder / COMPILED)
            gates = []
            for size in self._sizes:
                redis_port = free_port()
                url = f"redis://{LOOPBACK}:{redis_port}/0"
                redis = await enter(child(embedded_redis_command(folder, port=redis_port), logs / f"redis-{size}"))
                await until(lambda port=redis_port: accepts(port), "Redis listens", redis)
                publisher = (url, str(size), str(self.backend_port))
                await enter(helper("bench.fleets", logs / f"beats-{size}", *publisher))
                for transport in self._transports:
                    path = folder / f"{transport}-{size}.sock"
                    self.servers[transport, size] = await enter(self._extproc(transport, size, url, path))
                    gates.append(Gate(f"{transport}-{size}", size, str(path)))
                gates.append(Gate(f"envoy-only-{size}", size, None))
            if self._yardsticks:
                paths = {agent: folder / f"noop-{agent}.sock" for agent in (HEADERS_AGENT, BODY_AGENT)}
                noop = await enter(
                    helper("bench.noop_server", logs / "noop", *(f"unix:{path}" for path in paths.values()))
                )
                self.servers["noop-grpcio-aio", USUAL_WORKERS] = noop
                gates += [Gate(f"noop-grpcio-aio-{agent}", USUAL_WORKERS, str(path)) for agent, path in paths.items()]
            await self._start_envoy(stack, gates)
            yield

    @contextlib.asynccontextmanager
    async def _extproc(self, transport: str, size: int, redis_url: str, path: Path) -> AsyncIterator[Child]:
        config = self.folder / f"{transport}-{size}.yaml"
        config.write_text(yaml.safe_dump(configuration(redis_url, path)))
        # A module that is run by its name comes from the working directory first.
        options: dict[str, Any] = {"cwd": self.folder / COMPILED} if transport == COMPILED else {}
        wanted = "lean" if transport == COMPILED else transport
        command = (PYTHON, "-m", "recursant.cli", "serve", "extproc", "--config", str(config), "--transport", wanted)
        async with child(command, self.folder / "logs" / f"{transport}-{size}", **options) as running:
            await until(path.exists, "extproc listens", running)
            yield running

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
        if case.server == "direct":
            return addresses(1)[0], self.backend_port, self.backend
        if case.server == "envoy-only":
            return LOOPBACK, self.ports[f"envoy-only-{case.workers}"], self.envoy
        if case.server == "noop-grpcio-aio":
            return LOOPBACK, self.ports[f"noop-grpcio-aio-{agent}"], self.servers[case.server, case.workers]
        return LOOPBACK, self.ports[f"{case.server}-{case.workers}"], self.servers[case.server, case.workers]

    async def sample(self, case: Case, mode: Mode, requests: int) -> tuple[dict[str, Any], float, float]:
        """One run: what the load saw, CPU seconds of the measured process, CPU seconds of Envoy."""
        host, port, process = self.target(case, mode.agent)
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


def cases_of(mode: Mode) -> list[Case]:
    """The rows of a mode."""
    found = []
    for connections in mode.connections:
        for workers in mode.workers:
            servers = ["lean", COMPILED, "grpcio", "envoy-only"]
            if compiled.compiler() is None:
                servers.remove(COMPILED)
            if workers == USUAL_WORKERS:
                servers += ["noop-grpcio-aio", "direct"]
            found += [Case(mode.name, workers, connections, server) for server in servers]
    return found


async def measure(rounds: int, share: float) -> tuple[list[Row], list[Beats]]:
    """Run everything; `share` scales the requests of each sample."""
    with tempfile.TemporaryDirectory() as folder:
        transports = ("lean", "grpcio") if compiled.compiler() is None else ("lean", COMPILED, "grpcio")
        rig = Rig(Path(folder), WORKERS, transports, yardsticks=True)
        async with rig.running():
            beats = await idle(rig)
            return await _rounds(rig, beats, rounds, share), beats


async def idle(rig: Rig) -> list[Beats]:
    """The cost of heartbeats alone."""
    ours = {key: process for key, process in rig.servers.items() if key[0] in OURS}
    await asyncio.sleep(2.0)
    before = {key: cpu_seconds(process.pid) for key, process in ours.items()}
    await asyncio.sleep(IDLE_S)
    return [
        Beats(key[0], key[1], key[1] / fleets.BEAT_S, (cpu_seconds(ours[key].pid) - used) / IDLE_S * 1e6)
        for key, used in before.items()
    ]


async def _rounds(rig: Rig, beats: list[Beats], rounds: int, share: float) -> list[Row]:
    idle_share = {(each.server, each.workers): each.cpu_us_per_s / 1e6 for each in beats}
    modes = {mode.name: mode for mode in MODES}
    cases = [case for mode in MODES for case in cases_of(mode)]
    samples: dict[Case, Samples] = {case: Samples() for case in cases}
    for turn in range(rounds + 1):
        print(f"round {turn} of {rounds}" if turn else "warming up", flush=True)
        for case in _rotated(cases, turn):
            mode = modes[case.mode]
            requests = round(mode.requests[mode.connections.index(case.connections)] * share)
            if turn == 0:
                requests = requests // 4 or 1
            result, used, envoy_used = await rig.sample(case, mode, max(requests, case.connections))
            if turn == 0:
                continue
            micros = result["micros"]
            count = len(micros)
            used -= idle_share.get((case.server, case.workers), 0.0) * result["seconds"]
            found = samples[case]
            found.cpu_us.append(used / count * 1e6)
            found.envoy_us.append(envoy_used / count * 1e6 if case.server != "direct" else 0.0)
            found.p50_ms.append(micros[count // 2] / 1e3)
            found.p99_ms.append(micros[count * 99 // 100] / 1e3)
            found.rps.append(count / result["seconds"])
    return [_row(case, samples) for case in cases]


def _rotated(cases: list[Case], turn: int) -> Iterator[Case]:
    """Another order in each round, neighbours kept together: what is compared runs within seconds."""
    groups: dict[tuple[str, int, int], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.mode, case.workers, case.connections), []).append(case)
    for group in groups.values():
        at = turn % len(group)
        yield from group[at:] + group[:at]


def _row(case: Case, samples: dict[Case, Samples]) -> Row:
    found = samples[case]
    plain = samples[Case(case.mode, case.workers, case.connections, "envoy-only")]

    def added(mine: list[float], theirs: list[float]) -> float | None:
        if case.server in ("envoy-only", "direct"):
            return None
        return round(statistics.median(a - b for a, b in zip(mine, theirs, strict=True)), 3)

    return Row(
        case.server,
        case.mode,
        case.workers,
        case.connections,
        round(statistics.median(found.cpu_us), 1),
        round(statistics.median(found.p50_ms), 3),
        round(statistics.median(found.p99_ms), 3),
        round(statistics.median(found.rps)),
        round(statistics.median(found.envoy_us), 1),
        added(found.p50_ms, plain.p50_ms),
        added(found.p99_ms, plain.p99_ms),
    )


def go_reference(go: str | None) -> str:
    """What is said about the no-op on grpc-go; `go` is the path of a Go toolchain."""
    if go is None:
        return "noop-grpc-go: skipped: no Go toolchain"
    return f"noop-grpc-go: skipped: {go} is there, but no server for it to build (docs/performance.md)"


def show(rows: list[Row], beats: list[Beats]) -> None:
    """Print the tables; `ratio` is the CPU time against the no-op of the same mode and connections."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=140)
    noop = {(row.mode, row.connections): row.cpu_us_per_request for row in rows if row.server == "noop-grpcio-aio"}
    table = Table(title="Per request, medians over the rounds (CPU of the server under test; ratio to the no-op)")
    left = ("mode", "server")
    for column in (
        *("mode", "workers", "clients", "server", "CPU µs", "ratio", "Envoy µs"),
        *("p50 ms", "p99 ms", "added p50", "added p99", "req/s"),
    ):
        table.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        ours = row.server in (*OURS, "noop-grpcio-aio")
        ratio = f"{row.cpu_us_per_request / noop[row.mode, row.connections]:.2f}" if ours else ""
        added = ["" if each is None else f"{each:+.2f}" for each in (row.added_p50_ms, row.added_p99_ms)]
        table.add_row(
            *(row.mode, str(row.workers), str(row.connections), row.server, f"{row.cpu_us_per_request:.0f}", ratio),
            *(f"{row.envoy_us_per_request:.0f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", *added, f"{row.rps:.0f}"),
        )
    console.print(table)
    table = Table(title="Heartbeats: CPU of an idle extproc (already taken off above)")
    for column in ("server", "workers", "beats/s", "CPU µs per s", "µs per beat"):
        table.add_column(column, justify="left" if column == "server" else "right")
    for each in beats:
        per_beat = each.cpu_us_per_s / each.beats_per_s
        figures = (f"{each.beats_per_s:.0f}", f"{each.cpu_us_per_s:.0f}", f"{per_beat:.0f}")
        table.add_row(each.server, str(each.workers), *figures)
    console.print(table)
    console.print(go_reference(shutil.which("go")))
    if compiled.compiler() is None:
        console.print(f"{COMPILED}: skipped: no C compiler")


def run(*, quick: bool) -> None:
    """Measure, print, write."""
    rows, beats = uvloop.run(measure(2, 0.3) if quick else measure(5, 1.0))
    show(rows, beats)
    OUT.mkdir(exist_ok=True)
    (OUT / "gateway.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    (OUT / "gateway-beats.json").write_text(json.dumps([asdict(each) for each in beats], indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short rounds: to see that it works, not to quote")
    run(quick=parser.parse_args().quick)
