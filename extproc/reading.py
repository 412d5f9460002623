"""What a request asks for, from its headers and, where the text decides, its body.

No sockets and no clock of its own: configuration, fleet and time come in.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from extproc.body import BodyFacts, is_json
from extproc.decision import Arrival, Demand
from extproc.ids import Ids
from recursant import names
from recursant.admission.calibration import Calibration
from recursant.admission.classes import class_by_rules
from recursant.admission.rules import ExpressRules
from recursant.agents.policy import AgentPolicy
from recursant.agents.priority import PriorityClass
from recursant.agents.request import AgentRequest, AgentResolver
from recursant.config.model import Config
from recursant.fleet.table import FleetTable
from recursant.problems import ApiProblem, bad_request, forbidden, model_not_found, too_large
from recursant.routing.affinity import Trail
from recursant.routing.affinity_blocks import BLOCK_TOKENS, session_key
from recursant.routing.need import DEFAULT_EXPECTED_TOKENS, Express, Need

_REQUEST_ID: Final = re.compile(rb"^[A-Za-z0-9][A-Za-z0-9._:/+=-]*$")
_NO_EXCLUSIVE: Final = frozenset[str]()
# Of a content-length: no limit has more, and Python refuses to read thousands.
_MOST_DIGITS: Final = 20


def express_rules(config: Config) -> ExpressRules | None:
    """The rules of the express lane; None where there is none: it goes by the work that `adaptive` compares."""
    rules = config.admission.express
    return rules if rules.enabled and config.routing.weights.profile == "adaptive" else None


class RequestReader:
    """Reads requests by one configuration and what one fleet serves.

    Args:
        config: with the limits and rules.
        table: the fleet.
        clock: monotonic seconds.
        calibration: what is known of the length of prompts and answers.
        settled: whoever is in the fleet was heard.
    """

    def __init__(
        self,
        config: Config,
        table: FleetTable,
        clock: Callable[[], float],
        calibration: Calibration,
        settled: Callable[[], bool],
    ) -> None:
        self.config = config
        self.table = table
        self.clock = clock
        self.calibration = calibration
        self._settled = settled
        # `settled` said so once, so it need not be asked again.
        self._all_heard = False
        self._ids = Ids()
        self.set_policies(config.agents)

    def set_policies(self, policies: Sequence[AgentPolicy]) -> None:
        """Put other policies in force, all of them at once; requests that have arrived keep the ones they came with."""
        self._policies: Sequence[AgentPolicy] = policies
        self._agents = AgentResolver(policies, max_meta_bytes=self.config.limits.agent_meta_bytes)
        self._exclusive = {policy.agent_id: frozenset(policy.workers) for policy in policies}
        self._has_lane = express_rules(self.config) is not None

    def arrival(self, headers: Mapping[str, bytes], *, has_body: bool) -> Arrival | ApiProblem:
        """Read a request's headers, or say what is wrong with them."""
        limits = self.config.limits
        agent = self._agents.resolve(headers)
        if isinstance(agent, ApiProblem):
            return agent
        raw_length = headers.get("content-length")
        length = int(raw_length[:_MOST_DIGITS]) if raw_length is not None and raw_length.isdigit() else None
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
            own = ((names.REQUEST_ID, self._ids.request_id()),)
        if names.TRACEPARENT not in headers:
            own = (*own, (names.TRACEPARENT, self._ids.traceparent()))
        return Arrival(
            agent=agent,
            at_s=self.clock(),
            content_length=length,
            json_body=has_body and is_json(headers.get("content-type")),
            real_time=headers.get(names.REAL_TIME, b"").lower() == b"true",
            request_headers=own,
            session=session,
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
        if policy.allow_other_models or policy.affinity == "prefix":
            return True
        # One name for the whole family: Lua can check it alone. Several: the name decides the worker.
        found = self.table.candidates(family=policy.model_family, exclusive=self._exclusive_of(policy))
        return len(found.names) > 1

    def prefix_seed(self, arrival: Arrival) -> str | None:
        """What the blocks of this request's prompt are chained to; None: its agent wants none of that."""
        policy = arrival.agent.policy
        if policy is None or policy.affinity != "prefix" or self.config.routing.weights.affinity == 0:
            return None
        return policy.model_family or ""

    def demand(self, arrival: Arrival, body: BodyFacts | None) -> Demand | ApiProblem:
        """Merge headers, policy, rules and body, or say why the request can never be served.

        Args:
            arrival: from `arrival`.
            body: None where it was not looked at.
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
        family = self.family_of(agent.model_family, model)
        input_tokens = self.calibration.tokens(family, arrival.content_length or 0)
        bounds = (agent.max_new_tokens, None if body is None else body.max_tokens)
        output_tokens = min((bound for bound in bounds if bound is not None), default=None)
        priority_class = class_by_rules(
            agent.priority_class,
            policy,
            self.config.admission.rules,
            input_tokens=None if arrival.content_length is None else input_tokens,
            output_tokens=output_tokens,
            text=None if body is None else body.text,
            real_time=arrival.real_time,
        )
        need = Need(
            family="" if model else agent.model_family or "",
            model=model,
            exclusive=self._exclusive_of(policy),
            min_vram_mb=0 if policy is None else policy.min_vram_mb,
            min_bandwidth_mb_s=0 if policy is None else policy.min_bandwidth_mb_s,
            prompt_tokens=input_tokens,
            expected_tokens=output_tokens or DEFAULT_EXPECTED_TOKENS,
            likely_tokens=self.calibration.answer_tokens(family, output_tokens),
            context_length=agent.context_length or 0,
            latency_sla_ms=agent.latency_sla_ms,
            count_as=priority_class,
            express=self._express_of(policy, priority_class),
        )
        return Demand(
            agent=agent,
            need=need,
            priority_class=priority_class,
            checked=body is not None,
            deadline_s=arrival.at_s + self.timeout_ms(policy) / 1_000,
            trail=self._trail(arrival, need, () if body is None else body.blocks),
        )

    def _express_of(self, policy: AgentPolicy | None, priority_class: PriorityClass) -> int:
        """What a request has to do with the express lane; by its own class, as waiting makes no prompt shorter."""
        if not self._has_lane:
            return Express.NONE
        if priority_class >= PriorityClass.HIGH:
            return Express.URGENT
        # Whoever does not wait for a full worker does not wait for one off the lane either.
        return Express.KEEPS_OFF if policy is None or policy.waits_for_room else Express.NONE

    def _trail(self, arrival: Arrival, need: Need, blocks: Sequence[int]) -> Trail | None:
        """What of a request leads to earlier ones, as far as its agent wants that."""
        agent = arrival.agent
        mode = "session" if agent.policy is None else agent.policy.affinity
        if mode == "none" or not (arrival.session or blocks) or self.config.routing.weights.affinity == 0:
            return None
        session = session_key(agent.agent, need.model or need.family, arrival.session) if arrival.session else None
        return Trail(session, blocks if mode == "prefix" else (), BLOCK_TOKENS)

    def family_of(self, family: str | None, model: str) -> str:
        """The family whose tokenizer reads a prompt; "" where that is not known."""
        if not model:
            return family or ""
        families = self.table.served.families_of(model)
        return next(iter(families)) if len(families) == 1 else family or ""

    def _exclusive_of(self, policy: AgentPolicy | None) -> frozenset[str]:
        # A request may outlive its agent's policy.
        return _NO_EXCLUSIVE if policy is None else self._exclusive.get(policy.agent_id, _NO_EXCLUSIVE)

    def timeout_ms(self, policy: AgentPolicy | None) -> int:
        """Arrival to first response byte: the policy's own time, within the global bound."""
        bound = self.config.routing.timeout_ms
        return bound if policy is None or policy.timeout_ms is None else min(bound, policy.timeout_ms)

    def may_come(self, agent: AgentRequest, model: str) -> bool:
        """Is nobody known who could serve this, while somebody who can may not have been heard yet?

        A refusal for that is not to be trusted: Envoy, which knows the fleet from before, may find somebody.

        Args:
            agent: whose request it is.
            model: the one that its body names; "" for none.
        """
        # Asked for a few seconds in the life of a process, and for refusals only.
        if self._all_heard or self._settled():
            self._all_heard = True
            return False
        policy = agent.policy
        model = model or (policy is not None and policy.model) or ""
        family = "" if model else agent.model_family or ""
        return self.table.candidates(family=family, model=model, exclusive=self._exclusive_of(policy)).rows.size == 0

    def _check_model(self, agent: AgentRequest, model: str) -> ApiProblem | None:
        if not self.table.served.knows_model(model):
            return model_not_found(model)
        policy = agent.policy
        if policy is None or policy.allow_other_models or policy.model_family is None:
            return None
        if model == policy.model or policy.model_family in self.table.served.families_of(model):
            return None
        return forbidden(
            f"agent {policy.agent_id} may use models of the family {policy.model_family}, and {model!r} is none",
            param="model",
            code="model_not_allowed",
        )
