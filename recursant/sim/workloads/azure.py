"""Azure's LLM inference traces (Splitwise, ISCA 2024; CC-BY-4.0): when requests came, and how long they were.

The format: CSV with the header `TIMESTAMP,ContextTokens,GeneratedTokens`; times of day with up to 7 digits of a
second's fraction. No agents, sessions or prefixes are in it.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.labels import ONE_AGENT, Label
from recursant.sim.workloads.trace_file import TraceError, numbered_lines, whole_number

HEADER: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(path: Path, label: Label = ONE_AGENT) -> Iterator[Arrival]:
    """The arrivals of a file in this format, in its order, the first at 0 s.

    An answer of no token is counted as one token: an engine computes one to find that nothing follows.

    Raises:
        TraceError: the file cannot be read; a line is not in the format; its times go back.
    """
    lines = numbered_lines(path)
    number, header = next(lines, (1, ""))
    if tuple(name.strip() for name in header.split(",")) != HEADER:
        raise TraceError(path, number, f"the header must be {','.join(HEADER)}, not {header[:80]!r}")
    start: datetime | None = None
    before = 0.0
    for number, line in lines:
        fields = line.split(",")
        if len(fields) != len(HEADER):
            raise TraceError(path, number, f"{len(HEADER)} fields expected ({','.join(HEADER)}), {len(fields)} found")
        stamp = _time(path, number, fields[0])
        start = start or stamp
        try:
            at = (stamp - start).total_seconds()
        except TypeError:
            raise TraceError(
                path, number, f"TIMESTAMP {fields[0]!r}: with and without a time zone in one file"
            ) from None
        if at < before:
            raise TraceError(path, number, f"TIMESTAMP {fields[0]!r} is before that of the line above")
        before = at
        prompt = whole_number(path, number, "ContextTokens", fields[1], 1)
        output = max(1, whole_number(path, number, "GeneratedTokens", fields[2], 0))
        yield Arrival(at, label(prompt, output), prompt, output)


def _time(path: Path, number: int, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise TraceError(
            path, number, f"TIMESTAMP must be a time like 2023-11-16 18:15:46.6805900, not {text!r}"
        ) from None
