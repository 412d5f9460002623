"""Several Prometheus expositions as one, each service's samples labelled with its name.

Pure text work: samples are passed on as they came, only with one label more. A family that several services
have (`recursant_workers`, `process_cpu_seconds_total`) is one family afterwards, as the format wants it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

SERVICE_LABEL: Final = "service"
PROCESS_LABEL: Final = "process"


@dataclass(frozen=True, slots=True)
class Part:
    """One service's metrics, or those of one of its processes.

    Attributes:
        service: its name.
        text: None where it did not answer.
        process: which of several; empty where there is one.
    """

    service: str
    text: str | None
    process: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """What each of its samples is given."""
        return {SERVICE_LABEL: self.service} | ({PROCESS_LABEL: self.process} if self.process else {})


@dataclass(slots=True)
class _Family:
    head: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


def merge(parts: Iterable[Part]) -> str:
    """The parts as one exposition (text format 0.0.4)."""
    families: dict[str, _Family] = {}
    for part in parts:
        if part.text is not None:
            _add(families, part.labels, part.text)
    lines = [line for family in families.values() for line in (*family.head, *family.samples)]
    return "".join(f"{line}\n" for line in lines)


def _add(families: dict[str, _Family], given: dict[str, str], text: str) -> None:
    label = ",".join(f'{key}="{value}"' for key, value in given.items())
    name = ""
    heads: dict[str, list[str]] = {}
    for line in text.split("\n"):
        words = line.split(" ", 3)
        if len(words) >= 3 and words[0] == "#" and words[1] in ("HELP", "TYPE"):
            name = words[2]
            heads.setdefault(name, []).append(line)
        elif line and not line.startswith("#"):
            sample = line[: _name_end(line)]
            # A histogram's samples have its name and a suffix; one without a head stands for itself.
            owner = name if name and sample.startswith(name) else sample
            families.setdefault(owner, _Family()).samples.append(_labelled(line, label))
    for owner, head in heads.items():
        family = families.setdefault(owner, _Family())
        # What the first to have it says about a family holds for all.
        family.head = family.head or head


def _name_end(line: str) -> int:
    ends = [end for mark in "{ " if (end := line.find(mark)) >= 0]
    return min(ends, default=len(line))


def _labelled(line: str, label: str) -> str:
    end = _name_end(line)
    name, rest = line[:end], line[end:]
    if not rest.startswith("{"):
        return f"{name}{{{label}}}{rest}"
    labels = rest[1:].lstrip()
    # A quote inside a label's value is escaped, so this is a label's beginning and nothing else.
    if labels.startswith(f'{SERVICE_LABEL}="') or f',{SERVICE_LABEL}="' in labels:
        return line
    return f"{name}{{{label}{'' if labels.startswith('}') else ','}{labels}"
