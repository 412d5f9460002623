"""What a `/metrics` says, to be asked by name and labels."""

from prometheus_client.parser import text_string_to_metric_families


class Metrics:
    """A scrape: `metrics.value("recursant_requests_total", agent="chat-web")` sums what matches."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum over all samples of that name that have these labels; 0 if there is none."""
        return sum(
            sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()
        )

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums by one label's values."""
        found: dict[str, float] = {}
        for sample in self.samples:
            if sample.name == name and label in sample.labels:
                found[sample.labels[label]] = found.get(sample.labels[label], 0.0) + sample.value
        return found
