"""`GET /metrics`: this process's own, and the other services' as far as they answer."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.responses import Response

from recursant.api.dependencies import Fleet
from recursant.api.exposition import Part, merge
from recursant.api.reports import ReportSink
from recursant.fleet.worker import WorkerStatus

OWN_SERVICE = "api"


class ApiCollector(Collector):
    """What the API itself knows: the fleet, the link to Redis, the reports it took.

    Args:
        fleet: read at every scrape.
        reports: whose counts to export.
        clock: the fleet's.
    """

    def __init__(self, fleet: Fleet, reports: ReportSink, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._reports = reports
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        fleet = self._fleet
        counts = Counter(record.status for record in fleet.records.values())
        workers = GaugeMetricFamily("recursant_workers", "Workers that this process knows.", labels=("state",))
        for status in WorkerStatus:
            workers.add_metric((status.value,), counts[status])
        yield workers
        yield GaugeMetricFamily(
            "recursant_snapshot_age_seconds",
            "Time since the last message from Redis.",
            value=fleet.snapshot_age_s(self._clock()),
        )
        yield GaugeMetricFamily("recursant_redis_up", "1 while Redis is reachable.", value=int(fleet.redis_up))
        reports = CounterMetricFamily(
            "recursant_worker_reports", "Workers' reports over HTTP, by outcome.", labels=("outcome",)
        )
        for outcome, count in self._reports.counts.items():
            reports.add_metric((outcome,), count)
        yield reports

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read the fleet."""
        return iter(())


def router(registry: CollectorRegistry, read_peers: Callable[[], Awaitable[Sequence[Part]]]) -> APIRouter:
    """`GET /metrics`; each sample says by its `service` label whose it is."""
    routes = APIRouter(tags=["metrics"])

    @routes.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Prometheus text format. `recursant_scrape_up{service}` is 0 for a service that did not answer."""
        peers = await read_peers()
        up = Metric("recursant_scrape_up", "1 where a service's metrics are part of this answer.", "gauge")
        for part in peers:
            up.add_sample(up.name, part.labels, int(part.text is not None))
        own = generate_latest(registry).decode() + generate_latest(_One(up)).decode()
        return Response(merge([Part(OWN_SERVICE, own), *peers]), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes


class _One(CollectorRegistry):
    """A registry of one metric, made for one answer."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(auto_describe=False)
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric
