"""A workload at another rate, or a part of it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, takewhile

from recursant.sim.workloads.arrival import Arrival


def at_rate(arrivals: Iterable[Arrival], factor: float) -> Iterator[Arrival]:
    """The same requests `factor` times as fast: bursts stay bursts, only shorter.

    Raises:
        ValueError: `factor` is not above 0.
    """
    if not 0 < factor < float("inf"):
        raise ValueError(f"the factor of a rate must be above 0, not {factor:g}")
    return (replace(arrival, at_s=arrival.at_s / factor) for arrival in arrivals)


def part(arrivals: Iterable[Arrival], *, seconds: float | None = None, count: int | None = None) -> Iterator[Arrival]:
    """The arrivals of the first `seconds` seconds, `count` at most."""
    chosen: Iterable[Arrival] = arrivals
    if seconds is not None:
        limit = seconds
        chosen = takewhile(lambda arrival: arrival.at_s < limit, chosen)
    return islice(chosen, count)


def within(arrivals: Iterable[Arrival], max_model_len: int) -> Iterator[Arrival]:
    """Only the requests whose prompt and output fit into a model's context together."""
    return (one for one in arrivals if one.prompt_tokens + one.output_tokens <= max_model_len)
