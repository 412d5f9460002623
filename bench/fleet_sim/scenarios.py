"""The scenarios: a fleet, its agents, a workload at a load, and what goes wrong."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

from bench.fleet_sim.fleets import (
    BANDWIDTH_AGENTS,
    LONG_TRACE_AGENTS,
    SHORT_AND_LONG,
    SPEC_AGENTS,
    TRACE_AGENTS,
    Agents,
    llama_fleet,
    long_context,
    own_profiles_fleet,
    short_of_bandwidth_fleet,
    small_memory_fleet,
    spec_fleet,
    uneven_fleet,
)
from recursant.sim.fleet.spec import Environment, WorkerSpec
from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.fault_plans import errors_everywhere, leaking_worker
from recursant.sim.workloads.folder import Known, find_trace, read_trace
from recursant.sim.workloads.mixed import CHAT, MIXED, SHORT_AND_VERY_LONG, mixed
from recursant.sim.workloads.poisson import Bursts
from recursant.sim.workloads.timing import at_rate, part, within

# Where the published traces are; another folder by this variable, which `--traces` sets.
TRACES_VARIABLE: Final = "RECURSANT_TRACES"
DEFAULT_TRACES: Final = "../shared/traces"
SECONDS: Final = 120.0

Loads = Callable[[float, int], Iterator[Arrival]]


@dataclass(frozen=True)
class Scenario:
    """What is simulated, but for the policy.

    Attributes:
        name: in rows and tables.
        says: what it is, in a line.
        agents: who sends requests.
        fleet: the workers.
        loads: arrivals by (load, seed); load 1 is what the tables are made with.
        environment: how news travels, and what goes wrong.
    """

    name: str
    says: str
    agents: Agents
    fleet: Callable[[], list[WorkerSpec]]
    loads: Loads
    environment: Environment = field(default_factory=Environment)


def traces() -> Path:
    """The folder of published traces."""
    return Path(os.environ.get(TRACES_VARIABLE, DEFAULT_TRACES))


def source_of(known: Known) -> str:
    """Where a trace's arrivals come from."""
    return "published trace" if find_trace(traces(), known) else "synthetic stand-in"


def _mixed(rate: float, bursts: Bursts | None = None) -> Loads:
    return lambda load, seed: mixed(MIXED, rate=rate * load, seconds=SECONDS, seed=seed, bursts=bursts)


def _trace(known: Known, speed: float, most: int, seconds: float = SECONDS, stand_in: float = 40.0) -> Loads:
    """A published trace, its times `speed` times as dense; without the file, a seeded stand-in of like lengths."""

    def loads(load: float, seed: int) -> Iterator[Arrival]:
        path = find_trace(traces(), known)
        if path is None:
            agents = (replace(CHAT, agent_id="trace"),)
            return mixed(agents, rate=stand_in * load, seconds=seconds, seed=seed, max_context=most)
        return part(within(at_rate(read_trace(path, seed=seed), speed * load), most), seconds=seconds)

    return loads


def _short_and_long(load: float, seed: int) -> Iterator[Arrival]:
    return mixed(SHORT_AND_VERY_LONG, rate=30.0 * load, seconds=SECONDS, seed=seed)


_MIXED_RATE: Final = 60.0
_OWN_PROFILES_RATE: Final = 46.0
_ALL: Final = (
    Scenario(
        "mixed", "chat, code and summaries on 4 nodes of 2 A100s (SPEC)", SPEC_AGENTS, spec_fleet, _mixed(_MIXED_RATE)
    ),
    Scenario(
        "bursts",
        "the same, the rate jumping for 5 s in every 30 s",
        SPEC_AGENTS,
        spec_fleet,
        _mixed(_MIXED_RATE * 0.6, Bursts()),
    ),
    Scenario(
        "faults",
        "the same, 5 % of the attempts failing: half reset or 503, half 500",
        SPEC_AGENTS,
        spec_fleet,
        _mixed(_MIXED_RATE * 0.9),
        Environment(faults=errors_everywhere()),
    ),
    Scenario(
        "leak",
        "the same, one worker's memory leaking",
        SPEC_AGENTS,
        spec_fleet,
        _mixed(_MIXED_RATE * 0.8),
        Environment(faults=leaking_worker(0)),
    ),
    Scenario(
        "short and long",
        "70 % short, 30 % very long prompts on 8 A100s of 40 GB whose engines fail when memory ends",
        SHORT_AND_LONG,
        small_memory_fleet,
        _short_and_long,
    ),
    Scenario(
        "azure conversation",
        "Azure 2023 conversations, 8 times as dense, on 8 A100s",
        TRACE_AGENTS,
        llama_fleet,
        _trace(Known.AZURE_CONVERSATION, 8.0, 8_192),
    ),
    Scenario(
        "uneven workers",
        "Azure 2023 conversations on 2 whole, 2 half and 4 quarter devices",
        TRACE_AGENTS,
        uneven_fleet,
        _trace(Known.AZURE_CONVERSATION, 4.0, 8_192),
    ),
    Scenario(
        "own profiles",
        "the mixed load on 6 nodes of 2 A100s: 2 Qwen2-7B, 2 Phi-3-mini, 4 DeepSeek-Coder-33B on two devices each",
        SPEC_AGENTS,
        own_profiles_fleet,
        _mixed(_OWN_PROFILES_RATE),
    ),
    Scenario(
        "short of bandwidth",
        "Azure 2023 conversations on 8 A100s, others taking 95 % of the memory bandwidth of two",
        BANDWIDTH_AGENTS,
        short_of_bandwidth_fleet,
        _trace(Known.AZURE_CONVERSATION, 5.0, 8_192),
    ),
    Scenario(
        "mooncake conversation",
        "Mooncake conversations on 8 A100s, prompts up to 128k",
        LONG_TRACE_AGENTS,
        lambda: llama_fleet(profile=long_context()),
        _trace(Known.MOONCAKE_CONVERSATION, 1.0, 131_072, 300.0, 4.0),
    ),
    Scenario(
        "mooncake synthetic",
        "Mooncake's synthetic mix (prefixes repeat) on 8 A100s",
        LONG_TRACE_AGENTS,
        lambda: llama_fleet(profile=long_context()),
        _trace(Known.MOONCAKE_SYNTHETIC, 1.0, 131_072, 300.0, 4.0),
    ),
)
SCENARIOS: Final = {each.name: each for each in _ALL}


def scaled(scenario: Scenario, workers: int) -> Scenario:
    """The same with another number of workers, the load growing along."""
    base = scenario.fleet()
    factor = workers / len(base)
    loads = scenario.loads
    return replace(
        scenario,
        name=f"{scenario.name} x {workers}",
        fleet=lambda: [spec for spec, _ in zip(_cycle(base), range(workers), strict=False)],
        loads=lambda load, seed: loads(load * factor, seed),
    )


def _cycle(specs: list[WorkerSpec]) -> Iterator[WorkerSpec]:
    return (specs[number % len(specs)] for number in count())
