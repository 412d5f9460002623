"""Our gateway beside others that can be had from PyPI: CPU of all their processes per request, and latency.

    python -m bench.peers [--quick]

Each peer of bench/peers.txt gets a virtual environment of its own under bench/out/peers. All stand before the same
backend, get the same requests in turns, and one that does not install, start or answer is reported with its reason.
The comparison is of what they cost, not of what they do: docs/performance.md says how they differ.
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench import compiled
from bench.gateway.cases import COMPILED, LEAN
from bench.gateway.rig import Rig
from bench.http_backend import addresses
from bench.peer_servers import OUT, Peer, install, pinned, request, running
from recursant.names import LOOPBACK

WORKERS = 10
CONNECTIONS = (1, 32)
REQUESTS = (300, 1_280)
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


@dataclass(frozen=True)
class Sample:
    """What one turn of one gateway gave."""

    cpu_us: float
    p50_ms: float
    p99_ms: float
    rps: float


async def measure(rounds: int, share: float) -> tuple[list[Row], list[Absent]]:
    """Install and start what can be, then let all take turns; `share` scales the requests of each turn."""
    absent: list[Absent] = []
    wanted = pinned()
    for name, requirement in list(wanted.items()):
        if (problem := install(name, requirement)) is not None:
            absent.append(Absent(name, problem))
            del wanted[name]
    transports = [LEAN] if compiled.compiler() is None else [LEAN, COMPILED]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        async with contextlib.AsyncExitStack() as stack:
            rig = await stack.enter_async_context(Rig(folder, (WORKERS,), transports).running())
            urls = [f"http://{address}:{rig.backend_port}" for address in addresses(WORKERS)]
            peers = [
                Peer(OURS, each, rig.ports[f"{each}-{WORKERS}"], [rig.envoy.pid, rig.servers[each, WORKERS].pid])
                for each in transports
            ]
            for name, requirement in wanted.items():
                try:
                    version = requirement.split("==")[1]
                    peers.append(await stack.enter_async_context(running(name, version, urls, folder)))
                except RuntimeError as error:
                    absent.append(Absent(name, str(error)))
            return await rounds_of(rig, peers, absent, rounds, share), absent


async def rounds_of(rig: Rig, peers: list[Peer], absent: list[Absent], rounds: int, share: float) -> list[Row]:
    samples: dict[tuple[str, str, int], list[Sample]] = {}
    for turn in range(rounds + 1):
        print(f"round {turn} of {rounds}" if turn else "warming up", flush=True)
        for connections, requests in zip(CONNECTIONS, REQUESTS, strict=True):
            first = turn % len(peers)
            for peer in peers[first:] + peers[:first]:
                count = max(round(requests * (share if turn else 0.25)), connections)
                try:
                    sample = await _sample(rig, peer, connections, count)
                except (RuntimeError, OSError) as error:
                    if peer.name == OURS:
                        raise
                    absent.append(Absent(peer.name, f"fails: {error}"))
                    peers.remove(peer)
                    continue
                if turn:
                    samples.setdefault((peer.name, peer.version, connections), []).append(sample)
    rows = [
        row_of(peer, connections, samples[peer.name, peer.version, connections])
        for peer in peers
        for connections in CONNECTIONS
    ]
    return sorted(rows, key=lambda row: (row.connections, row.cpu_us_per_request))


async def _sample(rig: Rig, peer: Peer, connections: int, requests: int) -> Sample:
    before = peer.cpu()
    result: dict[str, Any] = await rig.load.ask(
        host=LOOPBACK, port=peer.port, connections=connections, requests=requests, request=request()
    )
    if result["failed"]:
        raise RuntimeError(f"{peer.name} at {connections} connections: {result['failed']}")
    micros = result["micros"]
    served = len(micros)
    spent = (peer.cpu() - before) / served * 1e6
    return Sample(spent, micros[served // 2] / 1e3, micros[served * 99 // 100] / 1e3, served / result["seconds"])


def row_of(peer: Peer, connections: int, samples: list[Sample]) -> Row:
    """The medians."""
    return Row(
        peer.name,
        peer.version,
        connections,
        round(statistics.median(each.cpu_us for each in samples), 1),
        round(statistics.median(each.p50_ms for each in samples), 3),
        round(statistics.median(each.p99_ms for each in samples), 3),
        round(statistics.median(each.rps for each in samples)),
        round(peer.resident_mib()),
    )


COLUMNS = ("server", "version", "clients", "CPU µs", "p50 ms", "p99 ms", "req/s", "MiB")
_LEFT = ("server", "version")


def cells(row: Row) -> list[str]:
    """The texts of a row, as `COLUMNS` has them."""
    latency = (f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}")
    rest = (f"{row.cpu_us_per_request:.0f}", *latency, f"{row.rps:.0f}", f"{row.resident_mib:.0f}")
    return [row.server, row.version, str(row.connections), *rest]


def markdown(rows: list[Row]) -> str:
    """The table for docs/performance.md."""
    lines = [COLUMNS, ["---" if each in _LEFT else "---:" for each in COLUMNS], *(cells(row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def show(rows: list[Row], absent: list[Absent]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120)
    table = Table(title=f"Gateways before {WORKERS} workers, per request, medians (CPU of all their processes)")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in _LEFT else "right")
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)
    for each in absent:
        console.print(f"{each.server}: {each.reason}")


def run(*, quick: bool) -> None:
    """Install, measure, print, write bench/out/peers.json."""
    OUT.mkdir(exist_ok=True)
    before = os.getloadavg()[0]
    rows, absent = uvloop.run(measure(1, 0.3) if quick else measure(5, 1.0))
    show(rows, absent)
    print(f"load average of the last minute: {before:.1f} before, {os.getloadavg()[0]:.1f} after")
    document = {"rows": [asdict(row) for row in rows], "absent": [asdict(each) for each in absent]}
    (OUT / "peers.json").write_text(json.dumps(document, indent=2) + "\n")
    (OUT / "peers.md").write_text(markdown(rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works, not to quote")
    run(quick=parser.parse_args().quick)
