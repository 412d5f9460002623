"""The whole benchmark: start, measure, print, write."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import uvloop

from bench import compiled, grpc_go
from bench.gateway.cases import COMPILED, NOOP_GO, NOOPS, OURS, WORKERS
from bench.gateway.rig import Rig
from bench.gateway.rounds import idle, rounds_of
from bench.gateway.rows import Beats, Row
from bench.gateway.table import document, show

OUT = Path(__file__).parent.parent / "out"


def skipped() -> dict[str, str]:
    """The servers that cannot be had on this machine, and why, in a line."""
    result = {}
    if compiled.compiler() is None:
        result[COMPILED] = f"{COMPILED}: skipped: no C compiler"
    if (reason := grpc_go.missing()) is not None:
        result[NOOP_GO] = reason
    return result


async def measure(rounds: int, share: float) -> tuple[list[Row], list[Beats]]:
    """Run everything; `share` scales the requests of each sample."""
    absent = skipped()
    transports = [each for each in OURS if each not in absent]
    noops = [each for each in NOOPS if each not in absent]
    with tempfile.TemporaryDirectory() as folder:
        async with Rig(Path(folder), WORKERS, transports, noops).running() as rig:
            beats = await idle(rig)
            return await rounds_of(rig, beats, rounds, share), beats


def run(*, quick: bool) -> None:
    """Measure, print, write."""
    rows, beats = uvloop.run(measure(2, 0.3) if quick else measure(5, 1.0))
    show(rows, beats)
    absent = skipped()
    for reason in absent.values():
        print(reason)
    if NOOP_GO not in absent:
        print(f"{NOOP_GO}: {grpc_go.versions()}")
    OUT.mkdir(exist_ok=True)
    (OUT / "gateway.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    (OUT / "gateway-beats.json").write_text(json.dumps([asdict(each) for each in beats], indent=2) + "\n")
    (OUT / "gateway.md").write_text(document(rows))
