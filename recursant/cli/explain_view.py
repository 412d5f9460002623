"""An explanation as people read it: the request, the outcome, and the fleet as a table."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_UNITS: Final = {"vram": "MiB", "bandwidth": "MB/s", "context": "tokens", "memory": "tokens", "wait": "ms"}
# What the number of each filter is.
_TITLES: Final = {
    "vram": "free vram",
    "bandwidth": "bandwidth",
    "context": "context",
    "memory": "kv room",
    "slots": "load",
    "express": "unread",
    "wait": "wait",
}
# Where each worker has a limit of its own, what that is.
_OWN_LIMITS: Final = {"slots": "slots", "express": "limit"}
_SIGNS: Final = {">=": "≥", "<=": "≤", "<": "<"}
_UNKNOWN: Final = "?"
_PIPE_WIDTH: Final = 10_000


def show_explanation(document: Mapping[str, Any]) -> None:
    """Print the document of `GET /v1/explain`."""
    console = Console(highlight=False)
    request = document["request"]
    if request is not None:
        for line in request_lines(request):
            console.print(line, soft_wrap=True)
    console.print(outcome_line(document["outcome"]), soft_wrap=True)
    waiting = sum(document["waiting"].values())
    if waiting:
        console.print(f"[yellow]{waiting} requests wait already; this one was tried as if none did[/]", soft_wrap=True)
    _show_fleet(console, document)
    if "degraded" in document:
        console.print(f"\nin its place, the family [bold]{escape(document['degraded']['family'])}[/]:")
        _show_fleet(console, document["degraded"])


def request_lines(request: Mapping[str, Any]) -> list[str]:
    """Who asks, for what, within which limits."""
    who = escape(request["agent"]) if request["known_agent"] else "no known agent"
    lines = [f"[bold]{who}[/], class {request['class']}, priority {request['priority']}"]
    if request["clamped"]:
        lines[0] += f", [yellow]clamped to its policy: {', '.join(request['clamped'])}[/]"
    if "family" in request:
        what = f"model {request['model']}" if request["model"] else f"family {request['family'] or 'any'}"
        sla = f", first token within {request['latency_sla_ms']} ms" if request["latency_sla_ms"] else ""
        lines.append(
            f"asks for {escape(what)}, {request['prompt_tokens']} tokens in ({length_of(request)}), "
            f"{request['expected_tokens']} out expected{sla}, answered within {request['timeout_ms']} ms"
        )
    lines.append(f"fallback {request['fallback_strategy']}")
    if not request["body_read"]:
        lines[-1] += "; its body is not read: a bound in it counts nothing here, and Envoy compares its model"
    return lines


def length_of(request: Mapping[str, Any]) -> str:
    """How the length of the prompt is estimated, and how well that went."""
    error = request["estimate_error"]
    quality = "not measured yet" if error is None else f"±{error:.0%}"
    return f"at {request['bytes_per_token']:g} bytes a token, {quality}"


def outcome_line(outcome: Mapping[str, Any]) -> str:
    """What happens to it."""
    fallback = f", [yellow]by fallback {outcome['fallback']}[/]" if outcome.get("fallback") else ""
    match outcome["kind"]:
        case "placed":
            first, *rest = map(escape, outcome["workers"])
            then = f", then {', '.join(rest)}" if rest else ""
            # An extproc of an older version does not say.
            affinity = f", affinity {outcome['affinity']}" if outcome.get("affinity") else ""
            return f"[bold green]→ {first}[/]{then}{fallback}{affinity}"
        case "held":
            return f"[bold yellow]→ waits for a worker, at most {outcome['for_ms']} ms[/]{fallback}"
        case _:
            return f"[bold red]→ {outcome['status']} {outcome['code']}[/]: {escape(outcome['message'])}"


def _show_fleet(console: Console, document: Mapping[str, Any]) -> None:
    workers: Sequence[Mapping[str, Any]] = document["workers"]
    filters = [check["filter"] for check in workers[0]["checks"]] if workers else []
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("rank", "worker", "load", *(_header(workers[0], name) for name in filters)):
        table.add_column(title, no_wrap=not console.is_terminal)
    for title in ("speed", "queue", "score", "wait ms", "note"):
        table.add_column(title, justify="left" if title == "note" else "right", no_wrap=not console.is_terminal)
    for worker in workers:
        style = "dim" if worker["rank"] is None else "bold" if worker["rank"] == 1 else None
        table.add_row(*worker_cells(worker), style=style)
    blank = [""] * (len(filters) + 5)
    for other in document["others"]:
        table.add_row("-", escape(other["worker_id"]), *blank, reason_of(other["reason"]), style="dim")
    if not console.is_terminal:
        wide = console.options.update(max_width=_PIPE_WIDTH)
        console.width = max(80, console.measure(table, options=wide).maximum)
    console.print(table)


def worker_cells(worker: Mapping[str, Any]) -> list[str]:
    """One candidate, in the order of the columns."""
    terms = worker["terms"]
    removed = worker["removed_by"]
    return [
        "-" if worker["rank"] is None else str(worker["rank"]),
        escape(worker["worker_id"]),
        number(worker["load"]),
        *(_check(check) for check in worker["checks"]),
        f"{terms['token_rate']:.3f}",
        f"{terms['queue']:.3f}",
        f"{terms['total']:.4f}",
        number(worker["expected_wait_ms"]),
        f"removed by {removed}" if removed else "",
    ]


def reason_of(reason: str) -> str:
    """Why a worker was no candidate, in words."""
    match reason:
        case "model":
            return "serves other models"
        case "exclusive":
            return "exclusive to other agents"
        case "no_address":
            return "has no address"
        case _:
            return reason


def number(value: float | None) -> str:
    """A number as short as it can be; what is not known is no zero."""
    return _UNKNOWN if value is None else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _header(worker: Mapping[str, Any], name: str) -> str:
    check = next(each for each in worker["checks"] if each["filter"] == name)
    if name in _OWN_LIMITS:
        return f"{_TITLES[name]} < {_OWN_LIMITS[name]}"
    return f"{_TITLES.get(name, name)} {_SIGNS[check['bound']]} {number(check['limit'])} {_UNITS.get(name, '')}".strip()


def _check(check: Mapping[str, Any]) -> str:
    mark = "[green]✓[/]" if check["passed"] else "[red]✗[/]"
    limit = f" {_SIGNS[check['bound']]} {number(check['limit'])}" if check["filter"] in _OWN_LIMITS else ""
    return f"{mark} {number(check['have'])}{limit}"
