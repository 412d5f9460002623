"""From a need to the ordered list of workers that Envoy walks (SPEC C1 to C3)."""

import math
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from recursant.config.model import ScoreWeights
from recursant.fleet.candidates import CandidateSet
from recursant.fleet.facts import Fact, Facts
from recursant.fleet.table import FleetTable
from recursant.routing.filters import HARD_FILTERS, MEMORY, SLOTS, SOFT_FILTER, Mask
from recursant.routing.need import Express, Need
from recursant.routing.scorers import load_of, score

# Random numbers below 1e-9, drawn once; a pick reads on from a random place in them, round the end.
_NOISE_DRAWS: Final = 4_099
_NOISE: Final = np.tile(np.random.default_rng(0).random(_NOISE_DRAWS) * 1e-9, 4)


class Refusal(StrEnum):
    """Why nobody can serve a request now."""

    # No ready worker serves the family or model.
    NO_WORKER = "no_worker"
    # Removed by the hard filter of that name: the last one that left nobody.
    VRAM = "vram"
    BANDWIDTH = "bandwidth"
    CONTEXT = "context"
    MEMORY = "memory"
    SLOTS = "slots"
    EXPRESS = "express"


# One is made for every request: neither frozen nor with a generated `__init__`, as `Need`.
@dataclass(init=False)
class Pick:
    """The answer: rows of the fleet table, best first, never empty.

    Attributes:
        rows: the candidates in order; all serve `model`.
        model: the concrete model of the first; "" where the worker named none.
        over_sla: the soft filter left nobody, and the best of the rest was taken.
    """

    rows: tuple[int, ...]
    model: str
    over_sla: bool

    def __init__(self, rows: tuple[int, ...], model: str, over_sla: bool = False) -> None:
        self.rows = rows
        self.model = model
        self.over_sla = over_sla


def pick(
    table: FleetTable, need: Need, *, weights: ScoreWeights, candidates: int, rng: random.Random
) -> Pick | Refusal:
    """Choose up to `candidates` workers for `need`, best first; equal scores in random order.

    Counts nothing: the caller acquires the first row before it gives control away, so that pick and count are one step.
    """
    return pick_afresh(table, need, weights, candidates, rng.random())


def pick_afresh(table: FleetTable, need: Need, weights: ScoreWeights, candidates: int, draw: float) -> Pick | Refusal:
    """The same with a random number that was drawn before, 0 to 1."""
    found = table.candidates(family=need.family, model=need.model, exclusive=need.exclusive)
    if found.rows.size == 0:
        return Refusal.NO_WORKER
    facts = table.facts(found.rows)
    load = load_of(facts)
    keep = _survivors(found, facts, load, need)
    if isinstance(keep, Refusal):
        return keep

    over_sla = False
    in_time = SOFT_FILTER.keep(facts, found.max_model_len, load, need)
    if in_time is not None:
        both = in_time if keep is None else keep & in_time
        if both.any():
            keep = both
        else:
            over_sla = True

    scores = score(facts, load, weights, need.prompt_tokens, urgent=need.express == Express.URGENT)
    scores += noise(scores.size, draw)
    if keep is not None:
        scores[~keep] = -np.inf
    return _taken(found, best_places(found, scores, candidates), over_sla=over_sla)


def noise(size: int, draw: float) -> Facts:
    """A number for each worker, far below any difference of scores: equal ones fall into the order of the draw."""
    at = int(draw * _NOISE_DRAWS)
    return _NOISE[at : at + size] if at + size <= _NOISE.size else np.resize(_NOISE[at:], size)


def best_places(found: CandidateSet, scores: Facts, count: int) -> list[int]:
    """The places of the best `count` candidates in order, all with the first one's model; fewer where fewer are left.

    The body names one model, whoever of them gets it. Writes -inf over the scores: to whoever is out, or taken.
    """
    places: list[int] = []
    while len(places) < count:
        best = int(scores.argmax())
        if scores.item(best) == -math.inf:
            break
        if not places and found.mixed:
            scores[found.model_numbers != found.model_numbers[best]] = -np.inf
        scores[best] = -np.inf
        places.append(best)
    return places


def most_room(table: FleetTable, need: Need) -> float:
    """The most KV tokens that a worker has left which passes every hard filter but that of memory; 0 for none.

    Where all of those are full, that of whoever would be waited for.
    """
    found = table.candidates(family=need.family, model=need.model, exclusive=need.exclusive)
    facts = table.facts(found.rows)
    load = load_of(facts)
    room = np.nan_to_num(facts[Fact.KV_ROOM_TOKENS], nan=0.0)
    if need.express == Express.KEEPS_OFF:
        room -= facts[Fact.KV_KEPT_FREE]
    best = 0.0
    for each in HARD_FILTERS:
        if each is SLOTS:
            best = room.max(initial=0.0)
        mask = None if each is MEMORY else each.keep(facts, found.max_model_len, load, need)
        if mask is not None:
            room = np.where(mask, room, 0.0)
    return float(room.max(initial=0.0) or best)


def round_robin(table: FleetTable, need: Need, *, turn: int, candidates: int) -> Pick | Refusal:
    """Choose by turn, not by score, among those that pass the hard filters. `turn` is the caller's counter."""
    found = table.candidates(family=need.family, model=need.model, exclusive=need.exclusive)
    size = found.rows.size
    if size == 0:
        return Refusal.NO_WORKER
    facts = table.facts(found.rows)
    keep = _survivors(found, facts, load_of(facts), need)
    if isinstance(keep, Refusal):
        return keep
    # Whoever's turn is next comes first; the scores of the others fall from there.
    scores = -((np.arange(size) - turn) % size).astype(np.float64)
    if keep is not None:
        scores[~keep] = -np.inf
    return _taken(found, best_places(found, scores, candidates), over_sla=False)


def _survivors(found: CandidateSet, facts: Facts, load: Facts, need: Need) -> Mask | Refusal | None:
    """Who passes the hard filters, None for everybody; or the name of the filter that left nobody."""
    keep: Mask | None = None
    for each in HARD_FILTERS:
        mask = each.keep(facts, found.max_model_len, load, need)
        if mask is not None:
            keep = mask if keep is None else keep & mask
    if keep is None or keep.any():
        return keep
    left: Mask = np.ones(found.rows.size, dtype=np.bool_)
    for each in HARD_FILTERS:
        mask = each.keep(facts, found.max_model_len, load, need)
        if mask is not None:
            left &= mask
            if not left.any():
                return Refusal(each.name)
    raise AssertionError("the filters gave two answers")


def _taken(found: CandidateSet, places: list[int], *, over_sla: bool) -> Pick:
    return Pick(tuple(found.rows[places].tolist()), found.models[places[0]], over_sla)
