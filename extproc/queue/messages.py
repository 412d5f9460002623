"""What a process and the owner of the queue say to each other, and how that goes over a socket: a JSON array a line.

Both ends are processes of one product under one user, started together. A line that cannot be read is a bug or a
stranger: its connection is closed, and whoever waits enters again over a new one.
"""

import json
from dataclasses import dataclass, fields
from typing import Any, Final

from recursant.agents.priority import PriorityClass
from recursant.routing.need import Need
from recursant.routing.picker import Refusal

# A request that names every exclusive worker of a large fleet fits; what is longer is none of ours.
MAX_LINE_BYTES: Final = 1 << 20


class MessageError(ValueError):
    """A line that is no message."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: which process speaks."""

    process: int


@dataclass(slots=True)
class Enter:
    """A request wants a place, now or later. Times are monotonic seconds, which all processes of a host share.

    Attributes:
        number: names the request, together with its process.
        agent: for fairness within a class.
        priority_class: its own, before ageing.
        since_s: when it began to wait.
        until_s: how long it may wait.
        need: what the worker must have.
        known: its agent has a policy; without one, workers take turns.
        shapes: a shorter answer is welcome where memory is short.
        fallback: the one that leads here, if it is placed at once.
        held_fallback: the same, if it is placed after it was held.
        waits_for: the refusals after which it is held; after another one it is told.
        cached: where it would rather go, and tokens of its prompt that are believed to be there; see `Leaning`.
        sticky: the first of those is its session's.
        apart: see `Held`.
    """

    number: int
    agent: str
    priority_class: PriorityClass
    since_s: float
    until_s: float
    need: Need
    known: bool
    shapes: bool
    fallback: str | None
    held_fallback: str | None
    waits_for: tuple[Refusal, ...]
    cached: tuple[tuple[str, int], ...] = ()
    sticky: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """A request wants no place any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A granted place was taken, and is counted by its process from now on."""

    number: int


@dataclass(frozen=True, slots=True)
class Declined:
    """A granted place was not taken."""

    number: int


@dataclass(frozen=True, slots=True)
class Freed:
    """A place was given back."""


@dataclass(frozen=True, slots=True)
class Granted:
    """A request has a place: at the first of `rows`. See `Decision`.

    Attributes:
        affinity: whether the first of them is where it would rather go.
        cached_tokens: see `Decision`.
        at_s: when; a place is kept for a moment only.
    """

    number: int
    rows: tuple[int, ...]
    model: str
    fallback: str | None
    shaped: int | None
    affinity: str | None
    cached_tokens: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """Nobody can take the request now, and it does not wait for that."""

    number: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Full:
    """The request had to leave: too many wait."""

    number: int


Request = Hello | Enter | Leave | Placed | Declined | Freed
Reply = Granted | Refused | Full

_KINDS: Final[dict[str, Any]] = {
    kind.__name__: kind for kind in (Hello, Enter, Leave, Placed, Declined, Freed, Granted, Refused, Full)
}
# By position, as both ends have the same release: half the bytes, and a third of the time.
_FIELDS: Final = {kind: tuple(field.name for field in fields(kind)) for kind in (*_KINDS.values(), Need)}
_NUMBERED: Final = ("number", "process")


def _plain(value: Any) -> Any:
    """What JSON has no form for."""
    if isinstance(value, Need):
        return [getattr(value, name) for name in _FIELDS[Need]]
    return sorted(value)


_write: Final = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def encode(message: Request | Reply) -> bytes:
    """A line."""
    kind = type(message)
    return _write([kind.__name__, *[getattr(message, name) for name in _FIELDS[kind]]]).encode() + b"\n"


def decode(line: bytes) -> Request | Reply:
    """The message of a line.

    Raises:
        MessageError: it is none.
    """
    try:
        name, *values = json.loads(line)
        kind = _KINDS[name]
        given = dict(zip(_FIELDS[kind], values, strict=True))
        if any(type(given[each]) is not int for each in _NUMBERED if each in given):
            raise MessageError(f"not a {name}")
        if kind is Enter:
            _read_enter(given)
        elif kind is Granted:
            given["rows"] = tuple(int(row) for row in given["rows"])
            given["at_s"] = float(given["at_s"])
        elif kind is Refused:
            given["refusal"] = Refusal(given["refusal"])
        message: Request | Reply = kind(**given)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise MessageError("not a message of the queue") from error
    return message


def _read_enter(given: dict[str, Any]) -> None:
    need = dict(zip(_FIELDS[Need], given["need"], strict=True))
    need["exclusive"] = frozenset(need["exclusive"])
    if need["count_as"] is not None:
        need["count_as"] = PriorityClass(need["count_as"])
    given["need"] = Need(**need)
    given["priority_class"] = PriorityClass(given["priority_class"])
    given["since_s"], given["until_s"] = float(given["since_s"]), float(given["until_s"])
    given["waits_for"] = tuple(Refusal(each) for each in given["waits_for"])
    given["cached"] = tuple((str(worker_id), int(tokens)) for worker_id, tokens in given["cached"])
