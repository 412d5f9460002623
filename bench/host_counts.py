"""What hosts know of each other's requests: workers' reports alone, or counts that hosts publish to each other as well.

    python -m bench.host_counts

One worker, some hosts, requests at random times. At each pick of the first host: the load that it believes the worker
to have, by the rule of `recursant.routing.scorers.load_of`, less the true one. The rows are in docs/adr/0007.
"""

import bisect
import random
import statistics
from dataclasses import dataclass
from typing import Final

BEAT_S: Final = 0.2
# A report's or a count's way through Redis.
DELIVERY_S: Final = 0.005
SIMULATED_S: Final = 400.0
# Nothing is asked before every count has come once, nor while requests only end.
MARGIN_S: Final = 5.0


@dataclass(frozen=True)
class Errors:
    """Of the load that is believed, in requests; below zero: too few."""

    mean: float
    low: int
    high: int


class Counts:
    """How many requests some hosts have in flight, at any time."""

    def __init__(self, spans: list[tuple[float, float]]) -> None:
        edges = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
        self._times = [at for at, _ in edges]
        self._counts = [0]
        for _, change in edges:
            self._counts.append(self._counts[-1] + change)

    def before(self, at: float) -> int:
        """What has happened before this moment, and no more."""
        return self._counts[bisect.bisect_left(self._times, at)]


def errors(*, hosts: int, rate: float, service_s: float, publish_s: float | None) -> Errors:
    """Simulate, with the same requests for each `publish_s`.

    Args:
        hosts: that send to the worker.
        rate: requests per second, of all hosts.
        service_s: mean time of a request.
        publish_s: how often a host publishes its counts; None: never.
    """
    rng = random.Random(1)
    spans: list[list[tuple[float, float]]] = []
    for _ in range(hosts):
        at, own = 0.0, []
        while at < SIMULATED_S:
            at += rng.expovariate(rate / hosts)
            own.append((at, at + rng.expovariate(1 / service_s)))
        spans.append(own)
    here, all_of_them = Counts(spans[0]), Counts([span for each in spans for span in each])
    elsewhere = [Counts(each) for each in spans[1:]]
    phases = [rng.random() for _ in elsewhere]

    def told(at: float) -> int:
        """The others' counts as they have come by then."""
        if publish_s is None:
            return 0
        known = [(((at - DELIVERY_S) / publish_s - phase) // 1 + phase) * publish_s for phase in phases]
        return sum(counts.before(moment) for counts, moment in zip(elsewhere, known, strict=True))

    found: list[int] = []
    for began, _ in spans[0]:
        if MARGIN_S < began < SIMULATED_S - MARGIN_S:
            beat = (began - DELIVERY_S) // BEAT_S * BEAT_S
            came = beat + DELIVERY_S
            now, then = (here.before(at) + told(at) for at in (began, came))
            found.append(max(now, all_of_them.before(beat) + now - then) - all_of_them.before(began))
    found.sort()
    return Errors(statistics.fmean(map(abs, found)), found[len(found) // 100], found[-1 - len(found) // 100])


def main() -> None:
    """Print the rows."""
    print("| requests/s | mean time, s | hosts | published every | mean error | 1 % | 99 % |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for rate, service_s in ((10, 2.0), (50, 0.4), (200, 0.2)):
        for hosts in (2, 4):
            for publish_s in (None, 0.2, 0.05):
                row = errors(hosts=hosts, rate=rate, service_s=service_s, publish_s=publish_s)
                every = "never" if publish_s is None else f"{publish_s * 1_000:.0f} ms"
                print(f"| {rate} | {service_s:g} | {hosts} | {every} | {row.mean:.2f} | {row.low:+d} | {row.high:+d} |")


if __name__ == "__main__":
    main()
