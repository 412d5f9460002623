"""`make bench`: print the decision's cost as a table and write it to `bench/out/decision.json`."""

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import decision

OUT = Path(__file__).parent / "out"


def main() -> None:
    rows = decision.measure()
    table = Table(title="CPU per request in extproc, without the transport (median)")
    for column in ("case", "workers", "CPU µs", "over no-op µs"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for row in rows:
        table.add_row(row.case, str(row.workers or ""), f"{row.cpu_us:.1f}", f"{row.over_noop_us:.1f}")
    Console().print(table)
    OUT.mkdir(exist_ok=True)
    path = OUT / "decision.json"
    path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    main()
