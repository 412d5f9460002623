"""What `recursant plan` shows people."""

from collections.abc import Mapping
from typing import Any

import typer

from recursant.cli.output import show_table

_COLUMNS = ("kind", "workers", "devices", "estimate", "load", "in time", "p50 ms", "p99 ms", "kv peak", "note")


def show_plan(document: Mapping[str, Any]) -> None:
    """Print a plan: a table for each group of agents, the settings of the best kind, and the assumptions."""
    typer.echo(f"load: {document['load']}")
    for group in document["groups"]:
        typer.echo("")
        typer.echo(_headline(group))
        show_table(_COLUMNS, [_row(kind) for kind in group["kinds"]])
        chosen = group["best"]
        if chosen is None:
            typer.echo("→ none of these kinds is enough")
        else:
            typer.echo(f"→ {_workers(chosen['workers'])} of {chosen['kind']}, each: vllm serve ... {chosen['flags']}")
            for agent in chosen["agents"]:
                typer.echo(f"    {_agent_line(agent)}")
    typer.echo("")
    typer.echo("Assumptions:")
    for line in document["assumptions"]:
        typer.echo(f"- {line}")


def _headline(group: Mapping[str, Any]) -> str:
    names = ", ".join(
        one["agent_id"] + (f" (first token within {one['latency_sla_ms']} ms)" if one["latency_sla_ms"] else "")
        for one in group["agents"]
    )
    family = f"family {group['family']}" if group["family"] else "any family"
    return (
        f"{family}: {names}; {group['requests_s']:.2f} requests/s of {group['mean_prompt_tokens']:,.0f} + "
        f"{group['mean_output_tokens']:,.0f} tokens"
    )


def _row(kind: Mapping[str, Any]) -> list[str]:
    agents = kind["agents"]
    worst = min((agent["in_time"] for agent in agents), default=None)
    return [
        kind["kind"],
        _count(kind["workers"]),
        _count(kind["devices"]),
        _count(kind["estimated_workers"]),
        "-" if kind["load"] is None else f"{kind['load']:.0%}",
        "-" if worst is None else f"{worst:.1%}",
        _highest(agents, "p50_ms"),
        _highest(agents, "p99_ms"),
        f"{kind['peak_kv_usage']:.0%}" if "peak_kv_usage" in kind else "-",
        kind["why_not"] or "",
    ]


def _agent_line(agent: Mapping[str, Any]) -> str:
    target = "no target" if agent["target_ms"] is None else f"target {agent['target_ms']:,.0f} ms"
    times = (
        "no first token" if agent["p99_ms"] is None else f"p50 {agent['p50_ms']:,.0f}, p99 {agent['p99_ms']:,.0f} ms"
    )
    return (
        f"{agent['agent_id']}: {agent['requests']} requests, {times}, {target}, {agent['in_time']:.1%} in time, "
        f"{agent['shed']:.1%} refused or too long"
    )


def _highest(agents: list[Mapping[str, Any]], name: str) -> str:
    values = [agent[name] for agent in agents if agent[name] is not None]
    return f"{max(values):,.0f}" if values else "-"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def _workers(count: int) -> str:
    return f"{count} worker" + ("" if count == 1 else "s")
