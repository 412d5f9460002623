"""Why a request goes where it goes (SPEC C5). Pure, and off the hot path: the pick itself knows nothing of it.

Masks, scores and the pick come from the functions that decide, never from a second implementation. Only the two
numbers that a filter compares are read out for it (recursant.routing.compared), as each filter gives nothing but its
mask.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from recursant.config.model import ScoreWeights
from recursant.fleet.candidates import CandidateSet
from recursant.fleet.facts import Fact, Facts
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.routing.compared import COMPARED, Bound
from recursant.routing.filters import (
    HARD_FILTERS,
    SOFT_FILTER,
    Mask,
    expected_wait_ms,
)
from recursant.routing.need import Express, Need
from recursant.routing.picker import Pick, Refusal, pick
from recursant.routing.scorers import load_of, queue_term, score, speed_term


class Unusable(StrEnum):
    """Why a worker is no candidate, where its status is not the reason."""

    EXCLUSIVE = "exclusive"
    MODEL = "model"
    NO_ADDRESS = "no_address"


@dataclass(frozen=True, slots=True)
class Check:
    """What one filter said of one worker. None: unknown, which removes nobody.

    Attributes:
        filter: its name.
        passed: it lets the worker stay.
        have: the worker's number.
        bound: how `have` must stand to `limit`.
        limit: the request's number.
    """

    filter: str
    passed: bool
    have: float | None
    bound: Bound
    limit: float | None


@dataclass(frozen=True, slots=True)
class Terms:
    """The score of one worker, and what it is made of.

    Attributes:
        token_rate: the speed term, 0..1, before its weight.
        queue: the queue term, 0..1, before its weight.
        total: the weighted sum; under the profile `adaptive` the score that stands in its place.
    """

    token_rate: float
    queue: float
    total: float


@dataclass(frozen=True, slots=True)
class Considered:
    """A candidate: a ready worker that serves what is asked for.

    Attributes:
        worker_id: its id.
        model: what it would be asked for; "" where any will do.
        load: requests there, picks that no report has seen included.
        checks: every filter that compares something for this request, in order.
        removed_by: the first filter that removed it; None: it stays.
        terms: its score.
        expected_wait_ms: None where unknown.
        rank: 1 for the pick; None for whoever was removed, or serves another model than the pick.
    """

    worker_id: str
    model: str
    load: float
    checks: tuple[Check, ...]
    removed_by: str | None
    terms: Terms
    expected_wait_ms: float | None
    rank: int | None


@dataclass(frozen=True, slots=True)
class NotConsidered:
    """A worker that was no candidate.

    Attributes:
        worker_id: its id.
        reason: its status, or an `Unusable`.
    """

    worker_id: str
    reason: WorkerStatus | Unusable


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision, explained.

    Attributes:
        outcome: what `pick` says.
        considered: the candidates, by rank, then whoever was removed.
        others: the rest of the fleet, by id.
    """

    outcome: Pick | Refusal
    considered: tuple[Considered, ...]
    others: tuple[NotConsidered, ...]


@dataclass(frozen=True, slots=True)
class Counted:
    """A pick that the table has counted already, to be left out: with what `FleetTable.acquire` was told."""

    row: int
    prompt_tokens: int
    answer_tokens: int


def explain(
    table: FleetTable,
    need: Need,
    *,
    weights: ScoreWeights,
    candidates: int,
    rng: random.Random,
    decided: Pick | Refusal | None = None,
) -> Explanation:
    """Explain the pick for `need`.

    Args:
        table: the fleet.
        need: what the request needs.
        weights: of the score.
        candidates: length of the pick.
        rng: for equal scores.
        decided: the pick was made already, on this very table; by default it is made here.
    """
    outcome = pick(table, need, weights=weights, candidates=candidates, rng=rng) if decided is None else decided
    considered = _rows(_evaluate(table, need, weights, outcome, None), outcome) if _any(table, need) else ()
    inside = {each.worker_id for each in considered}
    outside = sorted(
        (each for each in table.records() if each.worker_id not in inside), key=lambda each: each.worker_id
    )
    others = tuple(NotConsidered(each.worker_id, _reason(each, need)) for each in outside)
    return Explanation(outcome, considered, others)


@dataclass(frozen=True, slots=True)
class Summary:
    """One decision in short, at a cost that hardly grows with the fleet.

    Attributes:
        considered: how many candidates there were.
        removed: by the filter that removed them: how many, and the first few ids.
        best: the first few by rank.
    """

    considered: int
    removed: Mapping[str, tuple[int, tuple[str, ...]]]
    best: tuple[Considered, ...]


def summarise(
    table: FleetTable,
    need: Need,
    *,
    weights: ScoreWeights,
    decided: Pick | Refusal,
    counted: Counted | None = None,
    names: int,
) -> Summary:
    """Explain a pick that was made, in short.

    Args:
        table: the fleet, as it was decided over.
        need: what the request needs.
        weights: of the score.
        decided: the pick.
        counted: that pick's count, which the decision itself did not see yet.
        names: the most workers that are named of a group.
    """
    if not _any(table, need):
        return Summary(0, {}, ())
    found = _evaluate(table, need, weights, decided, counted)
    removed: dict[str, tuple[int, tuple[str, ...]]] = {}
    for place, name in enumerate(found.masks):
        rows = found.found.rows[found.removed == place].tolist()
        if rows:
            removed[name] = len(rows), tuple(table.worker_id(row) for row in rows[:names])
    best = found.order(decided)[:names]
    return Summary(
        len(found.found.models), removed, tuple(found.row(at, rank) for rank, at in enumerate(best, start=1))
    )


# --- inside ---


@dataclass(frozen=True, slots=True, eq=False)
class _Evaluation:
    """All candidates in columns. `removed` is the place of the first filter that removed each, -1 for none."""

    table: FleetTable
    found: CandidateSet
    load: Facts
    masks: Mapping[str, Mask]
    figures: Mapping[str, tuple[Facts, Facts]]
    removed: NDArray[np.intp]
    speed: Facts
    queue: Facts
    total: Facts
    wait: Facts

    def row(self, at: int, rank: int | None) -> Considered:
        """One of them by itself."""
        place = int(self.removed[at])
        return Considered(
            worker_id=self.table.worker_id(int(self.found.rows[at])),
            model=self.found.models[at],
            load=float(self.load[at]),
            checks=tuple(
                Check(
                    name,
                    bool(mask[at]),
                    _known(self.figures[name][0][at]),
                    COMPARED[name][0],
                    _known(self.figures[name][1][at]),
                )
                for name, mask in self.masks.items()
            ),
            removed_by=None if place < 0 else tuple(self.masks)[place],
            terms=Terms(float(self.speed[at]), float(self.queue[at]), float(self.total[at])),
            expected_wait_ms=_known(self.wait[at]),
            rank=rank,
        )

    def order(self, outcome: Pick | Refusal) -> list[int]:
        """Positions by rank: the pick's own order, then whoever else could have taken it, by score."""
        if isinstance(outcome, Refusal):
            return []
        position = {int(row): at for at, row in enumerate(self.found.rows.tolist())}
        chosen = [position[row] for row in outcome.rows if row in position]
        stayed = np.flatnonzero(self.removed < 0)
        by_score = stayed[np.argsort(-self.total[stayed], kind="stable")].tolist()
        models = self.found.models
        return chosen + [at for at in by_score if at not in chosen and models[at] == outcome.model]


def _evaluate(
    table: FleetTable, need: Need, weights: ScoreWeights, outcome: Pick | Refusal, counted: Counted | None
) -> _Evaluation:
    found = table.candidates(family=need.family, model=need.model, exclusive=need.exclusive)
    facts = table.facts(found.rows)
    if counted is not None:
        there = found.rows == counted.row
        facts[Fact.IN_FLIGHT, there] -= 1
        facts[Fact.KV_ROOM_TOKENS, there] += table.room_taken(counted.row, counted.prompt_tokens, counted.answer_tokens)
        facts[Fact.KV_HELD_TOKENS, there] -= counted.prompt_tokens + counted.answer_tokens
        facts[Fact.PROMPT_TOKENS_SENT, there] -= counted.prompt_tokens
    lengths = found.max_model_len
    load = load_of(facts)
    masks: dict[str, Mask] = {}
    figures: dict[str, tuple[Facts, Facts]] = {}
    for each in (*HARD_FILTERS, SOFT_FILTER):
        compared = COMPARED[each.name][1](facts, lengths, load, need)
        mask = each.keep(facts, lengths, load, need)
        if compared is None and mask is None:
            continue
        masks[each.name] = np.ones(load.shape, dtype=np.bool_) if mask is None else mask
        have, limit = (np.full(load.shape, math.nan), math.nan) if compared is None else compared
        figures[each.name] = have, np.broadcast_to(limit, load.shape)
    soft_counts = isinstance(outcome, Pick) and not outcome.over_sla
    removed = np.full(load.shape, -1, dtype=np.intp)
    for place, (name, mask) in enumerate(masks.items()):
        if name != SOFT_FILTER.name or soft_counts:
            removed[(removed < 0) & ~mask] = place
    return _Evaluation(
        table=table,
        found=found,
        load=load,
        masks=masks,
        figures=figures,
        removed=removed,
        speed=speed_term(facts, load),
        queue=queue_term(facts, load),
        total=score(facts, load, weights, need.prompt_tokens, urgent=need.express == Express.URGENT),
        wait=expected_wait_ms(facts, load, need.expected_tokens),
    )


def _any(table: FleetTable, need: Need) -> bool:
    return table.candidates(family=need.family, model=need.model, exclusive=need.exclusive).rows.size > 0


def _rows(found: _Evaluation, outcome: Pick | Refusal) -> tuple[Considered, ...]:
    ranks = {at: rank for rank, at in enumerate(found.order(outcome), start=1)}
    rows = [found.row(at, ranks.get(at)) for at in range(len(found.found.models))]
    rows.sort(key=lambda each: (each.rank is None, each.rank, each.removed_by is not None, each.worker_id))
    return tuple(rows)


def _reason(record: WorkerRecord, need: Need) -> WorkerStatus | Unusable:
    if record.status is not WorkerStatus.READY:
        return record.status
    if record.endpoint is None:
        return Unusable.NO_ADDRESS
    if record.state.exclusive and record.worker_id not in need.exclusive:
        return Unusable.EXCLUSIVE
    return Unusable.MODEL


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
