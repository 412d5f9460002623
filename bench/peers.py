"""Our gateway beside others that can be had from PyPI: CPU of all their processes per request, and latency.

    python -m bench.peers [--quick]

Each peer of bench/peers.txt gets a virtual environment of its own under bench/out/peers. All stand before the same
backend, get the same requests in turns, and one that does not install or start is reported with its reason. The
comparison is of what they cost, not of what they do: docs/performance.md says how they differ.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop
import yaml

from bench import fleets
from bench.gateway.cases import HEADERS_AGENT, LEAN
from bench.gateway.rig import Rig, free_port
from bench.http_backend import addresses
from bench.processes import Child, child, cpu_seconds, tree
from recursant.names import AGENT_ID, LOOPBACK

OUT = Path(__file__).parent / "out"
PINNED = Path(__file__).parent / "peers.txt"
WORKERS = 10
CONNECTIONS = (1, 32)
REQUESTS = (300, 1_280)
START_S = 90.0
OURS = "recursant"


@dataclass(frozen=True)
class Row:
    """One line of the table: medians over the rounds; `cpu_us_per_request` is that of all processes together."""

    server: str
    version: str
    connections: int
    cpu_us_per_request: float
    p50_ms: float
    p99_ms: float
    rps: float
    resident_mib: float


@dataclass(frozen=True)
class Absent:
    """A peer that could not be measured, and why."""

    server: str
    reason: str


Command = Callable[[Path, int, Sequence[str], Path], list[str]]


def _router(executable: str, *arguments: str, quiet: str = "warn") -> Command:
    """The three routers in Rust share their flags."""

    def command(binaries: Path, port: int, urls: Sequence[str], _folder: Path) -> list[str]:
        return [
            *(str(binaries / executable), *arguments, "--host", LOOPBACK, "--port", str(port)),
            *("--worker-urls", *urls, "--policy", "round_robin"),
            *("--prometheus-host", LOOPBACK, "--prometheus-port", str(free_port()), "--log-level", quiet),
        ]

    return command


def _sglang(binaries: Path, port: int, urls: Sequence[str], folder: Path) -> list[str]:
    router = _router("python", "-m", "sglang_router.launch_router")
    return router(binaries, port, urls, folder)


def _litellm(binaries: Path, port: int, urls: Sequence[str], folder: Path) -> list[str]:
    models = [
        {
            "model_name": fleets.MODEL,
            "litellm_params": {"model": f"openai/{fleets.MODEL}", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for url in urls
    ]
    config = folder / "litellm.yaml"
    config.write_text(yaml.safe_dump({"model_list": models}))
    return [
        *(str(binaries / "litellm"), "--config", str(config), "--host", LOOPBACK, "--port", str(port)),
        *("--num_workers", "1"),
    ]


COMMANDS: dict[str, Command] = {
    "vllm-router": _router("vllm-router", quiet="warning"),
    "smg": _router("smg", "launch"),
    "sglang-router": _sglang,
    "litellm": _litellm,
}
# No peer asks the internet for anything while it is measured, nor goes through a proxy to the backend.
_ENVIRONMENT = {"NO_PROXY": "*", "no_proxy": "*", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}


def pinned() -> dict[str, str]:
    """What bench/peers.txt asks for, by name."""
    lines = PINNED.read_text().split()
    return {line.split("==")[0].split("[")[0]: line for line in lines}


def install(name: str, requirement: str) -> str | None:
    """Install a peer into its own environment, once; what went wrong, or None."""
    folder = OUT / "peers" / name
    done = folder / f"installed-{requirement.split('==')[1]}"
    if done.exists():
        return None
    print(f"installing {requirement}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    result = subprocess.run([*pip, "--only-binary", ":all:", requirement], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return "does not install: " + (result.stderr.strip().splitlines() or ["no reason given"])[-1]
    done.touch()
    return None


@dataclass
class Peer:
    """A running gateway: where it is reached, and the process whose tree is measured."""

    name: str
    version: str
    port: int
    roots: list[int]

    def cpu(self) -> float:
        return sum(cpu_seconds(pid) for root in self.roots for pid in tree(root))

    def resident_mib(self) -> float:
        """Proportional: what several processes share is counted once."""
        total = 0
        for root in self.roots:
            for pid in tree(root):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1])
        return total / 1_024


def request() -> str:
    document = {"model": fleets.MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "fox " * 50}]}
    body = json.dumps(document)
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nuser-agent: bench\r\n{AGENT_ID}: {HEADERS_AGENT}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    )


def answers(port: int) -> bool:
    """Does a chat request get its 200?"""
    body = request().partition("\r\n\r\n")[2]
    asked = urllib.request.Request(
        f"http://{LOOPBACK}:{port}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


@contextlib.asynccontextmanager
async def running(name: str, version: str, urls: Sequence[str], folder: Path) -> AsyncIterator[Peer]:
    port = free_port()
    binaries = OUT / "peers" / name / "bin"
    log = folder / "logs" / name
    command = COMMANDS[name](binaries, port, urls, folder)
    async with child(command, log, env={**os.environ, **_ENVIRONMENT}) as process:
        await _until_it_answers(process, port)
        yield Peer(name, version, port, [process.pid])


async def _until_it_answers(process: Child, port: int) -> None:
    deadline = asyncio.get_running_loop().time() + START_S
    while not await asyncio.to_thread(answers, port):
        if process.ended or asyncio.get_running_loop().time() > deadline:
            raise RuntimeError("it ended" if process.ended else f"no answer within {START_S:g} s")
        await asyncio.sleep(0.5)


async def measure(rounds: int, share: float) -> tuple[list[Row], list[Absent]]:
    absent: list[Absent] = []
    wanted = pinned()
    for name, requirement in list(wanted.items()):
        if (problem := install(name, requirement)) is not None:
            absent.append(Absent(name, problem))
            del wanted[name]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        async with contextlib.AsyncExitStack() as stack:
            rig = await stack.enter_async_context(Rig(folder, (WORKERS,), (LEAN,)).running())
            urls = [f"http://{address}:{rig.backend_port}" for address in addresses(WORKERS)]
            roots = [rig.envoy.pid, rig.servers["lean", WORKERS].pid]
            peers = [Peer(OURS, "lean", rig.ports[f"lean-{WORKERS}"], roots)]
            for name, requirement in wanted.items():
                try:
                    version = requirement.split("==")[1]
                    peers.append(await stack.enter_async_context(running(name, version, urls, folder)))
                except RuntimeError as error:
                    lines = (folder / "logs" / name).read_text(errors="replace").strip().splitlines()
                    absent.append(Absent(name, f"does not start: {error}: {(lines or ['no output'])[-1][:200]}"))
            return await _rounds(rig, peers, rounds, share), absent


async def _rounds(rig: Rig, peers: list[Peer], rounds: int, share: float) -> list[Row]:
    samples: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for turn in range(rounds + 1):
        print(f"round {turn} of {rounds}" if turn else "warming up", flush=True)
        for connections, requests in zip(CONNECTIONS, REQUESTS, strict=True):
            for peer in peers[turn % len(peers) :] + peers[: turn % len(peers)]:
                before = peer.cpu()
                count = max(round(requests * (share if turn else 0.25)), connections)
                result: dict[str, Any] = await rig.load.ask(
                    host=LOOPBACK, port=peer.port, connections=connections, requests=count, request=request()
                )
                if result["failed"]:
                    raise RuntimeError(f"{peer.name}: {result['failed']}")
                micros = result["micros"]
                served = len(micros)
                spent = (peer.cpu() - before) / served * 1e6
                figures = (spent, micros[served // 2] / 1e3, micros[served * 99 // 100] / 1e3)
                if turn:
                    found = samples.setdefault((peer.name, connections), [])
                    found.append((*figures, served / result["seconds"]))
    rows = []
    by_name = {peer.name: peer for peer in peers}
    for (name, connections), found in samples.items():
        cost, p50, p99, rate = (statistics.median(column) for column in zip(*found, strict=True))
        peer = by_name[name]
        latency = (round(p50, 3), round(p99, 3))
        resident = round(peer.resident_mib())
        rows.append(Row(name, peer.version, connections, round(cost, 1), *latency, round(rate), resident))
    return sorted(rows, key=lambda row: (row.connections, row.cpu_us_per_request))


def show(rows: list[Row], absent: list[Absent]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120)
    table = Table(title=f"Gateways before {WORKERS} workers, per request, medians (CPU of all their processes)")
    for column in ("server", "version", "clients", "CPU µs", "p50 ms", "p99 ms", "req/s", "MiB"):
        table.add_column(column, justify="left" if column in ("server", "version") else "right")
    for row in rows:
        latency = (f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}")
        figures = (f"{row.cpu_us_per_request:.0f}", *latency, f"{row.rps:.0f}", f"{row.resident_mib:.0f}")
        table.add_row(row.server, row.version, str(row.connections), *figures)
    console.print(table)
    for each in absent:
        console.print(f"{each.server}: {each.reason}")


def run(*, quick: bool) -> None:
    """Install, measure, print, write bench/out/peers.json."""
    OUT.mkdir(exist_ok=True)
    rows, absent = uvloop.run(measure(1, 0.3) if quick else measure(5, 1.0))
    show(rows, absent)
    document = {"rows": [asdict(row) for row in rows], "absent": [asdict(each) for each in absent]}
    (OUT / "peers.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works, not to quote")
    run(quick=parser.parse_args().quick)
