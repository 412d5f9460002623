"""The decision for one request, from its headers and, where the text decides, its body.

No sockets and no clock of its own: configuration, fleet, time and randomness come in.
"""

import os
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from extproc.body import BodyFacts, is_json
from recursant import names
from recursant.agents.request import AgentRequest, AgentResolver
from recursant.config.model import Config
from recursant.fleet.table import FleetTable
from recursant.problems import ApiProblem, bad_request, forbidden, model_not_found, too_large, unavailable
from recursant.routing.need import DEFAULT_EXPECTED_TOKENS, Need, tokens_of_bytes
from recursant.routing.picker import Pick, Refusal, pick, round_robin

_REQUEST_ID: Final = re.compile(rb"^[A-Za-z0-9][A-Za-z0-9._:/+=-]*$")
_NO_EXCLUSIVE: Final = frozenset[str]()


class Recorder(Protocol):
    """Where the decision leaves its numbers. Labels are configured names and known workers only."""

    def request_finished(self, agent: str, worker: str, outcome: str) -> None:
        """Count a request whose stream has ended."""

    def decided(self, seconds: float) -> None:
        """Record the time of one decision."""

    def fallback_taken(self, agent: str, strategy: str) -> None:
        """Count a fallback."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as its headers show it.

    Attributes:
        agent: who sends it, its policy applied.
        content_length: bytes of the body; None where the headers do not tell.
        json_body: it has a body that is JSON.
        session_id: from `X-Session-ID`; "" without.
        request_headers: to set towards the worker for this request alone.
    """

    agent: AgentRequest
    content_length: int | None
    json_body: bool
    session_id: str
    request_headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes.

    Attributes:
        rows: rows of the fleet table, best first.
        endpoints: the same as Envoy reads them, "ip:port,ip:port".
        model: what "auto" becomes; "" where nothing is known.
        allowed_models: the names that the body may use, "," around each; "" for any.
        engine_priority: for vLLM's own `priority`; None where no candidate runs priority scheduling.
        fallback: the fallback that was taken, for `x-recursant-fallback`.
    """

    rows: tuple[int, ...]
    endpoints: str
    model: str
    allowed_models: str
    engine_priority: int | None
    fallback: str | None = None


class Gateway:
    """Decides where requests go, over one fleet table and one configuration."""

    def __init__(
        self,
        *,
        config: Config,
        table: FleetTable,
        recorder: Recorder,
        clock: Callable[[], float],
        rng: random.Random,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.config = config
        self.table = table
        self.recorder = recorder
        self.clock = clock
        self._rng = rng
        self._ready = ready
        self._agents = AgentResolver(config.agents, max_meta_bytes=config.limits.agent_meta_bytes)
        self._exclusive = {agent.agent_id: frozenset(agent.workers) for agent in config.agents}
        self._turn = 0

    def ready(self) -> ApiProblem | None:
        """None when requests can be served: the fleet is known and some worker is ready; else what is missing."""
        if not self._ready():
            return unavailable("the state of the fleet is not loaded yet", code="not_ready")
        if self.table.candidates().rows.size == 0:
            return unavailable("no worker is ready", code="no_worker")
        return None

    def arrival(self, headers: Mapping[str, bytes], *, has_body: bool) -> Arrival | ApiProblem:
        """Read a request's headers, or say what is wrong with them."""
        limits = self.config.limits
        agent = self._agents.resolve(headers)
        if isinstance(agent, ApiProblem):
            return agent
        raw_length = headers.get("content-length")
        length = int(raw_length) if raw_length is not None and raw_length.isdigit() else None
        if length is not None and length > limits.body_bytes:
            return too_large(length, limits.body_bytes)
        session = headers.get(names.SESSION_ID, b"")
        if len(session) > limits.session_id_bytes:
            return bad_request(
                f"X-Session-ID has {len(session)} bytes, allowed are {limits.session_id_bytes}", param=names.SESSION_ID
            )
        own: tuple[tuple[str, str], ...] = ()
        request_id = headers.get(names.REQUEST_ID, b"")
        if len(request_id) > limits.request_id_bytes or not _REQUEST_ID.match(request_id):
            own = ((names.REQUEST_ID, os.urandom(16).hex()),)
        if names.TRACEPARENT not in headers:
            # W3C Trace Context: version 00, a new trace and parent id, not sampled.
            own = (*own, (names.TRACEPARENT, f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-00"))
        return Arrival(
            agent=agent,
            content_length=length,
            json_body=has_body and is_json(headers.get("content-type")),
            session_id=session.decode("latin-1"),
            request_headers=own,
        )

    def needs_body(self, arrival: Arrival) -> bool:
        """Does the decision depend on the text? Only then does the body come to us (DESIGN §4.4)."""
        if not arrival.json_body:
            return False
        policy = arrival.agent.policy
        if policy is None or policy.model_family is None:
            return True
        if policy.inspect_body != "auto":
            return policy.inspect_body == "always"
        if policy.allow_other_models:
            return True
        # One name for the whole family: Lua can check it alone. Several: the name decides the worker.
        found = self.table.candidates(family=policy.model_family, exclusive=self._exclusive[policy.agent_id])
        return len(found.names) > 1

    def decide(self, arrival: Arrival, body: BodyFacts | None) -> Decision | ApiProblem:
        """Choose the workers for a request. `body` is None where it was not looked at.

        The first worker is counted as having the request in flight: the caller must release it.
        """
        agent = arrival.agent
        policy = agent.policy
        model = "" if body is None else body.model or ""
        if model:
            problem = self._check_model(agent, model)
            if problem is not None:
                return problem
        elif policy is not None and policy.model is not None:
            model = policy.model
        need = Need(
            family="" if model else agent.model_family or "",
            model=model,
            exclusive=_NO_EXCLUSIVE if policy is None else self._exclusive[policy.agent_id],
            min_vram_mb=0 if policy is None else policy.min_vram_mb,
            min_bandwidth_mb_s=0 if policy is None else policy.min_bandwidth_mb_s,
            prompt_tokens=tokens_of_bytes(arrival.content_length or 0),
            expected_tokens=_expected_tokens(agent, body),
            latency_sla_ms=agent.latency_sla_ms,
        )
        if policy is None:
            return self._by_turn(agent, need)
        return self._by_score(agent, need, checked=body is not None)

    def _by_turn(self, agent: AgentRequest, need: Need) -> Decision | ApiProblem:
        strategy = self.config.routing.default_fallback
        self.recorder.fallback_taken(agent.agent, strategy)
        if strategy == "reject":
            return forbidden("no known agent is named: set X-Agent-ID", param=names.AGENT_ID, code="agent_required")
        found = round_robin(self.table, need, turn=self._turn, candidates=self.config.routing.candidates)
        self._turn += 1
        if isinstance(found, Refusal):
            return self._refused(need, found)
        return self._decision(agent, found, "", strategy)

    def _by_score(self, agent: AgentRequest, need: Need, *, checked: bool) -> Decision | ApiProblem:
        routing = self.config.routing
        fallback = None
        found = pick(self.table, need, weights=routing.weights, candidates=routing.candidates, rng=self._rng)
        if found is Refusal.CONTEXT:
            # The length is an estimate from bytes. Where it fits nowhere, the engine's own tokenizer has the word.
            fallback = "context"
            need = replace(need, prompt_tokens=0)
            found = pick(self.table, need, weights=routing.weights, candidates=routing.candidates, rng=self._rng)
        if isinstance(found, Refusal):
            return self._refused(need, found)
        if found.over_sla:
            fallback = "sla"
        if fallback is not None:
            self.recorder.fallback_taken(agent.agent, fallback)
        allowed = "" if checked else f",{found.model},"
        return self._decision(agent, found, allowed, fallback)

    def _decision(self, agent: AgentRequest, found: Pick, allowed: str, fallback: str | None) -> Decision:
        table = self.table
        table.acquire(found.rows[0])
        engine_priority = None
        for row in found.rows:
            record = table.record(row)
            if record is not None and record.state.priority_scheduling:
                engine_priority = agent.priority_class.engine_priority
                break
        return Decision(
            rows=found.rows,
            endpoints=",".join(table.endpoint(row) for row in found.rows),
            model=found.model,
            allowed_models=allowed,
            engine_priority=engine_priority,
            fallback=fallback,
        )

    def _check_model(self, agent: AgentRequest, model: str) -> ApiProblem | None:
        if not self.table.knows_model(model):
            return model_not_found(model)
        policy = agent.policy
        if policy is None or policy.allow_other_models or policy.model_family is None:
            return None
        if model == policy.model or policy.model_family in self.table.families_of(model):
            return None
        return forbidden(
            f"agent {policy.agent_id} may use models of the family {policy.model_family}, and {model!r} is none",
            param="model",
            code="model_not_allowed",
        )

    def _refused(self, need: Need, refusal: Refusal) -> ApiProblem:
        if refusal is not Refusal.NO_WORKER:
            return unavailable(f"no worker has the {refusal.value} that this request needs", code=f"no_{refusal.value}")
        if need.model:
            if not self.table.knows_model(need.model):
                return model_not_found(need.model)
            return unavailable(f"no worker that serves {need.model!r} is ready", code="no_worker")
        if need.family:
            return unavailable(f"no worker that serves the family {need.family!r} is ready", code="no_worker")
        return unavailable("no worker is ready", code="no_worker")


def _expected_tokens(agent: AgentRequest, body: BodyFacts | None) -> int:
    bounds = [agent.max_new_tokens, None if body is None else body.max_tokens]
    return min((bound for bound in bounds if bound is not None), default=DEFAULT_EXPECTED_TOKENS)
