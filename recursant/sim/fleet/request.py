"""One request on its way through the simulated fleet, and what became of it."""

from enum import StrEnum

from recursant.sim.workloads.arrival import Arrival


class Ending(StrEnum):
    """How a request ended. Every request ends exactly once."""

    SERVED = "served"
    # Shed by admission: 429.
    SHED = "shed"
    # Nobody could take it in time: 503 or 504 of the gateway.
    UNSERVED = "unserved"
    # The engine had no memory for it: 500.
    OUT_OF_MEMORY = "out_of_memory"
    # Any other 5xx of a worker.
    FAILED = "failed"
    # The worker died while it ran, or before it answered.
    BROKEN = "broken"


class Request:
    """One request. Times are virtual seconds; None while it has not happened.

    Attributes:
        number: its place in the workload, from 0.
        arrival: what the workload says of it.
        body_bytes: length of its body, all that gateways know of its prompt's.
        engine_priority: for the engine's own queue; smaller runs sooner.
        attempts: workers that were asked.
        worker: index of the worker that has or had it; None before.
        first_token_s, ended_s: when.
        cached_tokens: of its prompt, found in the worker's prefix cache.
        fallback: what the gateway did in place of the plain pick.
    """

    __slots__ = (
        "arrival",
        "attempts",
        "body_bytes",
        "cached_tokens",
        "ended_s",
        "ending",
        "engine_priority",
        "fallback",
        "first_token_s",
        "number",
        "worker",
    )

    def __init__(self, number: int, arrival: Arrival, body_bytes: int) -> None:
        self.number = number
        self.arrival = arrival
        self.body_bytes = body_bytes
        self.engine_priority = 0
        self.attempts = 0
        self.worker: int | None = None
        self.first_token_s: float | None = None
        self.ended_s: float | None = None
        self.ending: Ending | None = None
        self.cached_tokens = 0
        self.fallback: str | None = None

    @property
    def first_token_ms(self) -> float | None:
        """Arrival to first token, in ms."""
        return None if self.first_token_s is None else (self.first_token_s - self.arrival.at_s) * 1_000
