"""A spot check: the same requests through the real gateway, in real time, and through the simulation.

    python -m bench.fleet_sim.live [--seconds S] [--traces DIR]

Envoy, extproc, and four simulated workers over HTTP; the first seconds of Azure's conversation trace. Writes
bench/out/fleet_live.json.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx

from bench.fleet_sim.fleets import TRACE_AGENTS, llama_fleet
from bench.fleet_sim.policies import CLASSIC, policies
from bench.fleet_sim.scenarios import DEFAULT_TRACES, SCENARIOS, TRACES_VARIABLE, source_of
from recursant.sim.fleet.results import first_tokens, percentile
from recursant.sim.fleet.simulation import Simulation
from recursant.sim.fleet.spec import Environment
from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.folder import Known
from tests.e2e.harness.stack import Stack

OUT = Path(__file__).parents[1] / "out"
WORKERS: Final = 4
MODEL: Final = "Meta-Llama-3-8B"
OTHER_MODEL: Final = "microsoft/Phi-3-mini-4k-instruct"
PROFILE: Final = "a100-llama-3-8b"
# Of the scenario's own density, for eight workers: so many requests as four workers answer at ease.
LOAD: Final = 0.125
BYTES_PER_TOKEN: Final = 4
CONFIG: Final = """
agents:
  - {agent_id: trace, model_family: llama, latency_sla_ms: 1000, priority: 10, fallback_strategy: queue_and_retry,
     retry_max: 75, retry_delay_ms: 200}
"""


def arrivals(seconds: float) -> list[Arrival]:
    """The requests of the first seconds."""
    loads = SCENARIOS["azure conversation"].loads(LOAD, 0)
    return [each for each in loads if each.at_s < seconds]


def simulated(requests: list[Arrival]) -> list[float]:
    """Sorted times to the first token in virtual time, in ms."""
    environment = Environment(replicas=1, bytes_per_token=float(BYTES_PER_TOKEN), bytes_spread=0.0)
    policy = policies(TRACE_AGENTS)[CLASSIC]
    specs = [replace(spec, models=((MODEL, "llama"),)) for spec in llama_fleet(WORKERS)]
    return first_tokens(Simulation(specs, policy, environment).run(requests).requests)


async def _one(client: httpx.AsyncClient, number: int, arrival: Arrival, began: float) -> float | None:
    """The time to the first token of one request, in ms; None where it failed."""
    await asyncio.sleep(max(0.0, began + arrival.at_s - time.perf_counter()))
    # No two begin alike: the trace knows no prefixes, so the workers must not find any.
    prompt = f"{number:08d}".ljust(arrival.prompt_tokens * BYTES_PER_TOKEN, "x")
    body = Stack.chat_body(
        prompt,
        max_tokens=arrival.output_tokens,
        ignore_eos=True,
        stream=True,
    )
    sent = time.perf_counter()
    first = None
    async with client.stream(
        "POST", "/v1/chat/completions", json=body, headers={"x-agent-id": arrival.agent_id}
    ) as answer:
        async for line in answer.aiter_lines():
            if first is None and '"content":"' in line.replace(": ", ":") and '"content":""' not in line:
                first = (time.perf_counter() - sent) * 1_000
        return first if answer.status_code == httpx.codes.OK else None


async def _all(stack: Stack, requests: list[Arrival]) -> list[float | None]:
    limits = httpx.Limits(max_connections=None)
    async with stack.async_client(timeout=120.0, limits=limits) as client:
        began = time.perf_counter()
        return list(
            await asyncio.gather(*(_one(client, number, arrival, began) for number, arrival in enumerate(requests)))
        )


def live(requests: list[Arrival]) -> tuple[list[float], int]:
    """Sorted times to the first token through the real gateway, in ms, and how many requests failed."""
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), workers=1, config=CONFIG, args=["--worker-models", OTHER_MODEL])
        try:
            stack.start()
            for number in range(WORKERS):
                stack.start_sim("--worker-id", f"live-{number}", "--model", MODEL, "--profile", PROFILE)
            for number in range(WORKERS):
                stack.wait_worker(f"live-{number}")
            stack.wait_until(lambda: stack.chat(agent="trace", max_tokens=1).status_code == httpx.codes.OK)
            found = asyncio.run(_all(stack, requests))
        finally:
            stack.close()
    times = sorted(each for each in found if each is not None)
    return times, len(found) - len(times)


def main() -> None:
    """Run both and say how far apart they are."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet_sim.live", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--traces", default=os.environ.get(TRACES_VARIABLE, DEFAULT_TRACES))
    options = parser.parse_args()
    os.environ[TRACES_VARIABLE] = options.traces
    requests = arrivals(options.seconds)
    print(f"{len(requests)} requests of {Known.AZURE_CONVERSATION} ({source_of(Known.AZURE_CONVERSATION)})")
    virtual = simulated(requests)
    real, failed = live(requests)
    rows = {
        f"p{share * 100:g}": {"simulated_ms": percentile(virtual, share), "live_ms": percentile(real, share)}
        for share in (0.5, 0.9, 0.99)
    }
    for name, row in rows.items():
        simulated_ms, live_ms = row["simulated_ms"], row["live_ms"]
        print(
            f"{name}: simulated {simulated_ms:.0f} ms, live {live_ms:.0f} ms: {live_ms - simulated_ms:+.0f} ms, "
            f"{live_ms / simulated_ms - 1:+.0%}"
        )
    print(f"{failed} failed")
    OUT.mkdir(exist_ok=True)
    (OUT / "fleet_live.json").write_text(
        json.dumps({"requests": len(requests), "failed": failed, **rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
