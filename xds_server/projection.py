"""From the fleet's records to what Envoy's resources are made of: which changes matter, and to what. Pure.

Every beat brings a new record, five a second from each worker, and almost none of them changes anything here.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from recursant.fleet.worker import WorkerRecord, WorkerStatus
from xds_server.weights import endpoint_weight


class Rebuild(IntEnum):
    """What a change asks for; the larger includes the smaller."""

    NOTHING = 0
    # Where the workers are and what they weigh.
    ENDPOINTS = 1
    # Also what the fleet offers: model lists, routes, breakers.
    EVERYTHING = 2


@dataclass(frozen=True, slots=True)
class _Keys:
    endpoint: tuple[object, ...] | None
    offer: tuple[object, ...] | None


_GONE: Final = _Keys(None, None)


class Projection:
    """The fleet as the resources need it. Bounded by the directory that feeds it."""

    def __init__(self) -> None:
        self._records: dict[str, WorkerRecord] = {}
        self._keys: dict[str, _Keys] = {}

    def observe(self, record: WorkerRecord) -> Rebuild:
        """Take a worker's new record; what must be built again for it?"""
        self._records[record.worker_id] = record
        before, now = self._keys.get(record.worker_id, _GONE), _keys(record)
        self._keys[record.worker_id] = now
        return _difference(before, now)

    def remove(self, worker_id: str) -> Rebuild:
        """A worker has left; what must be built again for it?"""
        self._records.pop(worker_id, None)
        return _difference(self._keys.pop(worker_id, _GONE), _GONE)

    def workers(self) -> list[WorkerRecord]:
        """Every worker, by id."""
        return [self._records[worker_id] for worker_id in sorted(self._records)]

    def statuses(self) -> Mapping[WorkerStatus, int]:
        """How many workers are in each state."""
        return Counter(record.status for record in self._records.values())


def _keys(record: WorkerRecord) -> _Keys:
    """Everything of a record that `xds_server.resources` reads, and nothing that moves with the load."""
    state = record.state
    if record.endpoint is None:
        return _GONE
    ready = record.status is WorkerStatus.READY
    families = tuple(sorted({model.family for model in record.models}))
    endpoint = (ready, record.endpoint, state.exclusive, families, endpoint_weight(state))
    if not ready:
        return _Keys(endpoint, None)
    offer = (
        record.models,
        tuple(state.lora_adapters),
        state.exclusive,
        state.priority_scheduling,
        state.max_queue,
        state.max_num_seqs,
    )
    return _Keys(endpoint, offer)


def _difference(before: _Keys, now: _Keys) -> Rebuild:
    if before.offer != now.offer:
        return Rebuild.EVERYTHING
    return Rebuild.ENDPOINTS if before.endpoint != now.endpoint else Rebuild.NOTHING
