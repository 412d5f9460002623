"""What services export about isolation."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class IsolationFigures:
    """Numbers of one process.

    Attributes:
        decided: isolations that this process decided, by reason; several may decide the same one.
        isolated: workers that are isolated now, whoever decided it.
        on_trial: workers on trial now.
        spared: workers that should be isolated, while too much of the fleet is already.
    """

    decided: Mapping[str, int] = field(default_factory=dict)
    isolated: int = 0
    on_trial: int = 0
    spared: int = 0


def isolation_metrics(figures: IsolationFigures) -> Iterator[Metric]:
    """The metrics of these numbers."""
    decided = CounterMetricFamily(
        "recursant_isolations", "Isolations that this process decided, by reason.", labels=("reason",)
    )
    for reason, count in figures.decided.items():
        decided.add_metric((reason,), count)
    yield decided
    yield GaugeMetricFamily("recursant_isolated_workers", "Workers that are isolated now.", value=figures.isolated)
    yield GaugeMetricFamily("recursant_trial_workers", "Workers on trial after an isolation.", value=figures.on_trial)
    yield GaugeMetricFamily(
        "recursant_isolation_alarm",
        "Workers that should be isolated, while too much of the fleet is already.",
        value=figures.spared,
    )


class IsolationCollector(Collector):
    """Exports them.

    Args:
        read: the numbers as they are now.
    """

    def __init__(self, read: Callable[[], IsolationFigures]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        yield from isolation_metrics(self._read())

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not read them."""
        return iter(())
