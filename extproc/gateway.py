"""Where one request goes.

No sockets and no clock of its own: configuration, fleet, time and randomness come in.
"""

import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from extproc.decision import Decision, Demand
from extproc.reading import RequestReader, express_rules
from extproc.sinks import EvidenceSink, Recorder, ignore_evidence
from recursant.admission.calibration import Calibration
from recursant.admission.memory import shaped_output
from recursant.agents.priority import PriorityClass
from recursant.config.live import GatewayRules
from recursant.config.model import Config
from recursant.fleet.facts import Fact
from recursant.fleet.prompts import Prompts
from recursant.fleet.table import FleetTable
from recursant.problems import ApiProblem, unavailable
from recursant.routing.affinity import Affinity, Led, Trail, weigh
from recursant.routing.express import ExpressLane
from recursant.routing.filters import EXPRESS, MEMORY, SLOTS
from recursant.routing.need import Express, Need
from recursant.routing.picker import Pick, Refusal, most_room, round_robin
from recursant.routing.ranking import RankedPicker
from recursant.routing.scorers import load_of

# A worker that is isolated for longer may be back before, by a restart or an operator's word.
MAX_RETRY_AFTER_S: Final = 60
# Lengths of models, for filters that do not look at them.
_UNCOMPARED: Final = np.empty(0)
# Of no request at all.
_NOTHING: Final = Need()


class Gateway(RequestReader):
    """Reads requests and decides where they go, over one fleet table and one configuration."""

    def __init__(
        self,
        *,
        config: Config,
        table: FleetTable,
        recorder: Recorder,
        clock: Callable[[], float],
        rng: random.Random,
        ready: Callable[[], bool] = lambda: True,
        settled: Callable[[], bool] = lambda: True,
        evidence: EvidenceSink = ignore_evidence,
        calibration: Calibration | None = None,
        counts: bool = True,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(config, table, clock, calibration or Calibration(), settled)
        self.recorder = recorder
        self.evidence = evidence
        self.affinity = Affinity(config.routing.affinity)
        self.prompts = Prompts(table)
        # Of those who only look on there is none: they go by what stands in the table.
        self.express: ExpressLane | None = ExpressLane(table, express_rules(config))
        self._wall = wall
        self._picker = RankedPicker(table, rng)
        # False: a pick leaves no trace in the table.
        self._counts = counts
        self._ready = ready
        self._turn = 0

    def set_rules(self, rules: GatewayRules) -> None:
        """Put other rules in force for the requests that arrive from now on. The table has its own."""
        self.config = rules.onto(self.config)
        self.affinity.set_bounds(rules.routing.affinity)
        if self.express is not None:
            self.express.set_rules(express_rules(self.config))
        self.set_policies(self._policies)

    def twin(self, recorder: Recorder, *, counts: bool = False, affinity: Affinity | None = None) -> "Gateway":
        """One that decides as this one does at this moment, and remembers nothing.

        Args:
            recorder: told instead of this one's.
            counts: its picks count in the table.
            affinity: says what requests lean to; by default this one's, which learns nothing by that.
        """
        twin = Gateway(
            config=self.config,
            table=self.table,
            recorder=recorder,
            clock=self.clock,
            rng=random.Random(),
            ready=self._ready,
            calibration=self.calibration,
            counts=counts,
            wall=self._wall,
        )
        # One table has one lane, and its prompts. A dry run is no request.
        twin.express = self.express if counts else None
        if counts:
            twin.prompts = self.prompts
        else:
            # That time has gone by is no trace of it. The last request may be long ago.
            self._catch_up(_NOTHING)
        twin.set_policies(self._policies)
        twin.affinity = self.affinity.read_only() if affinity is None else affinity
        twin._turn = self._turn
        return twin

    def ready(self) -> ApiProblem | None:
        """None when requests can be served: the fleet is known and some worker is ready; else what is missing."""
        if not self._ready():
            return unavailable("the state of the fleet is not loaded yet", code="not_ready")
        if self.table.candidates().rows.size == 0:
            return unavailable("no worker is ready", code="no_worker")
        return None

    # --- choosing ---

    def place(
        self, demand: Demand, *, count_as: PriorityClass | None = None, fallback: str | None = None
    ) -> Decision | Refusal:
        """Choose the workers for a request, if somebody has room for it.

        The first worker is counted as having the request in flight: the caller must release it, with the decision's
        `prompt_tokens` and `answer_tokens`.

        Args:
            demand: from `demand`.
            count_as: the class that decides its share of slots, after ageing; by default its own.
            fallback: the one that led here.
        """
        need = demand.need if count_as is None else replace(demand.need, count_as=count_as)
        if need.express and self.express is not None:
            self._catch_up(need)
        if demand.agent.policy is None:
            by_turn = self.place_by_turn(demand, need, fallback or "round_robin")
            if by_turn is not Refusal.CONTEXT:
                return by_turn
            need = replace(need, prompt_tokens=self._longest_context(need))
            return self.place_by_turn(demand, need, fallback or "context")
        found = self._pick(need)
        if found is Refusal.CONTEXT:
            # The length is an estimate from bytes. Where it fits nowhere, the engine's own tokenizer has the word.
            fallback = fallback or "context"
            need = replace(need, prompt_tokens=self._longest_context(need))
            found = self._pick(need)
        shaped = None
        if found is Refusal.MEMORY and demand.agent.policy.on_memory_pressure == "shape":
            shaped = shaped_output(most_room(self.table, need), need.prompt_tokens)
            if shaped is not None:
                fallback = fallback or "shape"
                found = self._pick(replace(need, expected_tokens=shaped))
        if isinstance(found, Refusal):
            return found
        if found.over_sla:
            fallback = fallback or "sla"
        if demand.trail is None:
            return self._decision(demand, found, fallback, shaped)
        if shaped is not None:
            need = replace(need, expected_tokens=shaped)
        return self._decision(demand, found, fallback, shaped, self._led(demand.trail, need, found))

    def _catch_up(self, need: Need) -> None:
        """Bring the table up to date with the time: what has been read, and who is the express lane."""
        # Nothing else may be sent while somebody waits for a prompt to be read.
        self.prompts.expire(self.clock())
        if self.express is not None:
            self.express.follow(need, self._wall())

    def _longest_context(self, need: Need) -> int:
        """How long a prompt is at the most that any worker takes."""
        found = self.table.candidates(family=need.family, model=need.model, exclusive=need.exclusive)
        longest = float(found.max_model_len.max(initial=0.0))
        return int(longest) if longest < need.prompt_tokens else 0

    def waits_apart(self, need: Need) -> bool:
        """May the express lane keep this off workers that take others of the same agent? Then those go past it."""
        if need.express != Express.KEEPS_OFF:
            return False
        found = self.table.candidates(family=need.family, model=need.model, exclusive=need.exclusive)
        return bool((self.table.facts(found.rows)[Fact.STEP_TOKENS] < need.prompt_tokens).any())

    def place_by_turn(self, demand: Demand, need: Need, fallback: str) -> Decision | Refusal:
        """Choose by turn among those that pass the hard filters."""
        found = round_robin(self.table, need, turn=self._turn, candidates=self.config.routing.candidates)
        if isinstance(found, Refusal):
            return found
        self._turn += 1
        if demand.trail is None or demand.agent.policy is not None:
            # By turn is a fallback of the agent's: its own worker is full.
            return self._decision(demand, found, fallback)
        return self._decision(demand, found, fallback, led=self._led(demand.trail, need, found))

    def take(
        self, demand: Demand, found: Pick, fallback: str | None, shaped: int | None, led: Led | None = None
    ) -> Decision:
        """Take a place that another process of this host found: the first row of the pick; see `Decision`."""
        return self._decision(demand, found, fallback, shaped, led)

    def join(self, demand: Demand, leader: Decision) -> Decision | None:
        """Send a request where another one of its batch went; None where it has no room there."""
        row = leader.rows[0]
        facts = self.table.facts(np.array([row]))
        load = load_of(facts)
        need = demand.need
        masks = [each.keep(facts, _UNCOMPARED, load, need) for each in (SLOTS, MEMORY)]
        if not all(mask is None or mask[0] for mask in masks):
            return None
        if EXPRESS.asks(need) and EXPRESS.removes_one(facts[:, 0].tolist(), math.inf, float(load[0]), need):
            return None
        if self._counts:
            self.table.acquire(row, need.prompt_tokens, need.answer_tokens)
        self.served_by(demand, row)
        # Its bounds are its own.
        fallback = None if leader.fallback == "shape" else leader.fallback
        return replace(
            leader,
            fallback=fallback,
            max_tokens=demand.agent.max_new_tokens,
            shaped=None,
            affinity=None,
            cached_tokens=0,
            prompt_tokens=need.prompt_tokens,
            answer_tokens=need.answer_tokens,
        )

    def served_by(self, demand: Demand, row: int) -> None:
        """Remember where a request went: at its decision, and again where another worker than that served it."""
        if demand.trail is not None:
            self.affinity.placed(demand.trail, self.table.worker_id(row), demand.need.prompt_tokens, self.clock())

    def degraded(self, demand: Demand, family: str) -> Demand:
        """The same request for another family, whose model takes the place of every name of the first one."""
        need = demand.need
        here, there = (
            self.calibration.bytes_per_token(each) for each in (self.family_of(need.family, need.model), family)
        )
        prompt_tokens = int(need.prompt_tokens * here / there)
        replaced = {need.model} if need.model else self.table.served.names_of_family(need.family)
        return replace(
            demand,
            need=replace(need, family=family, model="", prompt_tokens=prompt_tokens),
            stands_in_for=frozenset(replaced),
        )

    def asked_for(self, demand: Demand) -> str:
        """What a request asks for, in words."""
        need = demand.need
        if need.model:
            return f"the model {need.model!r}"
        return f"the family {need.family!r}" if need.family else "any model"

    def with_advice(self, problem: ApiProblem, demand: Demand) -> ApiProblem:
        """Add to a refusal what would fit (SPEC E2), or when isolated workers are back (SPEC F1)."""
        if problem.code == "no_worker":
            return self._with_return(problem, demand.need)
        return self._with_room(problem, demand.need) if problem.code == "kv_memory" else problem

    def _with_return(self, problem: ApiProblem, need: Need) -> ApiProblem:
        at = self.table.next_return_s(need.family, need.model)
        if at is None:
            return problem
        wait = min(max(math.ceil(at - self.clock()), 1), MAX_RETRY_AFTER_S)
        return replace(problem, message=f"{problem.message}: whoever does is isolated", retry_after_s=wait)

    def _with_room(self, problem: ApiProblem, need: Need) -> ApiProblem:
        found = self.table.candidates(family=need.family, model=need.model, exclusive=need.exclusive)
        facts = self.table.facts(found.rows)
        rooms = np.nan_to_num(facts[Fact.KV_ROOM_TOKENS], nan=0.0)
        if need.express == Express.KEEPS_OFF:
            rooms -= facts[Fact.KV_KEPT_FREE]
        room = int(rooms.max(initial=0.0))
        left = room - need.prompt_tokens
        if left > 0:
            advice = f"lower max_tokens to {left}, or shorten the input"
        else:
            advice = f"shorten the input to about {max(room - need.expected_tokens, 0)} tokens"
        message = f"{problem.message}: it needs about {need.kv_tokens} tokens, {max(room, 0)} would fit; {advice}"
        return replace(problem, message=message)

    def _pick(self, need: Need) -> Pick | Refusal:
        routing = self.config.routing
        found = self._picker.pick(need, routing.weights, routing.candidates)
        if need.express == Express.KEEPS_OFF and isinstance(found, Pick) and len(found.rows) < routing.candidates:
            return self._with_retries(need, found)
        return found

    def _with_retries(self, need: Need, found: Pick) -> Pick:
        """With those behind it whom only the lane keeps out: where the first one fails, better they than nobody."""
        if self.express is None or not self.express.in_use:
            return found
        routing = self.config.routing
        every = self._picker.pick(replace(need, express=Express.NONE), routing.weights, routing.candidates)
        if isinstance(every, Refusal) or every.model != found.model:
            return found
        others = tuple(row for row in every.rows if row not in found.rows)
        return replace(found, rows=(*found.rows, *others)[: routing.candidates])

    def _led(self, trail: Trail, need: Need, found: Pick) -> Led | None:
        """The pick with affinity; None where the request leans to nobody."""
        leaning = self.affinity.leaning(trail, need.prompt_tokens, self.clock())
        if leaning is None:
            return None
        routing = self.config.routing
        return weigh(self.table, need, found, leaning, weights=routing.weights, candidates=routing.candidates)

    def _decision(
        self,
        demand: Demand,
        found: Pick,
        fallback: str | None,
        shaped: int | None = None,
        led: Led | None = None,
    ) -> Decision:
        found = found if led is None else led.pick
        table = self.table
        need = demand.need
        answer_tokens = need.answer_tokens if shaped is None else min(need.answer_tokens, shaped)
        if self._counts:
            table.acquire(found.rows[0], need.prompt_tokens, answer_tokens)
        if fallback is not None:
            self.recorder.fallback_taken(demand.agent.agent, fallback)
        if led is not None:
            self.recorder.affinity_settled(demand.agent.agent, led.said)
        self.served_by(demand, found.rows[0])
        engine_priority = None
        if table.schedules_by_priority(found.rows):
            engine_priority = demand.priority_class.engine_priority
        return Decision(
            rows=found.rows,
            endpoints=",".join([table.endpoint(row) for row in found.rows]),
            model=found.model,
            allowed_models="" if demand.checked else f",{found.model},",
            engine_priority=engine_priority,
            replaced_models=f",{','.join(sorted(demand.stands_in_for))}," if demand.stands_in_for else "",
            fallback=fallback,
            # Memory never leaves more than was asked for, and that is within the agent's own bound.
            max_tokens=demand.agent.max_new_tokens if shaped is None else shaped,
            shaped=shaped,
            affinity=None if led is None else led.said,
            cached_tokens=0 if led is None else led.cached_tokens,
            prompt_tokens=need.prompt_tokens,
            answer_tokens=answer_tokens,
        )
