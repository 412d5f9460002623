"""Queue, KV use and prefix at weights 2, 2 and 3: the default of the endpoint picker of the Gateway API Inference
Extension and of llm-d, written from its public description, not from its code.

As described: metrics of every worker are scraped each 50 ms; the queue scorer gives 1 to the shortest waiting queue
and 0 to the longest; the KV scorer gives what is free; the prefix scorer gives the share of the prompt's blocks that
were sent to the worker before, by an index that the picker keeps itself, least recently used entries dropped; the best
sum wins, equal ones are drawn.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from recursant.sim.fleet.policies.plain import PlainRouter
from recursant.sim.fleet.policies.serving import MESH_RETRIES
from recursant.sim.fleet.request import Request
from recursant.sim.fleet.router import Router, Surroundings
from recursant.v1.worker_state_pb2 import WorkerState

QUEUE_WEIGHT: Final = 2.0
KV_WEIGHT: Final = 2.0
PREFIX_WEIGHT: Final = 3.0
SCRAPE_S: Final = 0.05
# Entries of the index for each worker.
INDEX_ENTRIES: Final = 31_250


class _Index:
    """The blocks that were sent to one worker."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def share(self, blocks: Sequence[int]) -> float:
        """How much of the prompt, from its beginning, was there before."""
        found = 0
        for block in blocks:
            if block not in self._blocks:
                break
            found += 1
        return found / len(blocks) if blocks else 0.0

    def add(self, blocks: Sequence[int]) -> None:
        """The prompt is sent there."""
        for block in blocks:
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > INDEX_ENTRIES:
            self._blocks.popitem(last=False)


class EndpointPickerRouter(PlainRouter):
    """See the module."""

    def __init__(self, surroundings: Surroundings, families: Mapping[str, str], retries: int) -> None:
        super().__init__(surroundings, families, retries)
        count = len(surroundings.specs)
        self._queues = [0] * count
        self._kv = [0.0] * count
        self._indexes = [_Index() for _ in range(count)]

    def report(self, worker: int, state: WorkerState) -> None:
        """See Router."""
        self._queues[worker] = state.waiting_requests
        self._kv[worker] = state.kv_cache_usage

    def choose(self, request: Request, among: Sequence[int]) -> int:
        """See PlainRouter."""
        queues = [self._queues[worker] for worker in among]
        least, most = min(queues), max(queues)
        blocks = request.arrival.prefix_blocks
        best: list[int] = []
        best_score = -1.0
        for worker, queue in zip(among, queues, strict=True):
            queue_score = 1.0 if most == least else (most - queue) / (most - least)
            score = QUEUE_WEIGHT * queue_score + KV_WEIGHT * (1.0 - self._kv[worker])
            score += PREFIX_WEIGHT * self._indexes[worker].share(blocks)
            if score > best_score:
                best, best_score = [worker], score
            elif score == best_score:
                best.append(worker)
        chosen = best[self.random.randrange(len(best))]
        self._indexes[chosen].add(blocks)
        return chosen


@dataclass(frozen=True, slots=True)
class EndpointPickerPolicy:
    """Queue, KV use and prefix at 2, 2 and 3."""

    families: Mapping[str, str]
    name: str = "queue + KV + prefix (2/2/3)"
    retries: int = MESH_RETRIES
    report_s: float | None = SCRAPE_S
    priority_scheduling: bool = False
    retries_errors: bool = False

    def router(self, surroundings: Surroundings) -> Router:
        """See Policy."""
        return EndpointPickerRouter(surroundings, self.families, self.retries)
