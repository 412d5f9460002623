"""Picks from rankings that are kept and mended, instead of made anew for every request (SPEC C6).

Between two requests the numbers of a few workers change, so what the score and the filters say of each worker is kept
for every kind of need, and worked out again only for whoever changed. A pick then adds up what is kept, and holds
only the winners against what belongs to this request alone. Where one of them fails there, `picker.pick_afresh`
decides from scratch; it would always have given the same answer (tests/unit/test_ranking.py).
"""

import math
import random
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from recursant.config.model import ScoreWeights
from recursant.fleet.candidates import CandidateSet
from recursant.fleet.facts import Fact, Facts
from recursant.fleet.table import FleetTable
from recursant.routing.filters import HARD_FILTERS, MEMORY, too_little_for_this_one
from recursant.routing.need import Express, Need
from recursant.routing.picker import Pick, Refusal, best_places, noise, pick_afresh
from recursant.routing.scorers import combined, combined_of_one, depends_on_prompt, load_of, load_of_one, peaks, terms

# Rankings that are kept. There is one for each combination of the limits that agents have.
_MAX_RANKINGS: Final = 64
# Changed workers beyond which a ranking is made anew rather than mended, and one more for so many candidates: making it
# takes about as long as mending 10 of 100, or 50 of 1,000.
_MAX_MENDED: Final = 6
_CANDIDATES_PER_MENDED: Final = 24

_Kind = tuple[object, ...]


class RankedPicker:
    """`picker.pick` over one table, with the same answers.

    Args:
        table: the fleet.
        rng: of the picks.
    """

    def __init__(self, table: FleetTable, rng: random.Random) -> None:
        self._table = table
        self._rng = rng
        self._rankings: dict[_Kind, _Ranking] = {}
        self._weights: ScoreWeights | None = None

    def pick(self, need: Need, weights: ScoreWeights, candidates: int) -> Pick | Refusal:
        """See `picker.pick`."""
        draw = self._rng.random()
        found = self._ranking(need, weights).pick(need, candidates, draw)
        return pick_afresh(self._table, need, weights, candidates, draw) if found is None else found

    def _ranking(self, need: Need, weights: ScoreWeights) -> "_Ranking":
        if weights is not self._weights:
            self._weights = weights
            self._rankings.clear()
        kind = (
            need.family,
            need.model,
            need.exclusive,
            need.min_vram_mb,
            need.min_bandwidth_mb_s,
            need.context_length,
            # As a number: an enumeration's own hash is slow.
            -1 if need.count_as is None else int(need.count_as),
            need.express,
        )
        ranking = self._rankings.get(kind)
        if ranking is None:
            if len(self._rankings) >= _MAX_RANKINGS:
                del self._rankings[next(iter(self._rankings))]
            ranking = self._rankings[kind] = _Ranking(self._table, need, weights)
        return ranking


class _Ranking:
    """The candidates for one kind of need, with what is known of each."""

    def __init__(self, table: FleetTable, need: Need, weights: ScoreWeights) -> None:
        self._table = table
        self._changes = table.changes
        self._weights = weights
        # The need without what belongs to a request.
        self._kind = replace(need, prompt_tokens=0, expected_tokens=0, latency_sla_ms=None)
        self._filters = tuple(each for each in HARD_FILTERS if each is not MEMORY and each.asks(self._kind))
        self._removers = tuple(each.removes_one for each in self._filters)
        self._urgent = need.express == Express.URGENT
        self._by_prompt = depends_on_prompt(weights)
        self._epoch = -1
        self._seen = 0
        self._found: CandidateSet
        self._rows: list[int] = []
        self._max_mended = 0
        self._elsewhere: NDArray[np.int64] | None = None
        # The largest of `_first`, and how many have it: while somebody has, a change of one leaves the others' scores.
        self._best = 0.0
        self._with_best = 0
        self._stale = True

    def pick(self, need: Need, candidates: int, draw: float) -> Pick | None:
        """The pick; None: it cannot be told from here."""
        self._follow()
        size = len(self._loads)
        if self._removed == size:
            # Nobody, or nobody who passes: the name of the last filter counts.
            return None
        scores = self._scores(need.prompt_tokens) + noise(size, draw)
        found = self._found
        places = best_places(found, scores, candidates)
        for place in places:
            facts = self._facts[place]
            if facts is None:
                facts = self._facts[place] = self._table.facts_of_one(self._rows[place])
            # What belongs to the request is asked about the winners alone.
            if too_little_for_this_one(facts, self._lengths[place], self._loads[place], need):
                return None
        return Pick(tuple([self._rows[place] for place in places]), found.models[places[0]])

    def _scores(self, prompt_tokens: int) -> Facts:
        """The scores of all, -inf for whoever a filter removes. Not to be written to."""
        if self._by_prompt:
            scores = combined(self._first, self._second, self._weights, prompt_tokens)
            return scores + self._gate if self._removed else scores
        if self._stale:
            self._stale = False
            self._best = float(np.maximum.reduce(self._first))
            self._with_best = int(np.count_nonzero(self._first == self._best))
            self._total = combined(self._first, self._second, self._weights, 0) + self._gate
            self._total_cells: Any = self._total.data
        return self._total

    def _follow(self) -> None:
        """Take in what has changed since the last pick."""
        changes = self._changes
        count = len(changes.rows)
        if changes.epoch != self._epoch:
            self._make()
            return
        changed = set(changes.rows[self._seen :]) if count > self._seen else set()
        if len(changed) > self._max_mended:
            self._make()
            return
        self._seen = count
        elsewhere = self._table.elsewhere(self._found.rows)
        if elsewhere is not None:
            [places] = np.nonzero((elsewhere != self._elsewhere).any(axis=0))
            if places.size > self._max_mended:
                self._make()
                return
            self._elsewhere = elsewhere
            changed.update([self._rows[place] for place in places.tolist()])
        if changed:
            self._mend(changed)

    def _make(self) -> None:
        """Work out everything."""
        table, kind = self._table, self._kind
        self._epoch = self._changes.epoch
        self._seen = len(self._changes.rows)
        found = self._found = table.candidates(family=kind.family, model=kind.model, exclusive=kind.exclusive)
        # Looked at first: what others change meanwhile is a change by the next pick.
        self._elsewhere = table.elsewhere(found.rows)
        facts = table.facts(found.rows)
        load = load_of(facts)
        self._rows = found.rows.tolist()
        self._max_mended = _MAX_MENDED + len(self._rows) // _CANDIDATES_PER_MENDED
        self._place_of = found.places
        self._lengths = found.max_model_len.tolist()
        self._loads = load.tolist()
        # Of each whose facts were looked at one by one.
        self._facts: list[list[float] | None] = [None] * len(self._rows)
        self._peaks = facts[Fact.PEAK_RATE].tolist()
        # The mean of the known peaks stands for the unknown ones, so each depends on all.
        self._guessed = any(peak != peak for peak in self._peaks)
        self._first, self._second = terms(facts, peaks(facts), load, self._weights, np.fmax, urgent=self._urgent)
        # The same memory, for single numbers: numpy takes several times as long.
        self._first_cells: Any = self._first.data
        self._second_cells: Any = self._second.data
        # To be added to the scores: -inf for whoever a filter removes.
        self._gate = np.zeros(len(self._rows))
        for each in self._filters:
            self._gate[each.removes(facts, found.max_model_len, load, kind)] = -np.inf
        self._out: list[bool] = (self._gate != 0.0).tolist()
        self._removed = sum(self._out)
        self._stale = True

    def _mend(self, rows: set[int]) -> None:
        """Work these out again."""
        for row in rows:
            place = self._place_of.get(row)
            if place is None:
                continue
            facts = self._facts[place] = self._table.facts_of_one(row)
            peak = facts[Fact.PEAK_RATE]
            if peak != self._peaks[place] and (self._guessed or peak != peak):
                self._make()
                return
            self._peaks[place] = peak
            load = self._loads[place] = load_of_one(facts)
            first, second = terms(facts, peak, load, self._weights, max, urgent=self._urgent)
            removed = self._is_removed(facts, self._lengths[place], load)
            if removed != self._out[place]:
                self._out[place] = removed
                self._gate[place] = -math.inf if removed else 0.0
                self._removed += 1 if removed else -1
            self._take_terms(place, first, second)

    def _take_terms(self, place: int, first: float, second: float) -> None:
        before = self._first_cells[place]
        self._first_cells[place] = first
        self._second_cells[place] = second
        if self._by_prompt or self._stale:
            return
        if before == self._best:
            self._with_best -= 1
        if first == self._best:
            self._with_best += 1
        if first > self._best or self._with_best == 0:
            self._stale = True
            return
        score = combined_of_one(first, second, self._best, self._weights)
        self._total_cells[place] = -math.inf if self._out[place] else score

    def _is_removed(self, facts: list[float], length: float, load: float) -> bool:
        for removes in self._removers:  # noqa: SIM110 - a generator takes three times as long
            if removes(facts, length, load, self._kind):
                return True
        return False
