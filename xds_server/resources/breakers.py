"""How much Envoy lets through to the workers when nobody picks (DESIGN §10: failing open releases everything at once).

Sized to the workers, in steps: a change of a breaker is a change of the cluster, which Envoy warms anew, so the
numbers move only when the fleet doubles or halves.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from recursant.fleet.worker import WorkerRecord
from xds_server.resources.offer import ready

# vLLM's own default for max_num_seqs, for workers that declare neither max_queue nor max_num_seqs.
DEFAULT_MAX_QUEUE: Final = 256
# extproc's queue, not the breaker, shapes normal load; the breaker only stops what is far beyond it.
HEADROOM: Final = 2
SMALLEST_FLEET: Final = 1_024
SMALLEST_WORKER: Final = 256
# What a worker may claim for itself here; a larger claim is a mistake, and must not spoil the cluster for everybody.
LARGEST_WORKER: Final = 65_536
# Envoy's fields have 32 bits.
_LARGEST: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Breakers:
    """Bounds on requests.

    Attributes:
        fleet: running at all workers together, and as many waiting; one more is answered 503.
        worker: running at one worker; one more waits.
    """

    fleet: int
    worker: int


def breakers_for(workers: Iterable[WorkerRecord]) -> Breakers:
    """Sizes for the ready workers: `HEADROOM` times what they want to hold, rounded up to a power of two."""
    queues = [_max_queue(worker) for worker in ready(workers)]
    return Breakers(
        fleet=_step(max(SMALLEST_FLEET, HEADROOM * sum(queues))),
        worker=_step(max(SMALLEST_WORKER, HEADROOM * max(queues, default=DEFAULT_MAX_QUEUE))),
    )


def _max_queue(worker: WorkerRecord) -> int:
    state = worker.state
    return min(state.max_queue or state.max_num_seqs or DEFAULT_MAX_QUEUE, LARGEST_WORKER)


def _step(value: int) -> int:
    return min(1 << (value - 1).bit_length(), _LARGEST)
