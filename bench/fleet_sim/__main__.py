"""`make bench-fleet`: policies of routing on the same traces, in virtual time.

    python -m bench.fleet_sim [--quick] [--seed N] [--seeds N] [--traces DIR] [--processes N]
    python -m bench.fleet_sim large [--requests N]     only 1,000 workers and a million requests, for its speed

Writes bench/out/fleet.json and docs/results/; a quick run bench/out/fleet-quick/ in place of the latter.
"""

import argparse
import os
import time
from pathlib import Path

from bench.fleet_sim import plan, report
from bench.fleet_sim.figures import as_json
from bench.fleet_sim.large import REQUESTS, measure
from bench.fleet_sim.outcomes import Outcomes
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
    parser.add_argument("what", nargs="?", choices=["large"], help="nothing: the comparison")
    parser.add_argument("--seed", type=int, default=0, help="of everything random, the first one (0)")
    parser.add_argument("--seeds", type=int, default=3, help="each run under so many seeds, one after the other (3)")
    parser.add_argument("--traces", default=os.environ.get(TRACES_VARIABLE, DEFAULT_TRACES), help="folder of traces")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at one time")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of the large run (1,000,000)")
    options = parser.parse_args()
    # By the environment, so that the processes that run have it, too.
    os.environ[TRACES_VARIABLE] = options.traces
    OUT.mkdir(exist_ok=True)
    if options.what == "large":
        measure(options.requests)
        return
    # As it can be repeated elsewhere: without this machine's folder.
    given = [f"--seed {options.seed} --seeds {options.seeds}", *(["--quick"] if options.quick else [])]
    command = " ".join(["python -m bench.fleet_sim", *given])
    header = {
        "version": __version__,
        "seed": options.seed,
        "seeds": options.seeds,
        "command": command,
        "traces": {known.value: source_of(known) for known in Known},
    }
    lines = [f"recursant {__version__}, {options.seeds} seeds from {options.seed}: `{command}`, in one run"]
    lines += [f"{known}: {source}" for known, source in header["traces"].items()]
    print("\n".join(lines))
    began = time.monotonic()
    tasks = plan.tasks(range(options.seed, options.seed + max(1, options.seeds)), quick=options.quick)
    outcomes = Outcomes(run_all(tasks, options.processes))
    whole = len(outcomes.all) == len(tasks)
    report.write_json(OUT / "fleet.json", outcomes, header)
    # Half the tables do not replace the whole ones.
    published = whole and not options.quick
    report.write_results(RESULTS if published else OUT / "fleet-quick", outcomes, lines)
    for name, row in as_json(outcomes).items():
        print(f"{name:20} before {row['before']}  after {row['after']}  ours {row['ours']} {row['ours_range']}")
    speeds = sorted(each.virtual_s / each.cpu_s for each in outcomes.all)
    speed = speeds[len(speeds) // 2] if speeds else 0.0
    print(f"{len(outcomes.all)} runs in {time.monotonic() - began:.0f} s; median speed {speed:.0f} x real time")
    if not whole:
        print(f"broken off: {len(tasks) - len(outcomes.all)} runs were not made, docs/results is as it was")


if __name__ == "__main__":
    main()
