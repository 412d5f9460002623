"""Affinity: where a request would find its session or its prefix in a cache, and when it must not go there (C8, D1).

Two steps, both pure. `Affinity` remembers and says what a request leans to. `weigh` takes the pick that was made
without affinity and puts the worker that the request leans to in front, unless that one may not serve it or another
would be so much sooner. Every yield has a name, which the response, the metrics and the log of decisions show.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from recursant.config.model import AffinityBounds, ScoreWeights
from recursant.fleet.candidates import CandidateSet
from recursant.fleet.prompts import prefill_work
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import WorkerStatus
from recursant.routing.affinity_tables import Place, PrefixIndex, SessionTable
from recursant.routing.filters import HARD_FILTERS, SOFT_FILTER, Filter
from recursant.routing.need import Need
from recursant.routing.picker import Pick
from recursant.routing.scorers import cost_of_few, load_of_one

# Workers that one request may lean to.
MOST_LEANINGS: Final = 8

# How much sooner another worker must be for a session to leave its own: in prompt tokens of work by the profile
# `adaptive`, in score by `classic`. Times the weight. Found with the fleet simulation (docs/affinity.md).
PATIENCE_TOKENS: Final = 2_048.0
PATIENCE_SCORE: Final = 0.3
# What a prompt that is cached as a whole is worth in a score of `classic`.
SHARE_SCORE: Final = 0.3

KEPT: Final = "kept"
MOVED: Final = "moved:"
# Why a request went elsewhere, besides the states of workers ("draining", "isolated", "missing", ...) and the names of
# filters ("slots", "memory", "wait", ...): the worker has left the fleet; it does not serve what is asked for, or not
# this agent; another worker is so much less busy; it broke, and Envoy went on to the next one.
GONE: Final = "gone"
UNFIT: Final = "unfit"
BUSY: Final = "busy"
RETRY: Final = "retry"


@dataclass(slots=True)
class Trail:
    """What of a request leads back to earlier ones.

    Attributes:
        session: names its session, among those of its agent; None where it has none.
        blocks: chained hashes of its prompt's blocks; empty where nobody looked.
        block_tokens: of one block.
    """

    session: bytes | None = None
    blocks: Sequence[int] = ()
    block_tokens: int = 0


@dataclass(slots=True)
class Leaning:
    """Where a request would rather go.

    Attributes:
        cached: worker ids with the prompt tokens that each is believed to hold, the first one the home.
        sticky: the home is the session's, to be left for a reason only.
    """

    cached: tuple[tuple[str, int], ...]
    sticky: bool


class Affinity:
    """Remembers where requests went.

    Args:
        bounds: how much, and how long.
    """

    def __init__(self, bounds: AffinityBounds) -> None:
        self.sessions = SessionTable(bounds.sessions, bounds.session_ttl_s)
        self.prefixes = PrefixIndex(bounds.prefix_blocks, bounds.prefix_ttl_s)
        # Told of every session that was placed here; others are told through it.
        self.on_placed: Callable[[bytes, Place], None] | None = None
        # Of each worker: its incarnation, and when that was first seen. What was sent before is gone.
        self._lives: dict[str, tuple[str, float]] = {}

    def set_bounds(self, bounds: AffinityBounds) -> None:
        """Other bounds, from now on."""
        self.sessions.set_bounds(bounds.sessions, bounds.session_ttl_s)
        self.prefixes.set_bounds(bounds.prefix_blocks, bounds.prefix_ttl_s)

    def read_only(self) -> "Affinity":
        """One that knows the same and learns nothing."""
        return _ReadOnly(self)

    def observe(self, worker_id: str, incarnation: str, now: float) -> None:
        """A worker has reported: one that was started anew holds nothing any more."""
        life = self._lives.get(worker_id)
        if life is None:
            # Not a restart, as far as we know: perhaps it was we who were started.
            self._lives[worker_id] = (incarnation, float("-inf"))
        elif life[0] != incarnation:
            self._lives[worker_id] = (incarnation, now)

    def forget(self, worker_id: str) -> None:
        """A worker has left the fleet. Its sessions find that out one by one."""
        self._lives.pop(worker_id, None)

    def leaning(self, trail: Trail, prompt_tokens: int, now: float) -> Leaning | None:
        """Where a request of this trail would rather go; None: anywhere."""
        place = None if trail.session is None else self.sessions.get(trail.session, now)
        cached: dict[str, int] = {}
        if place is not None:
            held = place.tokens if self._lives_since(place.worker_id, place.at_s) else 0
            cached[place.worker_id] = min(held, prompt_tokens)
        if trail.blocks:
            for worker_id, (count, at_s) in self.prefixes.matches(trail.blocks, now).items():
                if len(cached) == MOST_LEANINGS:
                    break
                if self._lives_since(worker_id, at_s):
                    # Blocks are whole ones only; the session knows of the rest.
                    cached[worker_id] = max(min(count * trail.block_tokens, prompt_tokens), cached.get(worker_id, 0))
        if not cached:
            return None
        return Leaning(tuple(cached.items()), sticky=place is not None)

    def heard(self, session: bytes, place: Place) -> None:
        """Another gateway has placed a request of this session. The newest word counts."""
        known = self.sessions.get(session, place.at_s)
        if known is None or known.at_s < place.at_s:
            self.sessions.put(session, place)

    def placed(self, trail: Trail, worker_id: str, tokens: int, now: float) -> None:
        """A request of this trail was sent to a worker, of so many tokens with its answer."""
        if trail.session is not None:
            place = Place(worker_id, tokens, now)
            self.sessions.put(trail.session, place)
            if self.on_placed is not None:
                self.on_placed(trail.session, place)
        if trail.blocks:
            self.prefixes.put(trail.blocks, worker_id, now)

    def _lives_since(self, worker_id: str, at_s: float) -> bool:
        life = self._lives.get(worker_id)
        return life is None or life[1] < at_s


@dataclass(slots=True)
class Led:
    """A pick with affinity.

    Attributes:
        pick: the workers.
        said: KEPT, or MOVED with the reason.
        cached_tokens: of the prompt, what the first worker is believed to have cached.
    """

    pick: Pick
    said: str
    cached_tokens: int = 0


class _ReadOnly(Affinity):
    def __init__(self, known: Affinity) -> None:
        # Without tables of its own.
        self.sessions = known.sessions
        self.prefixes = known.prefixes
        self.on_placed = None
        self._lives = known._lives

    def placed(self, trail: Trail, worker_id: str, tokens: int, now: float) -> None:
        """Remember nothing."""


def weigh(
    table: FleetTable, need: Need, found: Pick, leaning: Leaning, *, weights: ScoreWeights, candidates: int
) -> Led:
    """Put the worker first that a request leans to, or say why not.

    Args:
        table: the fleet.
        need: of the request.
        found: the pick without affinity, for the same need.
        leaning: where it would rather go.
        weights: of the score.
        candidates: the most workers of a pick.

    Returns:
        A pick that holds nobody whom a hard filter removes, and what became of the leaning.
    """
    home_id, home_tokens = leaning.cached[0]
    home = table.row_of_worker(home_id)
    if home == found.rows[0] and (leaning.sticky or len(leaning.cached) == 1):
        # Nobody has less to do, cache or not.
        return Led(found, KEPT, home_tokens)
    usable = table.candidates(family=need.family, model=need.model, exclusive=need.exclusive)
    filters = [each for each in HARD_FILTERS if each.asks(need)]
    # Work that is ahead says more of the wait than the filter's estimate, and patience bounds it; `classic` knows none.
    if weights.profile != "adaptive" and SOFT_FILTER.asks(need) and not found.over_sla:
        filters.append(SOFT_FILTER)
    held: dict[int, int] = {}
    facts: list[Sequence[float]] = []
    why = ""
    for worker_id, tokens in leaning.cached:
        row = table.row_of_worker(worker_id)
        place = None if row is None else usable.places.get(row)
        if row is None or place is None:
            why = why if held or row != home else _absence(table, row)
            continue
        column = _facts_of(table, row)
        by = _removed_by(filters, column, float(usable.max_model_len[place]), need)
        if by is None:
            held[row] = tokens
            facts.append(column)
        elif row == home:
            why = by
    if not held:
        return Led(found, MOVED + why)
    others = [row for row in found.rows if row not in held]
    facts += [_facts_of(table, row) for row in others]
    worth = weights.affinity
    if weights.profile == "adaptive":
        bonuses = [worth * prefill_work(tokens) for tokens in held.values()]
        patience = PATIENCE_TOKENS
    else:
        bonuses = [worth * SHARE_SCORE * tokens / max(need.prompt_tokens, 1) for tokens in held.values()]
        patience = PATIENCE_SCORE
    cost = cost_of_few(facts, weights, need.prompt_tokens, [*bonuses, *[0.0] * len(others)])
    if leaning.sticky and not why:
        # The home is the first of them.
        cost[0] -= worth * patience
    rows = [*held, *others]
    first = rows[cost.index(min(cost))]
    stays = first == home if leaning.sticky else first in held
    chosen = found if first == found.rows[0] else _in_front(usable, found, first, candidates)
    return Led(chosen, KEPT if stays else MOVED + (why or BUSY), held.get(first, 0))


def _facts_of(table: FleetTable, row: int) -> Sequence[float]:
    if table.counts_alone:
        return table.facts_of_one(row)
    facts: list[float] = table.facts(np.array([row]))[:, 0].tolist()
    return facts


def _removed_by(filters: Sequence[Filter], facts: Sequence[float], length: float, need: Need) -> str | None:
    load = load_of_one(facts)
    for each in filters:
        if each.removes_one(facts, length, load, need):
            return each.name
    return None


def _absence(table: FleetTable, row: int | None) -> str:
    """Why a worker is no candidate at all."""
    record = None if row is None else table.record(row)
    if record is None:
        return GONE
    return UNFIT if record.status is WorkerStatus.READY else record.status.value


def _in_front(usable: CandidateSet, found: Pick, first: int, candidates: int) -> Pick:
    """The pick with this row in front, and behind it whoever serves the same model."""
    others = [row for row in found.rows if row != first]
    model = found.model
    if usable.mixed:
        model = usable.models[usable.places[first]]
        others = [row for row in others if usable.models[usable.places[row]] == model]
    return replace(found, rows=(first, *others)[:candidates], model=model)
