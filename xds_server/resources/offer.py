"""What the fleet offers where Envoy decides alone: models, families and engine features of the usable workers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recursant.fleet.worker import WorkerRecord, WorkerStatus


@dataclass(frozen=True, slots=True)
class Offer:
    """What a group of workers offers.

    Attributes:
        names: every model and LoRA adapter that some of them serves, sorted.
        auto: the model that most of them serve, what "auto" becomes while nobody picks; None without workers.
        everywhere: all of them serve `auto`.
        priority_scheduling: all of them order by vLLM's `priority`; one that does not would refuse it.
    """

    names: tuple[str, ...]
    auto: str | None
    everywhere: bool
    priority_scheduling: bool


def ready(workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    """The workers that may get requests, by id."""
    usable = (worker for worker in workers if worker.status is WorkerStatus.READY and worker.endpoint is not None)
    return sorted(usable, key=lambda worker: worker.worker_id)


def families_of(worker: WorkerRecord) -> list[str]:
    """The families that a worker serves, sorted."""
    return sorted({model.family for model in worker.models if model.family})


def offer_of(workers: Sequence[WorkerRecord], family: str | None = None) -> Offer:
    """What `workers` offer: of one family, or of all.

    Exclusive workers do not count: without extproc nobody may use them.
    """
    counts: Counter[str] = Counter()
    adapters: set[str] = set()
    serving = 0
    priority_scheduling = True
    for worker in ready(workers):
        models = {model.name for model in worker.models if family is None or model.family == family}
        if worker.state.exclusive or not models:
            continue
        serving += 1
        counts.update(models)
        adapters.update(worker.state.lora_adapters)
        priority_scheduling = priority_scheduling and worker.state.priority_scheduling
    auto = min(counts, key=lambda name: (-counts[name], name)) if counts else None
    return Offer(
        names=tuple(sorted(adapters | counts.keys())),
        auto=auto,
        everywhere=auto is not None and counts[auto] == serving,
        priority_scheduling=priority_scheduling and serving > 0,
    )
