"""Showing results: tables for people, JSON and YAML for programs."""

import json
from collections.abc import Sequence
from typing import Any

import typer

from recursant.cli.options import Output


def show_document(document: Any, output: Output) -> None:
    """Print a document as JSON or YAML."""
    if output is Output.YAML:
        import yaml

        typer.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)
    else:
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; on a pipe it is not cut at any width, so that `grep` and `awk` find whole words."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=not console.is_terminal, overflow="fold")
    for row in rows:
        table.add_row(*row)
    if not console.is_terminal:
        console.width = max(80, console.measure(table, options=console.options.update(max_width=10_000)).maximum)
    console.print(table)
