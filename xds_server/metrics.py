"""What the xDS service counts, and how Prometheus gets it.

Labels are types and states that we know by name, never what a client sends.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from recursant.fleet.worker import WorkerStatus
from xds_server.status import ClientStatus, SyncState
from xds_server.traits import traits_of

# Seconds. A build of the endpoints takes about 1 ms for 100 workers, a whole one 15 ms.
_BUILD_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Recorder:
    """Counters of one process. May be used from any thread.

    Args:
        registry: where they are exported.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        by_type = ("type",)
        self._pushes = Counter("recursant_xds_pushes", "Responses sent to xDS clients.", by_type, registry=registry)
        self._nacks = Counter("recursant_xds_nacks", "Responses that clients refused.", by_type, registry=registry)
        self._overdue = Counter(
            "recursant_xds_overdue_acks",
            "Times that a client left a push unanswered for longer than xds.ack_timeout_ms.",
            by_type,
            registry=registry,
        )
        self._refused_streams = Counter(
            "recursant_xds_refused_streams", "Streams that we ended, by why.", ("reason",), registry=registry
        )
        self._builds = Histogram(
            "recursant_xds_snapshot_build_seconds",
            "Time to build, check and publish a snapshot.",
            buckets=_BUILD_BUCKETS,
            registry=registry,
        )
        self._failures = Counter(
            "recursant_xds_snapshot_failures",
            "Snapshots that could not be built or were inconsistent; the last good one stays.",
            registry=registry,
        )
        self._fail_open = Counter(
            "recursant_extproc_fail_open",
            "Requests that Envoy served by its own weights because extproc was away.",
            registry=registry,
        )

    def pushed(self, type_url: str) -> None:
        """A response was sent."""
        self._pushes.labels(traits_of(type_url).label).inc()

    def refused(self, type_url: str) -> None:
        """A client sent a NACK."""
        self._nacks.labels(traits_of(type_url).label).inc()

    def overdue(self, type_url: str) -> None:
        """A client is silent for too long."""
        self._overdue.labels(traits_of(type_url).label).inc()

    def stream_refused(self, reason: str) -> None:
        """We ended a stream; `reason` is one of our own words."""
        self._refused_streams.labels(reason).inc()

    def snapshot_built(self, seconds: float) -> None:
        """A snapshot was published."""
        self._builds.observe(seconds)

    def snapshot_failed(self) -> None:
        """A snapshot was not published."""
        self._failures.inc()

    def failed_open(self, requests: int) -> None:
        """Envoy reports requests that it served without extproc."""
        self._fail_open.inc(requests)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What others know at the moment of a scrape.

    Attributes:
        clients: every open stream.
        workers: workers by state.
        snapshot_age_s: seconds since the last message from Redis.
        redis_up: whether Redis is reachable.
        failing: whether the last snapshot could not be built, and an older one is served.
    """

    clients: Iterable[ClientStatus]
    workers: Mapping[WorkerStatus, int]
    snapshot_age_s: float
    redis_up: bool
    failing: bool


class XdsCollector(Collector):
    """The gauges.

    Args:
        read_gauges: called on the scrape's thread, once a scrape.
    """

    def __init__(self, read_gauges: Callable[[], Gauges]) -> None:
        self._read_gauges = read_gauges

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        gauges = self._read_gauges()
        clients = list(gauges.clients)
        streams = GaugeMetricFamily("recursant_xds_streams", "xDS streams now.", labels=("protocol",))
        for protocol, count in sorted(Tally(client.protocol for client in clients).items()):
            streams.add_metric((protocol,), count)
        yield streams

        synced = GaugeMetricFamily(
            "recursant_xds_clients", "Clients by what they have of each type they want.", labels=("type", "state")
        )
        tally = Tally((traits_of(each.type_url).label, each.state) for client in clients for each in client.types)
        for label in sorted({label for label, _ in tally}):
            for state in SyncState:
                synced.add_metric((label, state), tally[label, state])
        yield synced

        workers = GaugeMetricFamily("recursant_workers", "Workers that this process knows.", labels=("state",))
        for status in WorkerStatus:
            workers.add_metric((status,), gauges.workers.get(status, 0))
        yield workers

        yield GaugeMetricFamily(
            "recursant_snapshot_age_seconds", "Time since the last message from Redis.", value=gauges.snapshot_age_s
        )
        yield GaugeMetricFamily("recursant_redis_up", "1 while Redis is reachable.", value=int(gauges.redis_up))
        yield GaugeMetricFamily(
            "recursant_xds_snapshot_failing",
            "1 while the last snapshot could not be built and an older one is served.",
            value=int(gauges.failing),
        )

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read gauges whose owners do not run yet."""
        return iter(())
