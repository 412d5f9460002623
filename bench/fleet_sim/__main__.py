"""`make bench-fleet`: policies of routing on the same traces, in virtual time.

    python -m bench.fleet_sim [--quick] [--seed N] [--traces DIR] [--processes N] [--large]

Writes bench/out/fleet.json and docs/results/.
"""

import argparse
import os
import time
from pathlib import Path

from bench.fleet_sim import plan, report
from bench.fleet_sim.large import measure
from bench.fleet_sim.runs import run_all
from bench.fleet_sim.scenarios import DEFAULT_TRACES, TRACES_VARIABLE, source_of
from recursant import __version__
from recursant.sim.workloads.folder import Known

OUT = Path(__file__).parents[1] / "out"
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet_sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only the comparison and the reference figures")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (0)")
    parser.add_argument("--traces", default=os.environ.get(TRACES_VARIABLE, DEFAULT_TRACES), help="folder of traces")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at one time")
    parser.add_argument("--large", action="store_true", help="only 1,000 workers and a million requests, for its speed")
    options = parser.parse_args()
    # By the environment, so that the processes that run have it, too.
    os.environ[TRACES_VARIABLE] = options.traces
    OUT.mkdir(exist_ok=True)
    if options.large:
        measure()
        return
    # As it can be repeated elsewhere: without this machine's folder.
    given = [f"--seed {options.seed}", *(["--quick"] if options.quick else [])]
    command = " ".join(["python -m bench.fleet_sim", *given])
    header = {
        "version": __version__,
        "seed": options.seed,
        "command": command,
        "traces": {known.value: source_of(known) for known in Known},
    }
    lines = [f"recursant {__version__}, seed {options.seed}: `{command}`"]
    lines += [f"{known}: {source}" for known, source in header["traces"].items()]
    print("\n".join(lines))
    began = time.monotonic()
    tasks = plan.tasks(options.seed, quick=options.quick)
    outcomes = report.Outcomes(run_all(tasks, options.processes))
    report.write_json(OUT / "fleet.json", outcomes, header)
    # Half the tables do not replace the whole ones.
    report.write_results(OUT / "fleet-quick" if options.quick else RESULTS, outcomes, lines)
    for name, row in report.reference(outcomes).items():
        print(f"{name:20} before {row['before']}  after {row['after']}  ours {row['ours']}")
    speeds = sorted(each.virtual_s / each.cpu_s for each in outcomes.all)
    speed = speeds[len(speeds) // 2]
    print(f"{len(tasks)} runs in {time.monotonic() - began:.0f} s; median speed {speed:.0f} x real time")


if __name__ == "__main__":
    main()
