"""Do short urgent requests wait behind long ones? Through the whole product, on workers that saturate.

    python -m bench.head_of_line [--seconds S]

Nine in ten requests are short lookups of the class high, one in ten is a report of about eight seconds of the class
low; more reports come than the workers can take. The same lookups come three times in one run: alone, with the
reports under our admission, and with the reports where all requests are of one agent and class, first in, first out.
Writes bench/out/head_of_line.json.
"""

import argparse
import asyncio
import json
import math
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from tests.e2e.harness.stack import Stack

OUT = Path(__file__).parent / "out"
MODEL = "Qwen/Qwen2.5-7B-Instruct"
OTHER_MODEL = "microsoft/Phi-3-mini-4k-instruct"
WORKERS = 2
MAX_NUM_SEQS = 8
LOOKUPS_PER_S = 18.0
REPORTS_PER_S = 2.0
LOOKUP_TOKENS = 8
REPORT_S = 8.0
# The target for the high class, loaded over unloaded.
TARGET = 2.0

CONFIG = """
routing: {timeout_ms: 240000}
agents:
  - {agent_id: lookup, model_family: qwen, class: high, max_new_tokens: 8}
  - {agent_id: report, model_family: qwen, class: low}
  - {agent_id: fifo, model_family: qwen, class: normal}
"""


@dataclass(frozen=True)
class Row:
    """One phase; times in milliseconds, from a request to the end of its answer.

    Attributes:
        lookups, reports: how many were answered 200.
        failed: everything else.
        ratio: of the lookups' P99 over the one without load.
    """

    phase: str
    lookups: int
    reports: int
    failed: int
    lookup_p50_ms: float
    lookup_p99_ms: float
    report_p50_ms: float | None
    ratio: float


@dataclass(frozen=True)
class Times:
    """Seconds that the answered requests of one kind took, sorted, and how many others there were."""

    answered: list[float]
    failed: int


def percentile(values: list[float], share: float) -> float:
    """The nearest-rank percentile of sorted values."""
    return values[max(math.ceil(share * len(values)) - 1, 0)]


async def _send(client: httpx.AsyncClient, agent: str, tokens: int) -> tuple[bool, float]:
    began = time.perf_counter()
    body = Stack.chat_body("x", max_tokens=tokens, ignore_eos=True)
    answer = await client.post("/v1/chat/completions", json=body, headers={"x-agent-id": agent})
    return answer.status_code == 200, time.perf_counter() - began


async def _stream(client: httpx.AsyncClient, agent: str, tokens: int, per_s: float, seconds: float) -> Times:
    """Send at a fixed pace, whatever comes back: whoever is slow does not slow the next one down."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(round(per_s * seconds)):
            await asyncio.sleep(max(began + number / per_s - loop.time(), 0))
            tasks.append(group.create_task(_send(client, agent, tokens)))
    done = [task.result() for task in tasks]
    return Times(sorted(took for ok, took in done if ok), sum(not ok for ok, _ in done))


async def measure(stack: Stack, seconds: float) -> list[Row]:
    """The three phases, one after the other, each until its last answer."""
    async with stack.async_client(timeout=300.0) as client:
        await _stream(client, "lookup", LOOKUP_TOKENS, LOOKUPS_PER_S, 2.0)  # warms up
        _, probe_s = await _send(client, "report", 100)
        report_tokens = round(100 * REPORT_S / probe_s)
        alone = await _stream(client, "lookup", LOOKUP_TOKENS, LOOKUPS_PER_S, seconds)
        rows = [_row("no reports", alone, None, alone)]
        for phase, lookup, report in (("our admission", "lookup", "report"), ("one class, FIFO", "fifo", "fifo")):
            reports = asyncio.create_task(_stream(client, report, report_tokens, REPORTS_PER_S, seconds + REPORT_S))
            # First the workers fill up.
            await asyncio.sleep(REPORT_S)
            lookups = await _stream(client, lookup, LOOKUP_TOKENS, LOOKUPS_PER_S, seconds)
            rows.append(_row(phase, lookups, await reports, alone))
    return rows


def _row(phase: str, lookups: Times, reports: Times | None, alone: Times) -> Row:
    p99 = percentile(lookups.answered, 0.99)
    return Row(
        phase=phase,
        lookups=len(lookups.answered),
        reports=0 if reports is None else len(reports.answered),
        failed=lookups.failed + (0 if reports is None else reports.failed),
        lookup_p50_ms=round(percentile(lookups.answered, 0.5) * 1_000, 1),
        lookup_p99_ms=round(p99 * 1_000, 1),
        report_p50_ms=None if reports is None else round(percentile(reports.answered, 0.5) * 1_000, 1),
        ratio=round(p99 / percentile(alone.answered, 0.99), 2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.head_of_line", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long lookups are sent in each phase")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), workers=1, config=CONFIG, args=["--worker-models", OTHER_MODEL])
        try:
            stack.start()
            for number in range(WORKERS):
                stack.start_sim("--worker-id", f"small-{number}", "--model", MODEL, "--max-num-seqs", str(MAX_NUM_SEQS))
            for number in range(WORKERS):
                stack.wait_worker(f"small-{number}")
            stack.wait_until(lambda: stack.chat(agent="lookup", max_tokens=1).status_code == 200)
            rows = asyncio.run(measure(stack, options.seconds))
        finally:
            stack.close()
    show(rows)


def show(rows: list[Row]) -> None:
    """Print the table, and write it down."""
    table = Table(title=f"Lookups beside {REPORT_S:g} s reports, {WORKERS} workers of {MAX_NUM_SEQS} slots")
    for column in ("phase", "lookups", "reports", "failed", "p50 ms", "p99 ms", "report p50 ms", "p99 / alone"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for row in rows:
        report = "" if row.report_p50_ms is None else f"{row.report_p50_ms:.0f}"
        counts = (row.lookups, row.reports, row.failed)
        figures = (f"{row.lookup_p50_ms:.0f}", f"{row.lookup_p99_ms:.0f}", report, f"{row.ratio:.2f}")
        table.add_row(row.phase, *map(str, counts), *figures)
    Console().print(table)
    OUT.mkdir(exist_ok=True)
    document = {"target": TARGET, "met": rows[1].ratio <= TARGET, "rows": [asdict(row) for row in rows]}
    (OUT / "head_of_line.json").write_text(json.dumps(document, indent=2) + "\n")
    print("written to bench/out/head_of_line.json; target", "met" if document["met"] else "missed")


if __name__ == "__main__":
    main()
