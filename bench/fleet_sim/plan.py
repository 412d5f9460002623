"""Which runs make up the benchmark."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bench.fleet_sim.policies import (
    ADAPTIVE,
    CLASSIC,
    COMPARED,
    ENDPOINT_PICKER,
    ERRORS_TOO,
    NO_EXPRESS,
    NO_RETRIES,
    ORACLE,
    ROUND_ROBIN,
)
from bench.fleet_sim.policies import ablated as ablated_names
from bench.fleet_sim.policies import affinity_ablated as affinity_names
from bench.fleet_sim.runs import Task
from bench.fleet_sim.scenarios import SCENARIOS
from recursant.sim.fleet.spec import Fault, FaultKind
from recursant.sim.workloads.fault_plans import ERROR_SHARE, errors_everywhere

# At this share of its load the mixed scenario shows the reference's "before": a P99 of about 2.1 s under round robin.
REFERENCE_LOAD: Final = 0.96
# And here the short and long one loses about 3 % for want of memory.
MEMORY_LOAD: Final = 1.1

COMPARISON: Final = "comparison"
REFERENCE: Final = "reference"
MEMORY: Final = "memory"
# 5 % of the attempts at every worker fail; by what, in which group.
ERRORS: Final = {
    "5 % of the attempts reset or 503": (FaultKind.RESETS,),
    "5 % of the attempts answered 500": (FaultKind.SERVER_ERRORS,),
    "5 % of the attempts failing, half reset or 503, half 500": (FaultKind.RESETS, FaultKind.SERVER_ERRORS),
}
# The same with errors that speak against a device: three in a row take a worker out (SPEC F1), here half of the fleet.
CUDA_ERRORS: Final = {"5 % of the attempts answered 500, a CUDA error": (FaultKind.CUDA_ERRORS,)}
KILL: Final = "kill"
ABLATION: Final = "ablation"
RISING: Final = "rising load"
STALE: Final = "stale state"
DELAY: Final = "delay"
REPLICAS: Final = "replicas"
SCALE: Final = "workers"
HIGHEST: Final = "highest load"

RISING_LOADS: Final = (0.5, 0.8, 0.95, 1.05, 1.2)
BEATS_S: Final = (0.05, 0.2, 1.0, 2.0)
DELAYS_S: Final = (0.0, 0.2, 0.5)
REPLICA_COUNTS: Final = (1, 2, 4, 8)
WORKERS: Final = (4, 8, 32)
KILLED_AT_S: Final = 60.0
# As long as the reference's engine needs to come back.
_KILLED: Final = (Fault(FaultKind.KILL, worker=0, at_s=KILLED_AT_S, seconds=47.0),)


def tasks(seeds: Sequence[int], *, quick: bool) -> list[Task]:
    """All runs, those of the reference table first, and each for every seed."""
    return [replace(task, seed=seed) for task in _tasks(quick=quick) for seed in seeds]


def _tasks(*, quick: bool) -> list[Task]:
    shown = (ROUND_ROBIN, "least request (two choices)", ENDPOINT_PICKER, CLASSIC, ADAPTIVE, ORACLE)
    short = (ROUND_ROBIN, ENDPOINT_PICKER, CLASSIC, ADAPTIVE)
    found = [
        *(Task(REFERENCE, "mixed", name, REFERENCE_LOAD, curves=True) for name in shown),
        *(Task(MEMORY, "short and long", name, MEMORY_LOAD) for name in ("random", *short, NO_EXPRESS)),
        *(
            Task(group, "mixed", name, REFERENCE_LOAD, changes=(("faults", errors_everywhere(ERROR_SHARE, *kinds)),))
            for group, kinds in (ERRORS | CUDA_ERRORS).items()
            for name in (NO_RETRIES, ERRORS_TOO, *short)
        ),
        *(
            Task(KILL, "mixed", name, REFERENCE_LOAD, changes=(("faults", _KILLED),))
            for name in (NO_RETRIES, ROUND_ROBIN, CLASSIC, ADAPTIVE)
        ),
        *(Task(COMPARISON, scenario, name, 1.0) for scenario in SCENARIOS for name in COMPARED),
    ]
    if quick:
        return found
    return [
        *found,
        *(Task(HIGHEST, "mixed", name, 1.0) for name in (ROUND_ROBIN, ENDPOINT_PICKER, CLASSIC, ADAPTIVE)),
        *(
            Task(ABLATION, scenario, name, 1.0)
            for scenario in ("short and long", "uneven workers")
            for name in ablated_names()
        ),
        Task(ABLATION, "short and long", NO_EXPRESS, 1.0),
        *(
            Task(ABLATION, scenario, name, 1.0)
            for scenario in ("bursts", "mooncake conversation", "mooncake synthetic")
            for name in affinity_names()
        ),
        *(Task(RISING, "mixed", name, load) for name in short for load in RISING_LOADS),
        *(
            Task(STALE, "mixed", name, 0.9, changes=(("beat_s", beat),))
            for name in (CLASSIC, ADAPTIVE)
            for beat in BEATS_S
        ),
        *(
            Task(DELAY, "mixed", name, 0.9, changes=(("delay_s", delay),))
            for name in (CLASSIC, ADAPTIVE)
            for delay in DELAYS_S
        ),
        *(
            Task(REPLICAS, "mixed", name, 0.9, changes=(("replicas", replicas),))
            for name in (CLASSIC, ADAPTIVE)
            for replicas in REPLICA_COUNTS
        ),
        *(Task(SCALE, "mixed", name, 0.9, workers=workers) for name in (CLASSIC, ADAPTIVE) for workers in WORKERS),
    ]
