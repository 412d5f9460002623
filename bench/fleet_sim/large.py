"""How fast the simulation is: a thousand workers and a million requests, under ours."""

import random
import resource
import time
from collections.abc import Iterator
from itertools import islice
from typing import Final

from bench.fleet_sim.fleets import TRACE_AGENTS, llama_fleet
from bench.fleet_sim.policies import ADAPTIVE, policies
from recursant.sim.fleet.policies.recursant import quiet
from recursant.sim.fleet.results import summarise
from recursant.sim.fleet.simulation import Simulation
from recursant.sim.fleet.spec import Environment
from recursant.sim.workloads.arrival import Arrival

WORKERS: Final = 1_000
REQUESTS: Final = 1_000_000
RATE_OF_A_WORKER: Final = 6.0


def _load() -> Iterator[Arrival]:
    draw = random.Random(0)
    at = 0.0
    while True:
        at += draw.expovariate(RATE_OF_A_WORKER * WORKERS)
        prompt, output = round(draw.lognormvariate(6.0, 0.8)) + 1, round(draw.lognormvariate(4.0, 0.7)) + 1
        yield Arrival(at, "trace", min(prompt, 7_000), min(output, 1_000))


def measure(requests: int = REQUESTS) -> None:
    """Run it and say how long it took."""
    wall, cpu = time.monotonic(), time.process_time()

    def progress(second: float) -> None:
        print(f"\rsecond {second:.0f} of about {requests / RATE_OF_A_WORKER / WORKERS:.0f}", end="", flush=True)

    simulation = Simulation(llama_fleet(WORKERS), policies(TRACE_AGENTS)[ADAPTIVE], Environment(replicas=1))
    with quiet():
        run = simulation.run(islice(_load(), requests), progress)
    summary = summarise(run, TRACE_AGENTS.targets_ms, TRACE_AGENTS.urgent)
    used_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"\n{WORKERS} workers, {len(run.requests)} requests, {run.seconds:.0f} virtual seconds: "
        f"{time.process_time() - cpu:.0f} s of CPU, {time.monotonic() - wall:.0f} s, {used_mib:.0f} MiB; "
        f"P99 {summary.p99_ms:.0f} ms, goodput {summary.goodput:.4f}"
    )
