"""The tables, on the screen and as they stand in docs/performance.md."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from bench.gateway.cases import NOOP, NOOP_GO
from bench.gateway.rows import Beats, Row, ratio

_LEFT = ("mode", "server")
COLUMNS = (
    *("mode", "workers", "clients", "server", "CPU µs", "to grpcio no-op", "to grpc-go no-op", "Envoy µs"),
    *("p50 ms", "p99 ms", "added p50", "added p99", "req/s"),
)


def cells(row: Row, rows: list[Row]) -> list[str]:
    """The texts of a row, as `COLUMNS` has them."""
    ratios = (ratio(row, rows, NOOP), ratio(row, rows, NOOP_GO))
    return [
        *(row.mode, str(row.workers), str(row.connections), row.server, f"{row.cpu_us_per_request:.0f}"),
        *("" if each is None else f"{each:.2f}" for each in ratios),
        *(f"{row.envoy_us_per_request:.0f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}"),
        *("" if each is None else f"{each:+.2f}" for each in (row.added_p50_ms, row.added_p99_ms)),
        f"{row.rps:.0f}",
    ]


def markdown(rows: list[Row], shown: Iterable[Row]) -> str:
    """Some of the rows as a table for docs/performance.md."""
    lines = [COLUMNS, ["---" if each in _LEFT else "---:" for each in COLUMNS], *(cells(row, rows) for row in shown)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def document(rows: list[Row]) -> str:
    """The tables of docs/performance.md: one client, a few, and saturated."""
    most: dict[str, int] = {}
    for row in rows:
        most[row.mode] = max(row.connections, most.get(row.mode, 0))
    saturated = [row for row in rows if 1 < row.connections == most[row.mode]]
    few = [row for row in rows if 1 < row.connections < most[row.mode]]
    tables = {"One client": [row for row in rows if row.connections == 1], "A few clients": few, "Saturated": saturated}
    return "\n".join(f"## {title}\n\n{markdown(rows, shown)}" for title, shown in tables.items() if shown)


def show(rows: list[Row], beats: list[Beats]) -> None:
    """Print everything."""
    console = Console(width=160)
    table = Table(title="Per request, medians over the rounds (CPU of the server under test)")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in _LEFT else "right")
    for row in rows:
        table.add_row(*cells(row, rows))
    console.print(table)
    table = Table(title="Heartbeats: CPU of an idle extproc (already taken off above)")
    for column in ("server", "workers", "beats/s", "CPU µs per s", "µs per beat"):
        table.add_column(column, justify="left" if column == "server" else "right")
    for each in beats:
        per_beat = each.cpu_us_per_s / each.beats_per_s
        figures = (f"{each.beats_per_s:.0f}", f"{each.cpu_us_per_s:.0f}", f"{per_beat:.0f}")
        table.add_row(each.server, str(each.workers), *figures)
    console.print(table)
