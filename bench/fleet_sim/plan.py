"""Which runs make up the benchmark."""

from typing import Final

from bench.fleet_sim.policies import ADAPTIVE, CLASSIC, COMPARED, ENDPOINT_PICKER, NO_RETRIES, ORACLE, ROUND_ROBIN
from bench.fleet_sim.policies import ablated as ablated_names
from bench.fleet_sim.runs import Task
from bench.fleet_sim.scenarios import SCENARIOS
from recursant.sim.fleet.spec import Fault, FaultKind

# At this share of its load the mixed scenario shows the reference's "before": a P99 of about 2.1 s under round robin.
REFERENCE_LOAD: Final = 0.96
# And here the short and long one loses about 3 % for want of memory.
MEMORY_LOAD: Final = 1.1

COMPARISON: Final = "comparison"
REFERENCE: Final = "reference"
MEMORY: Final = "memory"
ERRORS: Final = "errors"
SERVER_ERRORS: Final = "server errors"
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


def tasks(seed: int, *, quick: bool) -> list[Task]:
    """All runs, those of the reference table first."""
    shown = (ROUND_ROBIN, "least request (two choices)", ENDPOINT_PICKER, CLASSIC, ADAPTIVE, ORACLE)
    short = (ROUND_ROBIN, ENDPOINT_PICKER, CLASSIC, ADAPTIVE)
    found = [
        *(Task(REFERENCE, "mixed", name, REFERENCE_LOAD, seed, curves=True) for name in shown),
        *(Task(MEMORY, "short and long", name, MEMORY_LOAD, seed) for name in ("random", *short)),
        *(Task(ERRORS, "faults", name, REFERENCE_LOAD, seed) for name in (NO_RETRIES, *short)),
        *(
            Task(SERVER_ERRORS, "mixed", name, REFERENCE_LOAD, seed, changes=(("faults", _server_errors()),))
            for name in (NO_RETRIES, ADAPTIVE)
        ),
        *(
            Task(KILL, "mixed", name, REFERENCE_LOAD, seed, changes=(("faults", _KILLED),))
            for name in (NO_RETRIES, ROUND_ROBIN, CLASSIC, ADAPTIVE)
        ),
        *(Task(COMPARISON, scenario, name, 1.0, seed) for scenario in SCENARIOS for name in COMPARED),
    ]
    if quick:
        return found
    return [
        *found,
        *(Task(HIGHEST, "mixed", name, 1.0, seed) for name in (ROUND_ROBIN, ENDPOINT_PICKER, CLASSIC, ADAPTIVE)),
        *(
            Task(ABLATION, scenario, name, 1.0, seed)
            for scenario in ("short and long", "uneven workers")
            for name in ablated_names()
        ),
        *(Task(RISING, "mixed", name, load, seed) for name in short for load in RISING_LOADS),
        *(
            Task(STALE, "mixed", name, 0.9, seed, changes=(("beat_s", beat),))
            for name in (CLASSIC, ADAPTIVE)
            for beat in BEATS_S
        ),
        *(
            Task(DELAY, "mixed", name, 0.9, seed, changes=(("delay_s", delay),))
            for name in (CLASSIC, ADAPTIVE)
            for delay in DELAYS_S
        ),
        *(
            Task(REPLICAS, "mixed", name, 0.9, seed, changes=(("replicas", replicas),))
            for name in (CLASSIC, ADAPTIVE)
            for replicas in REPLICA_COUNTS
        ),
        *(
            Task(SCALE, "mixed", name, 0.9, seed, workers=workers)
            for name in (CLASSIC, ADAPTIVE)
            for workers in WORKERS
        ),
    ]


def _server_errors() -> tuple[Fault, ...]:
    return (Fault(FaultKind.SERVER_ERRORS, share=0.05),)
