"""Numbers out of a run: latencies, goodput, use of the workers, fairness."""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from recursant.sim.fleet.request import Ending, Request
from recursant.sim.fleet.simulation import Run

# Windows in which a percentile is taken, to see how much it moves. Seconds.
WINDOW_S: Final = 10.0
# Fewer requests make no percentile.
FEWEST_IN_WINDOW: Final = 20
# How often times are dealt out to windows anew, to see what chance alone does.
_DEALS: Final = 10


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in numbers. Times are ms, from arrival to the first token, of requests that were served.

    Attributes:
        requests: how many came.
        success: share of them that was served.
        goodput: share of them that was served with its first token within its target.
        p50_ms, p90_ms, p99_ms: over all.
        high_p99_ms, high_p50_ms: over the agents that are named urgent.
        high_goodput: of theirs.
        p99_stddev_ms: standard deviation of the P99 of the urgent ones over windows of 10 s.
        p99_stddev_chance_ms: what that would be if the same times came in any order: windows hold some hundred
            requests, so their P99 moves by chance alone.
        end_p99_ms: arrival to last token, over all.
        utilisation: use that was made of the devices while requests arrived, mean over workers, 0..1.
        utilisation_spread: its standard deviation over workers, in the same unit.
        oom_rate: requests that an engine failed for want of memory, tried again elsewhere or not, for each request.
        preemptions: for each request.
        shed, unserved, failed: shares.
        fairness: Jain's index over agents of the share that was within its target; 1 is even.
        prefix_hits: share of prompt tokens that came from a prefix cache.
        tokens_s: output tokens a second while requests arrived.
    """

    requests: int
    success: float
    goodput: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    high_p50_ms: float
    high_p99_ms: float
    high_goodput: float
    p99_stddev_ms: float
    p99_stddev_chance_ms: float
    end_p99_ms: float
    utilisation: float
    utilisation_spread: float
    oom_rate: float
    preemptions: float
    shed: float
    unserved: float
    failed: float
    fairness: float
    prefix_hits: float
    tokens_s: float


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted values; NaN of none."""
    return values[max(math.ceil(share * len(values)) - 1, 0)] if values else math.nan


def first_tokens(requests: Iterable[Request]) -> list[float]:
    """Sorted times to the first token of those that were served, in ms."""
    return sorted(
        request.first_token_ms
        for request in requests
        if request.ending is Ending.SERVED and request.first_token_ms is not None
    )


def windows(requests: Iterable[Request], share: float = 0.99) -> list[tuple[float, float]]:
    """(middle of the window, percentile of the time to the first token in ms), by time of arrival."""
    found: dict[int, list[float]] = {}
    for request in requests:
        if request.ending is Ending.SERVED and request.first_token_ms is not None:
            found.setdefault(int(request.arrival.at_s / WINDOW_S), []).append(request.first_token_ms)
    return [
        ((number + 0.5) * WINDOW_S, percentile(sorted(values), share))
        for number, values in sorted(found.items())
        if len(values) >= FEWEST_IN_WINDOW
    ]


def stddev(values: Sequence[float]) -> float:
    """The standard deviation of a population; NaN of nothing."""
    if not values:
        return math.nan
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def chance_stddev(times: Sequence[float], count: int) -> float:
    """The standard deviation over `count` windows of the P99 of these times, dealt out by chance; NaN of nothing."""
    if not times or not count:
        return math.nan
    draw = random.Random(0)
    dealt = list(times)
    size = len(dealt) // count
    found = []
    for _ in range(_DEALS):
        draw.shuffle(dealt)
        parts = [sorted(dealt[number * size : (number + 1) * size]) for number in range(count)]
        found.append(stddev([percentile(part, 0.99) for part in parts]))
    return sum(found) / _DEALS


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 where all are equal, 1/n where one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def in_time(request: Request, target_ms: float | None) -> bool:
    """Was it served, its first token within the target?"""
    if request.ending is not Ending.SERVED or request.first_token_ms is None:
        return False
    own = request.arrival.latency_sla_ms
    limit = target_ms if own is None else own
    return limit is None or request.first_token_ms <= limit


def worker_use(run: Run) -> list[float]:
    """The use that was made of each worker while requests arrived, 0..1."""
    seconds = max(1, min(len(run.used), int(run.arrivals_s)))
    rows = run.used[:seconds]
    return [sum(row[worker] for row in rows) / max(1, len(rows)) for worker in range(len(run.workers))]


def summarise(run: Run, targets_ms: Mapping[str, float], urgent: Callable[[Request], bool]) -> Summary:
    """One run in numbers.

    Args:
        run: to its end.
        targets_ms: by agent, to the first token.
        urgent: which requests are of the high classes.
    """
    requests = run.requests
    count = max(1, len(requests))
    high = [request for request in requests if urgent(request)]
    times = first_tokens(requests)
    high_times = first_tokens(high)
    ends = sorted(
        (request.ended_s - request.arrival.at_s) * 1_000
        for request in requests
        if request.ending is Ending.SERVED and request.ended_s is not None
    )
    good: dict[str, list[bool]] = {}
    high_good = 0
    for request in requests:
        within = in_time(request, targets_ms.get(request.arrival.agent_id))
        good.setdefault(request.arrival.agent_id, []).append(within)
        high_good += within and urgent(request)
    use = worker_use(run)
    endings = {ending: sum(request.ending is ending for request in requests) / count for ending in Ending}
    prompts = sum(request.arrival.prompt_tokens for request in requests)
    return Summary(
        requests=len(requests),
        success=endings[Ending.SERVED],
        goodput=sum(sum(each) for each in good.values()) / count,
        p50_ms=percentile(times, 0.5),
        p90_ms=percentile(times, 0.9),
        p99_ms=percentile(times, 0.99),
        high_p50_ms=percentile(high_times, 0.5),
        high_p99_ms=percentile(high_times, 0.99),
        high_goodput=high_good / max(1, len(high)),
        p99_stddev_ms=stddev([value for _, value in windows(high)]),
        p99_stddev_chance_ms=chance_stddev(high_times, len(windows(high))),
        end_p99_ms=percentile(ends, 0.99),
        utilisation=sum(use) / len(use),
        utilisation_spread=stddev(use),
        oom_rate=sum(worker.out_of_memory for worker in run.workers) / count,
        preemptions=sum(worker.preemptions for worker in run.workers) / count,
        shed=endings[Ending.SHED],
        unserved=endings[Ending.UNSERVED],
        failed=endings[Ending.FAILED] + endings[Ending.BROKEN],
        fairness=jain([sum(each) / len(each) for each in good.values()]),
        prefix_hits=sum(request.cached_tokens for request in requests) / max(1, prompts),
        tokens_s=sum(worker.tokens for worker in run.workers) / max(run.arrivals_s, 1.0),
    )
