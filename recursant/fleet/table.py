"""The fleet in columns: what a pick reads (SPEC C6).

One row a worker, one column a fact, in a single float matrix, so that a pick over a thousand workers is a handful of
vector operations. Beats overwrite facts in place; only a change of who is usable, or of what a worker serves,
rebuilds the candidate sets. Single-threaded: nobody reads while somebody writes.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from recursant.admission.memory import CacheReport
from recursant.admission.rules import DEFAULT_ADMISSION, Admission
from recursant.agents.priority import PriorityClass
from recursant.fleet.cache import Cache
from recursant.fleet.candidates import CandidateSet, candidate_set, serves
from recursant.fleet.changes import Changes
from recursant.fleet.facts import UNKNOWN, Fact, Facts, Rows, read_report
from recursant.fleet.served import Served
from recursant.fleet.slots import Slots
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.v1.worker_state_pb2 import WorkerState

# Candidate sets kept between changes of the fleet; each belongs to a family or a model name of the fleet.
_MAX_CACHED_SETS: Final = 1_024


class FleetTable:
    """All workers that the control plane knows, usable or not, with what is in flight at each.

    Args:
        slots: where it is counted; by default for this process alone.
        admission: the water-mark, and the share of each class.
        hidden: facts that whoever picks sees with these values instead: what would a policy be worth without them?

    Attributes:
        changes: the rows whose facts have changed; says nothing of what other processes count.
        served: what the workers serve, and at which address.
    """

    def __init__(
        self,
        slots: Slots | None = None,
        admission: Admission = DEFAULT_ADMISSION,
        hidden: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        self.changes = Changes()
        self.served = Served(self._rows_and_records)
        self._slots = slots or Slots()
        self._admission = admission
        self._hidden = hidden
        self._shares = _shares(admission)
        self._facts: Facts = np.full((Fact.COUNT, 16), UNKNOWN)
        # The same memory, for single numbers: numpy takes several times as long.
        self._cells: Any = self._facts.data
        self._records: list[WorkerRecord | None] = [None] * 16
        # Of each worker that tells of its KV cache.
        self._caches: list[Cache | None] = [None] * 16
        # Rows of workers that run priority scheduling.
        self._schedulers: set[int] = set()
        self._row_of: dict[str, int] = {}
        self._sets: dict[tuple[str, str, frozenset[str]], CandidateSet] = {}

    # --- what the directory tells ---

    def upsert(self, record: WorkerRecord) -> None:
        """Take a worker's new record: its facts, and its status, models and address where they changed."""
        row = self._row_of.get(record.worker_id)
        if row is None:
            row = self._allot(record.worker_id)
        old = self._records[row]
        self._records[row] = record
        self._write_facts(row, record.state, afresh=old is None or old.state.incarnation != record.state.incarnation)
        if record.state.priority_scheduling:
            self._schedulers.add(row)
        else:
            self._schedulers.discard(row)
        self._facts[Fact.TRIAL_PLACES, row] = 1.0 if record.on_trial else UNKNOWN
        self.changes.row(row)
        if old is None or _layout(old) != _layout(record):
            self._layout_changed()

    def remove(self, worker_id: str) -> None:
        """Forget a worker. Its in-flight requests are still released to its row, which stays out of use until then."""
        row = self._row_of.pop(worker_id, None)
        if row is None:
            return
        self._records[row] = None
        self._caches[row] = None
        self._schedulers.discard(row)
        self._slots.leave(worker_id)
        self._layout_changed()

    def set_admission(self, admission: Admission) -> None:
        """Another water-mark and other shares, for the reports that are here and for those to come."""
        self._admission = admission
        self._shares = _shares(admission)
        for row in self._row_of.values():
            if self._records[row] is not None:
                self._write_room(row)
                self._write_places(row)
        self.changes.all()

    # --- what a pick reads ---

    def candidates(self, *, family: str = "", model: str = "", exclusive: frozenset[str] = frozenset()) -> CandidateSet:
        """Ready workers that serve `model` (a model or LoRA adapter, exactly), or else `family`, or else anything.

        Exclusive workers are among them only when `exclusive` names them (SPEC C1).
        """
        key = (family, model, exclusive)
        found = self._sets.get(key)
        if found is None:
            found = candidate_set(self._rows_and_records(), family, model, exclusive)
            if len(self._sets) < _MAX_CACHED_SETS:
                self._sets[key] = found
        return found

    def facts(self, rows: Rows) -> Facts:
        """A copy of the facts of `rows`: shape (Fact.COUNT, len(rows))."""
        # Not `[:, rows]`: that copies column by column, and every fact would be scattered.
        facts: Facts = self._facts.take(rows, axis=1)
        facts[Fact.IN_FLIGHT] = self._slots.counts(rows)
        elsewhere = self._slots.tokens_elsewhere(rows)
        if elsewhere is not None:
            # What others gave back, the next beat will show.
            since = np.fmax(elsewhere - facts[Fact.TOKENS_ELSEWHERE_AT_BEAT], 0.0)
            facts[Fact.KV_ROOM_TOKENS] -= since
            facts[Fact.KV_HELD_TOKENS] += since
        for fact, value in self._hidden.items():
            facts[fact] = value
        return facts

    def facts_of_one(self, row: int) -> list[float]:
        """What `facts` says of one row, as plain numbers."""
        facts: list[float] = self._facts[:, row].tolist()
        facts[Fact.IN_FLIGHT], _, elsewhere = self._slots.at(row)
        if elsewhere:
            # The unknown gives way to the number that comes first.
            since = max(0.0, elsewhere - facts[Fact.TOKENS_ELSEWHERE_AT_BEAT])
            facts[Fact.KV_ROOM_TOKENS] -= since
            facts[Fact.KV_HELD_TOKENS] += since
        for fact, value in self._hidden.items():
            facts[fact] = value
        return facts

    def elsewhere(self, rows: Rows) -> NDArray[np.int64] | None:
        """What `facts` takes in of other processes, to be compared with an earlier look: `changes` does not tell of it.

        None where there are no others.
        """
        return self._slots.elsewhere(rows)

    @property
    def counts_alone(self) -> bool:
        """No other process changes what `facts` gives."""
        return self._slots.alone

    def endpoint(self, row: int) -> str:
        """`ip:port` of a candidate."""
        record = self._records[row]
        if record is None or record.endpoint is None:
            raise LookupError(f"row {row} holds no usable worker")
        return record.endpoint

    def schedules_by_priority(self, rows: Iterable[int]) -> bool:
        """Does any of these workers run priority scheduling?"""
        return not self._schedulers.isdisjoint(rows)

    def worker_id(self, row: int) -> str:
        """The id of a candidate."""
        record = self._records[row]
        if record is None:
            raise LookupError(f"row {row} holds no worker")
        return record.worker_id

    def record(self, row: int) -> WorkerRecord | None:
        """The record in a row; None where the worker has left."""
        return self._records[row]

    def records(self) -> Iterator[WorkerRecord]:
        """Every worker, usable or not."""
        return (record for _, record in self._rows_and_records())

    def row_of_worker(self, worker_id: str) -> int | None:
        """The row of a worker by its id."""
        return self._row_of.get(worker_id)

    def next_return_s(self, family: str, model: str) -> float | None:
        """When the first isolated worker that serves `model`, or else `family`, is back, monotonic seconds."""
        ends = [
            record.standing.isolation.until_s
            for record in self.records()
            if record.status is WorkerStatus.ISOLATED
            and record.standing is not None
            and serves(record, family, model) is not None
        ]
        return min(ends, default=None)

    # --- in-flight counts ---

    def acquire(self, row: int, prompt_tokens: int = 0, answer_tokens: int = 0) -> None:
        """Count one more request in flight at the worker in `row`.

        Args:
            row: of the worker.
            prompt_tokens: the length of its prompt.
            answer_tokens: what its KV cache must have free for the answer.
        """
        self._slots.add(row, 1, prompt_tokens, answer_tokens)
        if prompt_tokens or answer_tokens:
            cells = self._cells
            cells[Fact.KV_HELD_TOKENS, row] += prompt_tokens + answer_tokens
            cells[Fact.PROMPT_TOKENS_SENT, row] += prompt_tokens
            self._write_room(row)
        self.changes.row(row)

    def release(self, row: int, prompt_tokens: int = 0, answer_tokens: int = 0) -> None:
        """Count one less. The caller does it exactly once for each `acquire`, with the same numbers.

        Raises:
            ValueError: it was released more often than acquired, or with other numbers.
        """
        self._slots.add(row, -1, -prompt_tokens, -answer_tokens)
        if prompt_tokens or answer_tokens:
            self._write_room(row)
        self.changes.row(row)

    def unread(self, row: int, work: int, cached_tokens: int = 0) -> None:
        """Prompts of so much work more are to be read by the worker in `row`; of what was sent, so much is cached."""
        self._cells[Fact.UNREAD_WORK, row] += work
        if cached_tokens:
            self._cells[Fact.CACHED_TOKENS_SENT, row] += cached_tokens
        self.changes.row(row)

    def set_express(self, row: int, limit: float, work: float, kept_free: float) -> None:
        """Say how the worker in `row` stands to the express lane: see the facts of the same names."""
        cells = self._cells
        before = (
            cells[Fact.LONG_PROMPT_LIMIT, row],
            cells[Fact.EXPRESS_WORK, row],
            cells[Fact.KV_KEPT_FREE, row],
        )
        # The unknown differs from itself: then nothing is lost but a look at this row.
        if before != (limit, work, kept_free):
            cells[Fact.LONG_PROMPT_LIMIT, row] = limit
            cells[Fact.EXPRESS_WORK, row] = work
            cells[Fact.KV_KEPT_FREE, row] = kept_free
            self.changes.row(row)

    def room_taken(self, row: int, prompt_tokens: int, answer_tokens: int) -> float:
        """How much of the room of `row` a request takes that is in flight there, and was sent since the last beat."""
        cache = self._caches[row]
        if cache is None:
            return UNKNOWN
        water_mark = self._admission.kv_water_mark
        prompts, tokens = self._slots.tokens(row)
        without = cache.room(water_mark, prompts - prompt_tokens, tokens - prompt_tokens - answer_tokens)
        return without - cache.room(water_mark, prompts, tokens)

    def in_flight(self) -> dict[str, int]:
        """This process's in-flight requests by worker id, of the workers that are known."""
        return {worker_id: self._slots.count(row) for worker_id, row in self._row_of.items()}

    def in_flight_total(self) -> int:
        """All in-flight requests of this process, those at workers that left included."""
        return self._slots.total()

    def statuses(self) -> dict[str, int]:
        """How many workers are in each status, every status named."""
        counts = dict.fromkeys((status.value for status in WorkerStatus), 0)
        for record in self.records():
            counts[record.status.value] += 1
        return counts

    # --- inside ---

    def _rows_and_records(self) -> Iterator[tuple[int, WorkerRecord]]:
        for row in self._row_of.values():
            record = self._records[row]
            if record is not None:
                yield row, record

    def _allot(self, worker_id: str) -> int:
        row = self._slots.claim(worker_id)
        while row >= len(self._records):
            more = np.full_like(self._facts, UNKNOWN)
            self._facts = np.concatenate([self._facts, more], axis=1)
            self._cells = self._facts.data
            self._records.extend([None] * len(self._records))
            self._caches.extend([None] * len(self._caches))
        self._facts[:, row] = UNKNOWN
        self._facts[Fact.UNREAD_WORK, row] = 0.0
        self._facts[Fact.EXPRESS_WORK, row] = 0.0
        self._facts[Fact.KV_KEPT_FREE, row] = 0.0
        self._row_of[worker_id] = row
        return row

    def _write_facts(self, row: int, state: WorkerState, *, afresh: bool) -> None:
        column = self._facts[:, row]
        read_report(column, state, afresh=afresh)
        in_flight, prompts_elsewhere, tokens_elsewhere = self._slots.at(row)
        column[Fact.IN_FLIGHT_AT_BEAT] = in_flight
        column[Fact.TOKENS_ELSEWHERE_AT_BEAT] = tokens_elsewhere
        cache = CacheReport.of(state, in_flight)
        if cache is not None:
            self._caches[row] = Cache(cache, self._slots.tokens(row), (prompts_elsewhere, tokens_elsewhere))
        else:
            self._caches[row] = None
        column[Fact.KV_HELD_TOKENS] = UNKNOWN if cache is None else cache.used
        column[Fact.PROMPT_TOKENS_SENT] = 0.0
        column[Fact.CACHED_TOKENS_SENT] = 0.0
        self._write_room(row)
        self._write_places(row)

    def _write_room(self, row: int) -> None:
        cache = self._caches[row]
        if cache is None:
            self._cells[Fact.KV_ROOM_TOKENS, row] = UNKNOWN
            return
        prompts, tokens = self._slots.tokens(row)
        self._cells[Fact.KV_ROOM_TOKENS, row] = cache.room(self._admission.kv_water_mark, prompts, tokens)

    def _write_places(self, row: int) -> None:
        slots = float(self._facts[Fact.SLOTS, row])
        for fact, share in self._shares:
            # Of few slots each class may use one at least. NaN stays NaN.
            self._facts[fact, row] = max(slots * share // 1, 1.0) if slots == slots else UNKNOWN

    def _layout_changed(self) -> None:
        # What follows from it is found when somebody asks: a load brings thousands of changes in a row.
        self.changes.all()
        self._sets.clear()
        self.served.changed()


def _shares(admission: Admission) -> tuple[tuple[int, float], ...]:
    """The column of each class's places, with its share of the slots."""
    return tuple((Fact.PLACES_LOW + each, admission.slot_shares.of(each)) for each in PriorityClass)


def _layout(record: WorkerRecord) -> tuple[object, ...]:
    """What decides which candidate sets a worker is in."""
    state = record.state
    return (record.status, record.endpoint, record.models, state.exclusive, tuple(state.lora_adapters))
