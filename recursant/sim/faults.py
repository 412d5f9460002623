"""Faults on command: which are set, and whether a request meets one. Pure; time is an argument."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

MAX_FAULTS: Final = 64


class FaultKind(StrEnum):
    """What can go wrong.

    Some meet single requests, each as often as `count` says; the others are a state of the worker.
    """

    # Requests:
    OOM = "oom"  # 500, CUDA out of memory
    CUDA_ERROR = "cuda_error"  # 500, illegal memory access
    BUSY = "busy"  # 503, as if the queue were full
    HANG = "hang"  # accepted, never answered
    ERROR_IN_STREAM = "error_in_stream"  # status 200, then an error event after `after_tokens` tokens
    # The worker:
    SLOW = "slow"  # steps take `factor` times as long
    FREEZE = "freeze"  # the engine makes no steps; everything else answers
    SLEEP = "sleep"  # as after POST /sleep: /health is 200, requests hang
    UNHEALTHY = "unhealthy"  # /health says 503
    DRAIN = "drain"  # as after SIGTERM: streams go on, /health is 200, new requests get 500
    CRASH = "crash"  # the process ends hard after `duration_ms`


REQUEST_FAULTS: Final = frozenset(
    {FaultKind.OOM, FaultKind.CUDA_ERROR, FaultKind.BUSY, FaultKind.HANG, FaultKind.ERROR_IN_STREAM}
)
_FIELDS: Final = {"kind", "count", "duration_ms", "factor", "probability", "after_tokens"}


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """One fault as it was asked for.

    Attributes:
        kind: what goes wrong.
        count: how many requests meet it; None: all, until the duration is over or it is lifted.
        duration_ms: how long it lasts; None: until it is lifted. For a crash: in how long it comes.
        factor: of SLOW.
        probability: that a request meets it.
        after_tokens: of ERROR_IN_STREAM: tokens that come before the error.
    """

    kind: FaultKind
    count: int | None = None
    duration_ms: float | None = None
    factor: float = 1.0
    probability: float = 1.0
    after_tokens: int = 0

    @classmethod
    def parse(cls, body: Any) -> "FaultSpec":
        """A specification from JSON.

        Raises:
            ValueError: names the field and what is allowed.
        """
        if not isinstance(body, Mapping):
            raise ValueError("a fault is a JSON object")
        if unknown := sorted(set(body) - _FIELDS):
            raise ValueError(f"unknown field {unknown[0]!r}: allowed are {', '.join(sorted(_FIELDS))}")
        try:
            kind = FaultKind(str(body.get("kind")))
        except ValueError:
            raise ValueError(f"kind must be one of {', '.join(FaultKind)}") from None
        return cls(
            kind=kind,
            count=_integer(body, "count", 1),
            duration_ms=_number(body, "duration_ms", 0.0, 86_400_000.0),
            factor=_number(body, "factor", 0.01, 10_000.0) or (10.0 if kind is FaultKind.SLOW else 1.0),
            probability=1.0 if body.get("probability") is None else _number(body, "probability", 0.0, 1.0) or 0.0,
            after_tokens=_integer(body, "after_tokens", 0) or 0,
        )


class _Active:
    __slots__ = ("left", "spec", "until")

    def __init__(self, spec: FaultSpec, now: float) -> None:
        self.spec = spec
        self.left = spec.count
        self.until = None if spec.duration_ms is None else now + spec.duration_ms / 1_000

    def is_over(self, now: float) -> bool:
        return self.left == 0 or (self.until is not None and now >= self.until)


class Faults:
    """The faults that are set. Bounded: the oldest gives way."""

    def __init__(self, seed: int = 0) -> None:
        self._active: list[_Active] = []
        self._random = random.Random(seed)

    def add(self, spec: FaultSpec, now: float) -> None:
        """Sets a fault."""
        self._forget_old(now)
        del self._active[: max(0, len(self._active) + 1 - MAX_FAULTS)]
        self._active.append(_Active(spec, now))

    def clear(self) -> None:
        """Lifts all faults."""
        self._active.clear()

    def meet(self, now: float) -> FaultSpec | None:
        """The fault that a request arriving now meets, if any; it counts as met."""
        for fault in self._active:
            if fault.spec.kind not in REQUEST_FAULTS or fault.is_over(now):
                continue
            if fault.spec.probability < 1.0 and self._random.random() >= fault.spec.probability:
                continue
            if fault.left is not None:
                fault.left -= 1
            return fault.spec
        return None

    def state(self, kind: FaultKind, now: float) -> FaultSpec | None:
        """The fault of that kind that the worker suffers now, the newest if there are several."""
        for fault in reversed(self._active):
            if fault.spec.kind is kind and not fault.is_over(now):
                return fault.spec
        return None

    def describe(self, now: float) -> list[dict[str, Any]]:
        """The faults in force, for people."""
        self._forget_old(now)
        return [
            {
                "kind": fault.spec.kind.value,
                "left": fault.left,
                "seconds_left": None if fault.until is None else round(fault.until - now, 3),
                "factor": fault.spec.factor,
                "probability": fault.spec.probability,
                "after_tokens": fault.spec.after_tokens,
            }
            for fault in self._active
        ]

    def _forget_old(self, now: float) -> None:
        self._active = [fault for fault in self._active if not fault.is_over(now)]


def _integer(body: Mapping[str, Any], name: str, least: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}")
    return value


def _number(body: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}")
    return float(value)
