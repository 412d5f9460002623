"""`make bench`: what a decision costs, what a transport costs, what the whole gateway costs.

    python -m bench [decision|transport|gateway ...] [--quick]

All three by default. Tables on the screen, rows as JSON in bench/out/.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

OUT = Path(__file__).parent / "out"
SECTIONS = ("decision", "transport", "gateway")


def _decision() -> None:
    from rich.console import Console
    from rich.table import Table

    from bench import decision

    rows = decision.measure()
    table = Table(title="CPU per request in extproc, without the transport (median)")
    for column in ("case", "workers", "CPU µs", "over no-op µs"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for row in rows:
        table.add_row(row.case, str(row.workers or ""), f"{row.cpu_us:.1f}", f"{row.over_noop_us:.1f}")
    Console().print(table)
    (OUT / "decision.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="short runs: to see that it works, not to quote")
    options = parser.parse_args()
    for section in options.sections:
        if section not in SECTIONS:
            parser.error(f"no section {section!r}: expected one of {', '.join(SECTIONS)}")
    OUT.mkdir(exist_ok=True)
    for section in options.sections or SECTIONS:
        if section == "decision":
            _decision()
        elif section == "transport":
            from bench import extproc_transport

            extproc_transport.run(requests=256 if options.quick else 1_024)
        else:
            from bench.gateway.run import run

            run(quick=options.quick)
    print(f"rows are in {OUT.relative_to(Path.cwd()) if OUT.is_relative_to(Path.cwd()) else OUT}")


if __name__ == "__main__":
    main()
