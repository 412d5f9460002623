"""What extproc counts, and how Prometheus gets it.

The request path touches plain integers only; `ExtProcCollector` turns them into metrics when somebody scrapes.
Labels come from configured names and the fleet's worker ids, never from a client, and every table is bounded.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.transports.base import TransportStats
from recursant.admission.calibration import Estimate
from recursant.fleet.isolation_metrics import IsolationFigures, isolation_metrics
from recursant.names import NO_AGENT

# Seconds. The decision's bound is 3 ms and its aim 0.1 ms (SPEC C6), so that is where the resolution is.
DECISION_BUCKETS: Final = (
    0.00002,
    0.00005,
    0.0001,
    0.0002,
    0.0003,
    0.0005,
    0.001,
    0.002,
    0.003,
    0.005,
    0.01,
    0.05,
    0.25,
)
# Series of one counter. A fleet whose workers come and go under new names reaches it; what is beyond is counted
# under OTHER.
MAX_SERIES: Final = 20_000
OTHER: Final = "other"


class Recorder:
    """Counts what happens to requests. One per process, on the event loop's thread.

    Args:
        max_series: the most label combinations that a counter keeps apart.
    """

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._requests: dict[tuple[str, str, str], int] = {}
        self._fallbacks: dict[tuple[str, str], int] = {}
        self._affinity: dict[tuple[str, str], int] = {}
        # Who has series of its own; None: everybody.
        self._agents: frozenset[str] | None = None
        # One more than the buckets: the last is +Inf.
        self._decisions = [0] * (len(DECISION_BUCKETS) + 1)
        self._decision_seconds = 0.0

    def request_finished(self, agent: str, worker: str, outcome: str) -> None:
        """A request is over.

        Args:
            agent: a configured agent id, or `names.NO_AGENT`.
            worker: the worker that served it; empty where none did.
            outcome: one of the session's own words.
        """
        key = (agent, worker, outcome)
        requests = self._requests
        try:
            requests[key] += 1
        except KeyError:
            if len(requests) >= self._max_series:
                key = (OTHER, OTHER, outcome)
            elif not self._known(agent):
                key = (OTHER, worker, outcome)
            requests[key] = requests.get(key, 0) + 1

    def decided(self, seconds: float) -> None:
        """A decision took `seconds`."""
        self._decisions[bisect_left(DECISION_BUCKETS, seconds)] += 1
        self._decision_seconds += seconds

    def fallback_taken(self, agent: str, strategy: str) -> None:
        """A request of `agent` went the way of `strategy`, a configured name."""
        key = (agent, strategy)
        fallbacks = self._fallbacks
        if key not in fallbacks and (len(fallbacks) >= self._max_series or not self._known(agent)):
            key = (OTHER, strategy)
        fallbacks[key] = fallbacks.get(key, 0) + 1

    def affinity_settled(self, agent: str, outcome: str) -> None:
        """A request of `agent` went to the worker of its session or prefix, or elsewhere: one of a few words."""
        key = (agent if self._known(agent) else OTHER, outcome)
        self._affinity[key] = self._affinity.get(key, 0) + 1

    def forget_worker(self, worker: str) -> None:
        """Drop the series of a worker that left the fleet, so that departed names do not pile up."""
        for key in [key for key in self._requests if key[1] == worker]:
            del self._requests[key]

    def keep_agents(self, agents: Iterable[str]) -> None:
        """Let only these agents have series of their own; what was counted of others goes on under OTHER.

        So the names of deleted agents do not pile up, and no sum falls. Requests that outlive their agent count there.
        """
        self._agents = frozenset((*agents, NO_AGENT, OTHER))
        for key in [key for key in self._requests if key[0] not in self._agents]:
            count = self._requests.pop(key)
            folded = (OTHER, *key[1:])
            self._requests[folded] = self._requests.get(folded, 0) + count
        for name in [name for name in self._fallbacks if name[0] not in self._agents]:
            count = self._fallbacks.pop(name)
            self._fallbacks[OTHER, name[1]] = self._fallbacks.get((OTHER, name[1]), 0) + count
        for name in [name for name in self._affinity if name[0] not in self._agents]:
            count = self._affinity.pop(name)
            self._affinity[OTHER, name[1]] = self._affinity.get((OTHER, name[1]), 0) + count

    def _known(self, agent: str) -> bool:
        return self._agents is None or agent in self._agents

    # The scrape runs on a thread of its own. Copies of dicts and lists are atomic under the interpreter lock, so the
    # loop's thread never waits.

    def requests(self) -> dict[tuple[str, str, str], int]:
        """Finished requests by agent, worker and outcome; safe from any thread."""
        return self._requests.copy()

    def fallbacks(self) -> dict[tuple[str, str], int]:
        """Fallbacks by agent and strategy; safe from any thread."""
        return self._fallbacks.copy()

    def affinities(self) -> dict[tuple[str, str], int]:
        """What became of affinity, by agent and outcome; safe from any thread."""
        return self._affinity.copy()

    def decisions(self) -> tuple[list[int], float]:
        """Decisions in each bucket, the last being +Inf, and the seconds they took together; safe from any thread."""
        return self._decisions.copy(), self._decision_seconds


@dataclass(frozen=True, slots=True)
class Gauges:
    """What others know at the moment of a scrape.

    Attributes:
        inflight: requests of this process on each worker.
        workers: workers by state.
        snapshot_age_s: seconds since the last message from Redis.
        redis_up: whether Redis is reachable.
        queue_depth: requests held here, by class.
        transport: the transport's counters.
        isolation: who is isolated, and how often that was decided here.
        estimates: what was learnt of the length of prompts, by model family.
        remembered: sessions, and blocks of prompts, whose workers are remembered.
        unshared: sessions that other gateways were never told of, as there were too many, or no Redis.
    """

    inflight: Mapping[str, int]
    workers: Mapping[str, int]
    snapshot_age_s: float
    redis_up: bool
    queue_depth: Mapping[str, int]
    transport: TransportStats
    isolation: IsolationFigures = field(default_factory=IsolationFigures)
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    remembered: tuple[int, int] = (0, 0)
    unshared: int = 0


class ExtProcCollector(Collector):
    """Everything that the extproc service exports (DESIGN §9, "Core metrics").

    Args:
        recorder: the counts of requests.
        read_gauges: called on the scrape's thread, once a scrape.
    """

    def __init__(self, recorder: Recorder, read_gauges: Callable[[], Gauges]) -> None:
        self._recorder = recorder
        self._read_gauges = read_gauges

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        gauges = self._read_gauges()
        yield from self._counts()
        yield from _states(gauges)
        yield from _streams(gauges.transport)
        yield from isolation_metrics(gauges.isolation)
        yield from _estimates(gauges.estimates)
        yield from _remembered(gauges)

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read gauges whose owners do not run yet."""
        return iter(())

    def _counts(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "recursant_requests", "Requests that are over.", labels=("agent", "worker", "outcome")
        )
        for labels, count in self._recorder.requests().items():
            requests.add_metric(labels, count)
        yield requests

        fallbacks = CounterMetricFamily("recursant_fallbacks", "Fallbacks taken.", labels=("agent", "strategy"))
        for names, count in self._recorder.fallbacks().items():
            fallbacks.add_metric(names, count)
        yield fallbacks

        affinity = CounterMetricFamily(
            "recursant_affinity", "Requests that led back to a worker: kept, or why not.", labels=("agent", "outcome")
        )
        for settled, count in self._recorder.affinities().items():
            affinity.add_metric(settled, count)
        yield affinity

        counts, seconds = self._recorder.decisions()
        buckets = []
        total = 0
        for bound, count in zip((*map(str, DECISION_BUCKETS), "+Inf"), counts, strict=True):
            total += count
            buckets.append((bound, total))
        decisions = HistogramMetricFamily("recursant_decision_seconds", "Time from a request's headers to its pick.")
        decisions.add_metric((), buckets, seconds)
        yield decisions


def _states(gauges: Gauges) -> Iterator[Metric]:
    inflight = GaugeMetricFamily(
        "recursant_inflight_requests", "Requests of this process that are on a worker.", labels=("worker",)
    )
    for worker, count in gauges.inflight.items():
        inflight.add_metric((worker,), count)
    yield inflight

    workers = GaugeMetricFamily("recursant_workers", "Workers that this process knows.", labels=("state",))
    for state, count in gauges.workers.items():
        workers.add_metric((state,), count)
    yield workers

    yield GaugeMetricFamily(
        "recursant_snapshot_age_seconds", "Time since the last message from Redis.", value=gauges.snapshot_age_s
    )
    depth = GaugeMetricFamily("recursant_queue_depth", "Requests held until a worker has room.", labels=["class"])
    for priority_class, count in gauges.queue_depth.items():
        depth.add_metric([priority_class], count)
    yield depth
    yield GaugeMetricFamily("recursant_redis_up", "1 while Redis is reachable.", value=int(gauges.redis_up))


def _estimates(estimates: Mapping[str, Estimate]) -> Iterator[Metric]:
    ratio = GaugeMetricFamily(
        "recursant_bytes_per_token", "Bytes of a request body that count as one prompt token.", labels=("family",)
    )
    error = GaugeMetricFamily(
        "recursant_prompt_estimate_error_ratio",
        "Mean distance of the estimated length of prompts from the real one, as a share of it.",
        labels=("family",),
    )
    windows = CounterMetricFamily(
        "recursant_prompt_estimate_windows", "Comparisons of estimated and real lengths.", labels=("family",)
    )
    for family, estimate in estimates.items():
        ratio.add_metric((family,), estimate.bytes_per_token)
        error.add_metric((family,), estimate.error)
        windows.add_metric((family,), estimate.windows)
    yield ratio
    yield error
    yield windows


def _remembered(gauges: Gauges) -> Iterator[Metric]:
    sessions, blocks = gauges.remembered
    yield GaugeMetricFamily("recursant_sessions", "Sessions whose worker is remembered.", value=sessions)
    yield GaugeMetricFamily("recursant_prefix_blocks", "Blocks of prompts whose workers are remembered.", value=blocks)
    yield CounterMetricFamily(
        "recursant_sessions_unshared", "Sessions that other gateways were not told of.", value=gauges.unshared
    )


def _streams(stats: TransportStats) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "recursant_extproc_connections", "Connections of the lean transport.", value=stats.connections_open
    )
    yield GaugeMetricFamily("recursant_extproc_streams", "ext_proc streams now.", value=stats.streams_open)
    yield CounterMetricFamily(
        "recursant_extproc_streams_begun", "ext_proc streams ever begun.", value=stats.streams_total
    )
    errors = CounterMetricFamily("recursant_extproc_errors", "Errors of the transport, by kind.", labels=("kind",))
    for kind, count in stats.errors.copy().items():
        errors.add_metric((kind,), count)
    yield errors
