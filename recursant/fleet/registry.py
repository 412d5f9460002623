"""Who is in the fleet and who may be used: liveness, judged by the reader's own clock (DESIGN §9 "Beats").

Pure: reports, DNS answers and the time come in, changed records and departures go out.

A worker that reports nothing for three of its own intervals is MISSING, and READY again with its next report. It is
judged only by silence that the reader could have heard:

- while the link to Redis is down nobody is judged, nor within the grace period after it healed, and then
  everybody has a whole window of its own first;
- silence counts up to the last sign of life of the link, so that a hung Redis, or a reader that was held up, is not
  taken for silent workers;
- when more than half of the reporting workers, and at least two, fall silent together, the fault is more likely
  between them and us: they are kept for the grace period if anybody still reports, else until somebody does, at
  most for the time after which a missing worker is forgotten.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from recursant.config.model import Config
from recursant.fleet.entry import Entry, Link
from recursant.fleet.families import FamilyResolver
from recursant.fleet.names import NameTable
from recursant.fleet.static import static_states
from recursant.fleet.worker import WorkerRecord
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState

# The link gives a sign of life several times within this; after a longer pause it counts as healed. Seconds.
LINK_GAP_S: Final = 0.6
# A worker is late, though not yet missing, after this share of its window: at least one beat did not come.
LATE_SHARE: Final = 0.5
# Incarnations remembered as stopped, so that a report that was overtaken by its own farewell is not taken for life.
MAX_STOPPED: Final = 1_024
# One that is only known from a load is believed for its window, and no longer than this: whoever died long ago can have
# said that it reports once an hour. Seconds.
LOAD_TRUST_S: Final = 15.0

# Looked up once: protobuf finds enum values by name at every access.
_STOPPED: Final = WorkerPhase.WORKER_PHASE_STOPPED


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker has left the fleet.

    Attributes:
        worker_id: which.
        forgotten: it left without a word, and what it said last should be forgotten everywhere.
    """

    worker_id: str
    forgotten: bool


Update = WorkerRecord | Gone


class Registry:
    """All workers that one reader knows, at most `limits.workers` of them besides the configured ones."""

    def __init__(self, config: Config, families: FamilyResolver | None = None) -> None:
        self._liveness = config.liveness
        self._grace = config.liveness.grace_ms / 1_000
        self._forget_after = config.liveness.forget_after_ms / 1_000
        self._families = families or FamilyResolver.from_config(config)
        self._names = NameTable()
        self._entries: dict[str, Entry] = {}
        self._records: dict[str, WorkerRecord] = {}
        # Ordered: the one that is missing for longest first.
        self._missing: dict[str, None] = {}
        # Known from a load, and not heard since, in the order in which they came.
        self._unheard: dict[str, None] = {}
        # Endpoint -> the worker that reported it last.
        self._claims: dict[str, str] = {}
        self._stopped: dict[tuple[str, str], None] = {}
        self._link = Link.UNKNOWN
        self._loaded = False
        self._heard = -math.inf
        self._healed_at = -math.inf
        self._settled_at = math.inf
        # Since when most workers are silent together, and whether all are.
        self._silence: tuple[float, bool] | None = None
        # Nobody's time is over before this.
        self._next_due = -math.inf
        for state in static_states(config):
            entry = Entry(state, static=True, window=self._window(state, static=True))
            self._entries[state.id] = entry
            self._write(entry)
        self._static = len(self._entries)
        self._limit = config.limits.workers + self._static
        # Reports of further workers that found no room.
        self.refused = 0

    @property
    def records(self) -> Mapping[str, WorkerRecord]:
        """The newest record of every worker, by id."""
        return self._records

    @property
    def last_heard(self) -> float:
        """When the link gave its last sign of life; minus infinity before the first."""
        return self._heard

    def settled(self, now: float) -> bool:
        """Was the link up for long enough for everybody to report? Who is unknown then is not there."""
        return now >= self._settled_at

    # --- what the link brings ---

    def heard(self, now: float) -> None:
        """The link gave a sign of life, a report or anything else."""
        if self._link is Link.UP and now - self._heard > LINK_GAP_S:
            self._heal(now)
        self._heard = max(self._heard, now)

    def observe(self, state: WorkerState, now: float) -> list[Update]:
        """Take a report that was published just now."""
        self.heard(now)
        entry = self._entries.get(state.id)
        if state.phase == _STOPPED:
            return self._stop(entry, state)
        if (state.id, state.incarnation) in self._stopped:
            return []
        if entry is None:
            updates = self._make_room()
            if updates is None:
                self.refused += 1
                return []
            entry = self._add(state)
            return [*updates, *self._beat(entry, state, now)]
        return self._beat(entry, state, now) if _is_news(entry, state) else []

    def load(self, states: Iterable[WorkerState], now: float) -> list[Update]:
        """Take the last reports of all workers, however old; who is not among them stays.

        A worker of the first load counts as alive for one window (at most `LOAD_TRUST_S`), so that a restart costs
        nothing; a configured one always does. Any other that a later load brings has to report before it is used.
        """
        self.heard(now)
        first, self._loaded = not self._loaded, True
        updates: list[Update] = []
        for state in states:
            if (state.id, state.incarnation) in self._stopped or state.phase == _STOPPED:
                continue
            entry = self._entries.get(state.id)
            if entry is not None and entry.reported:
                if _is_news(entry, state):
                    updates += self._beat(entry, state, now)
                continue
            if entry is None:
                if len(self._entries) >= self._limit:
                    self.refused += 1
                    continue
                entry = self._add(state)
            window = self._window(state, static=entry.static)
            if not entry.static:
                window = min(window, LOAD_TRUST_S)
                self._unheard[state.id] = None
            entry.take(state, window, now)
            self._next_due = -math.inf
            if not (first or entry.static):
                self._set_missing(entry, now)
            updates.append(self._write(entry))
        return updates

    def link_down(self, now: float) -> list[Update]:
        """The link is lost: what is known stays.

        Configured workers that nobody ever scraped are taken to be ready: where the state cannot be had, the
        configuration is the best that is known.
        """
        if not self.settled(now):
            self._settled_at = math.inf
        self._link = Link.DOWN
        updates: list[Update] = []
        for entry in self._entries.values():
            if not entry.reported and not entry.assumed:
                entry.assumed = True
                updates.append(self._write(entry))
        return updates

    def link_up(self, now: float) -> None:
        """The link is there, for the first time or again."""
        if self._link is Link.DOWN:
            self._heal(now)
        self._settled_at = min(self._settled_at, now + self._grace)
        self._link = Link.UP
        self._heard = max(self._heard, now)

    def set_families(self, families: FamilyResolver) -> list[Update]:
        """Families of models follow from other words now; the records that this gives."""
        self._families = families
        updates: list[Update] = []
        for entry in self._entries.values():
            before = self._records[entry.worker_id]
            entry.forget_families()
            record = self._write(entry)
            if record != before:
                updates.append(record)
        return updates

    # --- what the resolver needs and brings ---

    def names(self) -> dict[str, bool]:
        """The host names, as opposed to IP addresses, of the workers, and whether anybody there is known to live."""
        return {
            name: any(self._is_heard(worker_id) for worker_id in self._names.workers(name))
            for name in self._names.names()
        }

    def resolved(self, name: str, addresses: Sequence[str]) -> list[Update]:
        """Take the IP addresses of a host name; none where it has none now."""
        updates: list[Update] = []
        for worker_id in self._names.answer(name, addresses):
            entry = self._entries[worker_id]
            if entry.endpoint != self._names.endpoint(worker_id, entry.state.address):
                updates.append(self._write(entry))
        return updates

    # --- what time brings ---

    def tick(self, now: float) -> list[Update]:
        """Judge those whose time is over. Cheap when there is nobody; call it many times a second."""
        heard = min(now, self._heard)
        if self._link is not Link.UP or heard < self._healed_at + self._grace or heard < self._next_due:
            return []
        self._next_due = math.inf
        updates: list[Update] = []
        alive = late = 0
        due: list[Entry] = []
        for entry in self._entries.values():
            if entry.missing_since is not None:
                continue
            if not entry.reported:
                if entry.assumed and self._is_over(entry, heard):
                    entry.assumed = False
                    updates.append(self._write(entry))
                continue
            if self._is_over(entry, heard):
                due.append(entry)
            # One that is only known from a load proves nothing about the others.
            if entry.last_beat is not None:
                alive += 1
                late += heard - self._silent_from(entry) >= entry.window * LATE_SHARE
        if self._most_are_silent(alive, late, any(entry.last_beat is not None for entry in due), heard):
            self._next_due = heard
            due = [entry for entry in due if entry.last_beat is None]
        for entry in due:
            updates += self._lose(entry, heard)
        return updates + self._forget(heard)

    # --- inside: liveness ---

    def _heal(self, now: float) -> None:
        self._healed_at = now
        self._next_due = -math.inf

    def _silent_from(self, entry: Entry) -> float:
        return max(entry.heard_at, self._healed_at)

    def _is_over(self, entry: Entry, now: float) -> bool:
        over_at = self._silent_from(entry) + entry.window
        if now >= over_at:
            return True
        self._next_due = min(self._next_due, over_at)
        return False

    def _most_are_silent(self, alive: int, late: int, somebody_due: bool, now: float) -> bool:
        """Are so many silent together that nobody is to be judged by it yet?"""
        if not somebody_due or late < 2 or 2 * late <= alive:
            self._silence = None
            return False
        everybody = late == alive
        # The first to report again starts the time that the others have to follow.
        if self._silence is None or (self._silence[1] and not everybody):
            self._silence = (now, everybody)
        since = self._silence[0]
        self._silence = (since, everybody)
        return now - since < (self._forget_after if everybody else self._grace)

    def _lose(self, entry: Entry, now: float) -> list[Update]:
        self._set_missing(entry, now)
        record = self._write(entry)
        # Another worker answers at its address: it came back under a new name.
        holder = self._claims.get(entry.endpoint or "")
        if holder is not None and holder != entry.worker_id and not entry.static:
            return [self._remove(entry, forgotten=True)]
        return [record]

    def _set_missing(self, entry: Entry, now: float) -> None:
        entry.missing_since = now
        self._missing[entry.worker_id] = None

    def _forget(self, now: float) -> list[Update]:
        updates: list[Update] = []
        for worker_id in list(self._missing):
            entry = self._entries[worker_id]
            if entry.static or entry.missing_since is None:
                continue
            over_at = entry.missing_since + self._forget_after
            if now < over_at:
                # Those after it went missing later.
                self._next_due = min(self._next_due, over_at)
                break
            updates.append(self._remove(entry, forgotten=True))
        return updates

    def _beat(self, entry: Entry, state: WorkerState, now: float) -> list[Update]:
        window = self._window(state, static=entry.static)
        if window < entry.window:
            self._next_due = -math.inf
        returned = entry.missing_since is not None or not entry.reported
        self._unheard.pop(entry.worker_id, None)
        if returned:
            self._missing.pop(entry.worker_id, None)
            self._next_due = -math.inf
        old_endpoint = entry.endpoint
        entry.take(state, window, now)
        entry.last_beat = now
        record = self._write(entry)
        if returned or entry.endpoint != old_endpoint:
            return [*self._claim(entry), record]
        return [record]

    def _stop(self, entry: Entry | None, state: WorkerState) -> list[Update]:
        self._stopped[state.id, state.incarnation] = None
        if len(self._stopped) > MAX_STOPPED:
            del self._stopped[next(iter(self._stopped))]
        # The farewell of an earlier incarnation says nothing about this one.
        if entry is None or entry.state.incarnation != state.incarnation:
            return []
        if not entry.static:
            return [self._remove(entry, forgotten=False)]
        if entry.missing_since is None:
            self._set_missing(entry, self._heard)
            return [self._write(entry)]
        return []

    def _is_heard(self, worker_id: str) -> bool:
        entry = self._entries[worker_id]
        return entry.static or (entry.last_beat is not None and entry.missing_since is None)

    def _window(self, state: WorkerState, *, static: bool) -> float:
        """The silence after which a worker is missing, in seconds."""
        if static and state.scraped:
            # Whoever scrapes it would say that it does not answer: what is silent is the scraper.
            return math.inf
        silence_ms = max(self._liveness.missed_beats * state.report_interval_ms, self._liveness.min_silence_ms)
        return silence_ms / 1_000

    # --- inside: the table ---

    def _make_room(self) -> list[Update] | None:
        """Room for one that reports, if need be in place of another; None where all are alive.

        Who is missing for longest goes first, then who was never heard.
        """
        if len(self._entries) < self._limit:
            return []
        for worker_id in (*islice(self._missing, self._static + 1), *islice(self._unheard, 1)):
            if not self._entries[worker_id].static:
                return [self._remove(self._entries[worker_id], forgotten=True)]
        return None

    def _add(self, state: WorkerState) -> Entry:
        entry = Entry(state, static=False, window=self._window(state, static=False))
        self._entries[state.id] = entry
        return entry

    def _claim(self, entry: Entry) -> list[Update]:
        """Take the entry's endpoint over from a missing worker, which this one has replaced."""
        if entry.endpoint is None:
            return []
        holder = self._entries.get(self._claims.get(entry.endpoint, ""))
        self._claims[entry.endpoint] = entry.worker_id
        if holder is None or holder is entry or holder.static or holder.missing_since is None:
            return []
        return [self._remove(holder, forgotten=True)]

    def _remove(self, entry: Entry, *, forgotten: bool) -> Gone:
        worker_id = entry.worker_id
        del self._entries[worker_id], self._records[worker_id]
        self._missing.pop(worker_id, None)
        self._unheard.pop(worker_id, None)
        self._names.drop(worker_id)
        if entry.endpoint is not None and self._claims.get(entry.endpoint) == worker_id:
            del self._claims[entry.endpoint]
        return Gone(worker_id, forgotten)

    def _write(self, entry: Entry) -> WorkerRecord:
        old = entry.endpoint
        entry.endpoint = self._names.endpoint(entry.worker_id, entry.state.address)
        if old is not None and old != entry.endpoint and self._claims.get(old) == entry.worker_id:
            del self._claims[old]
        record = entry.record(self._families)
        self._records[entry.worker_id] = record
        return record


def _is_news(entry: Entry, state: WorkerState) -> bool:
    """Does the report say something new, or is it a duplicate, or late?"""
    if state.incarnation == entry.state.incarnation:
        return state.sequence > entry.state.sequence
    # What the process before this one said late does not count, unless this one is silent now.
    return state.incarnation != entry.superseded or entry.missing_since is not None
