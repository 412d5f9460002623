"""The whole product under mixed load for a long time: does anything grow, stay behind or leak?

    python -m bench.soak [--minutes 30]

Starts `recursant up` on free ports. Clients ask, stream, hang up in the middle, send large and broken bodies; a
worker is killed every few seconds and comes back; an agent's policy changes all the time. Checked are: no process of
ours was restarted, every count of requests in flight is zero at the end, no descriptor stays behind, and memory is
flat: the last third is not larger than the middle one by more than a bound, the slope is shown. Exit code 1 if not.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from bench.processes import Child, child, resident_mib, until
from recursant.agents.policy import AgentPolicy
from recursant.names import AGENT_ID
from recursant.store.policies import PolicyStore, StoredPolicy
from recursant.supervise.endpoints import Endpoints, EndpointsError, read_endpoints
from recursant.supervise.plan import recursant_command

OUT = Path(__file__).parent / "out"
WATCHED = ("xds", "api")
CLIENTS = 12
WORKERS = 4
CHURN_S = 7.0
POLICY_S = 3.0
SAMPLE_S = 1.0
SETTLE_S = 20.0
# What a process may gain from the middle third to the last: caches that fill late, the allocator's own steps.
GROWTH_MIB = 8.0
# Connections that Envoy opened under load and keeps.
SPARE_DESCRIPTORS = 16
_PORTS = ("gateway", "admin", "api", "xds", "xds-metrics", "extproc-metrics")
_AGENTS = ("chat-web", "code-completion", "batch-summary", None)


@dataclass
class Sample:
    """One look at a process."""

    at_s: float
    resident_mib: float
    descriptors: int


@dataclass
class Report:
    """What came out; `problems` is empty when all is well."""

    minutes: float
    outcomes: dict[str, int]
    slope_mib_per_hour: dict[str, float] = field(default_factory=dict)
    resident_mib: dict[str, tuple[float, float]] = field(default_factory=dict)
    descriptors: dict[str, tuple[int, int]] = field(default_factory=dict)
    kills: int = 0
    policy_changes: int = 0
    problems: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def product(folder: Path, processes: int) -> AsyncIterator[Endpoints]:
    """`recursant up` with so many extproc processes, ready."""
    run_dir = folder / "run"
    ports = [argument for name in (*_PORTS, "worker") for argument in (f"--{name}-port", "0")]
    counts = ("--workers", str(WORKERS), "--extproc-processes", str(processes))
    command = recursant_command("up", "--run-dir", str(run_dir), *counts, *ports)
    log = folder / "up.log"
    async with child(command, log, cwd=folder) as running:
        await _ready(running, log)
        yield read_endpoints(run_dir)


async def _ready(running: Child, log: Path) -> None:
    try:
        await until(lambda: "ready" in log.read_text().splitlines(), "recursant up is ready", running)
    except RuntimeError:
        print((await asyncio.to_thread(log.read_text))[-3_000:], file=sys.stderr)
        raise


class Load:
    """Clients of every kind, until told to stop."""

    def __init__(self, gateway: str, rng: random.Random) -> None:
        self._rng = rng
        self._client = httpx.AsyncClient(base_url=gateway, timeout=60.0, trust_env=False)
        self.outcomes: Counter[str] = Counter()
        self._kinds: tuple[Callable[[], Coroutine[Any, Any, str]], ...] = (
            *(self._whole, self._whole, self._stream, self._hang_up, self._hang_up_early, self._large, self._broken),
        )

    async def run(self, until_s: float) -> None:
        """One client."""
        while time.monotonic() < until_s:
            kind = self._rng.choice(self._kinds)
            try:
                outcome = await kind()
            except httpx.HTTPError as error:
                # A worker that was killed in the middle of its answer.
                outcome = type(error).__name__
            self.outcomes[f"{kind.__name__.strip('_')} {outcome}"] += 1
            await asyncio.sleep(self._rng.random() * 0.1)

    async def close(self) -> None:
        await self._client.aclose()

    def _request(self, content: str = "Hello", **fields: Any) -> dict[str, Any]:
        agent = self._rng.choice(_AGENTS)
        document = {"model": "auto", "max_tokens": 12, "messages": [{"role": "user", "content": content}], **fields}
        return {"url": "/v1/chat/completions", "json": document, "headers": {} if agent is None else {AGENT_ID: agent}}

    async def _whole(self) -> str:
        return str((await self._client.post(**self._request())).status_code)

    async def _large(self) -> str:
        return str((await self._client.post(**self._request("word " * self._rng.randrange(1_000, 8_000)))).status_code)

    async def _broken(self) -> str:
        answer = await self._client.post("/v1/chat/completions", content=b'{"model": "auto", ', headers={})
        return str(answer.status_code)

    async def _stream(self) -> str:
        async with self._client.stream("POST", **self._request(stream=True)) as answer:
            async for _ in answer.aiter_bytes():
                pass
        return str(answer.status_code)

    async def _hang_up(self) -> str:
        async with self._client.stream("POST", **self._request(stream=True, max_tokens=400)) as answer:
            async for _ in answer.aiter_bytes():
                break
        return str(answer.status_code)

    async def _hang_up_early(self) -> str:
        asked = asyncio.create_task(self._client.post(**self._request(max_tokens=400)))
        await asyncio.sleep(self._rng.random() * 0.05)
        asked.cancel()
        await asyncio.wait([asked])
        return "left"


async def churn(run_dir: Path, until_s: float, rng: random.Random) -> int:
    """Kill a worker now and then; `up` starts it again. How many were killed."""
    kills = 0
    while time.monotonic() + CHURN_S < until_s:
        await asyncio.sleep(CHURN_S)
        alive = [worker.pid for worker in read_endpoints(run_dir).workers if worker.pid is not None]
        if len(alive) == WORKERS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(alive), signal.SIGKILL)
                kills += 1
    return kills


async def change_policies(redis_url: str, until_s: float) -> int:
    """Apply another version of one agent's policy again and again. How often it was taken."""
    store = PolicyStore(redis_url)
    taken = 0
    try:
        while time.monotonic() + POLICY_S < until_s:
            await asyncio.sleep(POLICY_S)
            policy = AgentPolicy(agent_id="soak", priority=taken % 20, latency_sla_ms=500 + taken % 100)
            entry = StoredPolicy.of(policy, set_by="soak", set_at_ms=round(time.time() * 1_000))
            taken += await store.swap(await store.raw("soak"), entry)
    finally:
        await store.close()
    return taken


def look(pid: int, began: float) -> Sample:
    return Sample(time.monotonic() - began, resident_mib(pid), len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208


async def watch(pids: dict[str, int], until_s: float) -> dict[str, list[Sample]]:
    """Look at the processes until the end; one that is gone is noticed by the caller."""
    began = time.monotonic()
    samples: dict[str, list[Sample]] = {name: [] for name in pids}
    while time.monotonic() < until_s:
        for name, pid in pids.items():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                samples[name].append(look(pid, began))
        await asyncio.sleep(SAMPLE_S)
    return samples


async def in_flight(urls: dict[str, str]) -> float:
    """Requests that extproc, all its processes, believes to be in flight, and streams that it has open."""
    async with httpx.AsyncClient(trust_env=False, timeout=10.0) as client:
        texts = [(await client.get(url)).text for url in urls.values()]
    counted = ("recursant_inflight_requests", "recursant_extproc_streams", "recursant_queue_depth")
    families = [family for text in texts for family in text_string_to_metric_families(text)]
    return sum(sample.value for family in families for sample in family.samples if sample.name in counted)


def slope(samples: list[Sample]) -> float:
    """Least squares over the last two thirds, MiB an hour; the first third warms up."""
    late = samples[len(samples) // 3 :]
    if len(late) < 2:
        return 0.0
    return statistics.linear_regression([s.at_s / 3_600 for s in late], [s.resident_mib for s in late]).slope


async def soak(minutes: float, processes: int = 1) -> Report:
    """Run it all."""
    rng = random.Random(4)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        async with product(folder, processes) as endpoints:
            run_dir = Path(endpoints.run_dir)
            watched = (*_extproc(endpoints), *WATCHED)
            pids = {name: endpoints.pids[name] for name in watched}
            until_s = time.monotonic() + minutes * 60
            load = Load(endpoints.gateway, rng)
            watching = asyncio.create_task(watch(pids, until_s))
            killing = asyncio.create_task(churn(run_dir, until_s, rng))
            changing = asyncio.create_task(change_policies(endpoints.redis, until_s))
            before = {name: look(pid, 0.0) for name, pid in pids.items()}
            await asyncio.gather(*(load.run(until_s) for _ in range(CLIENTS)))
            await load.close()
            report = Report(minutes, dict(sorted(load.outcomes.items())))
            samples, report.kills, report.policy_changes = await asyncio.gather(watching, killing, changing)
            await _settle(report, endpoints, pids, before)
            _judge_memory(report, samples)
            try:
                now = read_endpoints(run_dir).pids
            except EndpointsError as error:
                report.problems.append(str(error))
            else:
                report.problems += [f"{name} was restarted" for name in watched if now.get(name) != pids[name]]
    served = sum(count for outcome, count in report.outcomes.items() if outcome.endswith(" 200"))
    if not served:
        report.problems.append("no request was served")
    return report


def _extproc(endpoints: Endpoints) -> dict[str, str]:
    """The extproc processes and the URLs of their metrics."""
    return {name: url for name, url in endpoints.metrics.items() if name.startswith("extproc")}


async def _settle(report: Report, endpoints: Endpoints, pids: dict[str, int], before: dict[str, Sample]) -> None:
    """After the load everything goes back: counts to zero, descriptors to about what they were."""
    deadline = time.monotonic() + SETTLE_S
    urls = _extproc(endpoints)
    left = await in_flight(urls)
    while left and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        left = await in_flight(urls)
    if left:
        report.problems.append(f"{left:g} requests or streams are in flight though nobody asks")
    for name, pid in pids.items():
        try:
            after = look(pid, 0.0)
        except (FileNotFoundError, ProcessLookupError):
            continue
        report.descriptors[name] = (before[name].descriptors, after.descriptors)
        if after.descriptors > before[name].descriptors + SPARE_DESCRIPTORS:
            report.problems.append(f"{name} has {after.descriptors} descriptors, {before[name].descriptors} before")


def _judge_memory(report: Report, samples: dict[str, list[Sample]]) -> None:
    for name, found in samples.items():
        third = len(found) // 3
        if third == 0:
            continue
        middle = statistics.median(sample.resident_mib for sample in found[third : 2 * third])
        last = statistics.median(sample.resident_mib for sample in found[2 * third :])
        report.resident_mib[name] = (round(middle, 1), round(last, 1))
        report.slope_mib_per_hour[name] = round(slope(found), 1)
        if last > middle + GROWTH_MIB:
            report.problems.append(f"{name} grew from {middle:.1f} to {last:.1f} MiB")


def show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120)
    table = Table(title=f"Soak of {report.minutes:g} minutes")
    for column in ("process", "MiB, middle third", "MiB, last third", "slope MiB/h", "descriptors"):
        table.add_column(column, justify="left" if column == "process" else "right")
    for name, (middle, last) in report.resident_mib.items():
        before, after = report.descriptors.get(name, (0, 0))
        figures = (f"{middle:.1f}", f"{last:.1f}", f"{report.slope_mib_per_hour[name]:+.1f}", f"{before} → {after}")
        table.add_row(name, *figures)
    console.print(table)
    console.print(f"{report.kills} workers killed, {report.policy_changes} policy changes; requests:")
    console.print(", ".join(f"{name}: {count}" for name, count in report.outcomes.items()))
    for problem in report.problems:
        console.print(f"PROBLEM: {problem}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default %(default)g)")
    parser.add_argument("--processes", type=int, default=1, help="of extproc (default %(default)d)")
    options = parser.parse_args()
    report = uvloop.run(soak(options.minutes, options.processes))
    show(report)
    OUT.mkdir(exist_ok=True)
    (OUT / "soak.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    sys.exit(1 if report.problems else 0)


if __name__ == "__main__":
    main()
