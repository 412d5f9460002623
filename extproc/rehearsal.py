"""A dry run: what would happen to a request now, and why (SPEC C5). Counts nothing, holds nothing, sends nothing.

The gateway and the desk are the real ones, in a copy that writes to nothing that is shared. So a dry run can never
say anything else than the decision itself would.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from extproc.body import BodyFacts
from extproc.decision import Arrival, Decision, Demand
from extproc.desk import Desk, Outcome, Ticket
from extproc.gateway import Gateway
from recursant import names
from recursant.admission.queue import HoldQueue
from recursant.agents.policy import DEGRADE_PREFIX
from recursant.fleet.table import FleetTable
from recursant.problems import ApiProblem, forbidden
from recursant.routing.explain import Explanation, explain
from recursant.routing.need import Need
from recursant.routing.picker import Pick

# What a client may say about itself. A dry run takes no other header: they decide nothing.
DECIDING_HEADERS: Final = (
    names.AGENT_ID,
    *names.AGENT_DESCRIPTION_HEADERS,
    names.SESSION_ID,
    names.REAL_TIME,
)


@dataclass(frozen=True, slots=True)
class Question:
    """A request that nobody sends.

    Attributes:
        headers: lower-case names out of `DECIDING_HEADERS`.
        prompt_tokens: length of the prompt.
        max_tokens: the body's bound on the answer; None: it names none.
        model: the body's model; None: "auto".
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    prompt_tokens: int = 0
    max_tokens: int | None = None
    model: str | None = None


def rehearse(gateway: Gateway, question: Question, *, waiting: Mapping[str, int]) -> dict[str, Any]:
    """Say what would happen to a request, as a JSON document.

    Args:
        gateway: the live one.
        question: the request.
        waiting: how many requests are held now, by class; a dry run stands in front of all of them.
    """
    twin = gateway.twin(_Silent())
    headers = {names.REQUEST_ID: b"dry-run", "content-type": b"application/json"}
    headers |= {name: value.encode() for name, value in question.headers.items()}
    arrival = twin.arrival(headers, has_body=True)
    if isinstance(arrival, Arrival):
        # How long its body would be depends on whose tokenizer reads it.
        model = (_named(question.model) if twin.needs_body(arrival) else None) or ""
        ratio = twin.calibration.bytes_per_token(twin.family_of(arrival.agent.model_family, model))
        headers["content-length"] = b"%d" % math.ceil(question.prompt_tokens * ratio)
        arrival = twin.arrival(headers, has_body=True)
    if isinstance(arrival, ApiProblem):
        return {"request": None, "outcome": _refused(arrival), "workers": [], "others": [], "waiting": dict(waiting)}
    body_read = twin.needs_body(arrival)
    body = BodyFacts(_named(question.model), question.max_tokens) if body_read else None
    demand = twin.demand(arrival, body)
    if isinstance(demand, ApiProblem):
        request = _request(twin, arrival, None, body_read=body_read)
        return {"request": request, "outcome": _refused(demand), "workers": [], "others": [], "waiting": dict(waiting)}
    outcome = _at_envoy(_admitted(twin, demand, arrival.at_s), _named(question.model))
    document: dict[str, Any] = {
        "request": _request(twin, arrival, demand, body_read=body_read),
        "outcome": _outcome(twin, demand, outcome, arrival.at_s),
        "waiting": dict(waiting),
        **_explained(gateway, outcome.need_of(demand) if isinstance(outcome, Decision) else demand.need, outcome),
    }
    other = document["outcome"].get("fallback") or ""
    if other.startswith(DEGRADE_PREFIX):
        there = twin.degraded(demand, other.removeprefix(DEGRADE_PREFIX))
        document["degraded"] = {"family": there.need.family, **_explained(gateway, there.need, outcome)}
    return document


class _Silent:
    """A recorder that records nothing."""

    def request_finished(self, agent: str, worker: str, outcome: str) -> None:
        """Nothing."""

    def decided(self, seconds: float) -> None:
        """Nothing."""

    def fallback_taken(self, agent: str, strategy: str) -> None:
        """Nothing."""

    def affinity_settled(self, agent: str, outcome: str) -> None:
        """Nothing."""


class _Waiter:
    """Keeps what it is told later: at the end of a batch window."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None

    def resume(self, outcome: Outcome) -> None:
        self.outcome = outcome


def _admitted(twin: Gateway, demand: Demand, now: float) -> Outcome | Ticket:
    """What the desk says; of a request that is gathered in a batch, what it says when the batch goes."""
    desk = Desk(twin, HoldQueue(1), lambda: None)
    waiter = _Waiter()
    outcome = desk.admit(waiter, demand, now)
    if isinstance(outcome, Ticket) and outcome.held is None and demand.agent.policy is not None:
        desk.run(now + demand.agent.policy.batch_window_ms / 1_000)
        return waiter.outcome or outcome
    return outcome


def _at_envoy(outcome: Outcome | Ticket, model: str | None) -> Outcome | Ticket:
    """A body that extproc does not read has its model compared by Envoy, with what the decision allows."""
    if model is None or not isinstance(outcome, Decision) or not outcome.allowed_models:
        return outcome
    if f",{model}," in outcome.allowed_models:
        return outcome
    allowed = outcome.allowed_models.strip(",").replace(",", ", ")
    return forbidden(
        f"this agent may not use the model {model!r}; allowed are {allowed}", param="model", code="model_not_allowed"
    )


def _explained(gateway: Gateway, need: Need, outcome: Outcome | Ticket) -> dict[str, Any]:
    routing = gateway.config.routing
    decided = None
    if isinstance(outcome, Decision):
        decided = Pick(outcome.rows, outcome.model, over_sla=outcome.fallback == "sla")
    found = explain(
        gateway.table,
        need,
        weights=routing.weights,
        candidates=routing.candidates,
        rng=random.Random(),
        decided=decided,
    )
    if isinstance(outcome, ApiProblem):
        # Whoever is refused for another reason has no worker, though somebody could take it.
        found = replace(found, considered=tuple(replace(each, rank=None) for each in found.considered))
    return _workers(found, gateway.table)


def _workers(found: Explanation, table: FleetTable) -> dict[str, Any]:
    in_flight = table.in_flight()
    return {
        "workers": [asdict(each) | {"in_flight": in_flight.get(each.worker_id, 0)} for each in found.considered],
        "others": [asdict(each) for each in found.others],
    }


def _request(twin: Gateway, arrival: Arrival, demand: Demand | None, *, body_read: bool) -> dict[str, Any]:
    agent = arrival.agent
    policy = agent.policy
    document: dict[str, Any] = {
        "agent": agent.agent,
        "known_agent": policy is not None,
        "priority": agent.priority,
        "class": (agent.priority_class if demand is None else demand.priority_class).label,
        "clamped": list(agent.clamped),
        "body_read": body_read,
        "fallback_strategy": twin.config.routing.default_fallback if policy is None else policy.fallback_strategy,
        "timeout_ms": twin.timeout_ms(policy),
    }
    if demand is not None:
        need = demand.need
        family = twin.family_of(need.family, need.model)
        estimate = twin.calibration.estimate(family)
        document |= {
            "bytes_per_token": round(twin.calibration.bytes_per_token(family), 3),
            "estimate_error": None if estimate is None else round(estimate.error, 4),
            "family": need.family or None,
            "model": need.model or None,
            "prompt_tokens": need.prompt_tokens,
            "expected_tokens": need.expected_tokens,
            "likely_tokens": need.answer_tokens,
            "latency_sla_ms": need.latency_sla_ms,
            "min_vram_mb": need.min_vram_mb,
            "min_bandwidth_mb_s": need.min_bandwidth_mb_s,
        }
    return document


def _outcome(twin: Gateway, demand: Demand, outcome: Outcome | Ticket, now: float) -> dict[str, Any]:
    match outcome:
        case ApiProblem():
            return _refused(outcome)
        case Decision():
            return {
                "kind": "placed",
                "workers": [twin.table.worker_id(row) for row in outcome.rows],
                "model": outcome.model or None,
                "fallback": outcome.fallback,
                "affinity": outcome.affinity,
                "max_tokens": outcome.max_tokens,
            }
        case Ticket():
            until = demand.deadline_s if outcome.held is None else outcome.held.until_s
            return {"kind": "held", "for_ms": round((until - now) * 1_000), "fallback": outcome.fallback}


def _refused(problem: ApiProblem) -> dict[str, Any]:
    return {"kind": "refused", "status": problem.status, "code": problem.code, "message": problem.message}


def _named(model: str | None) -> str | None:
    return None if model in (None, "", names.AUTO_MODEL) else model
