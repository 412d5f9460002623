"""Who sends a request and what it asks for, within its policy (SPEC A1).

The policy supplies everything; the request may narrow it with `X-Agent-Meta` (JSON) or single `X-Agent-*` headers.
What would widen it is clamped to the policy's value, and the field is named in `clamped`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from recursant import names
from recursant.agents.policy import AgentPolicy
from recursant.agents.priority import PriorityClass, class_of_priority
from recursant.problems import ApiProblem, bad_request, forbidden

# Requests without an agent have the middle of the Normal class until a rule says otherwise.
NO_AGENT_PRIORITY: Final = 5

_META_FIELDS: Final = (
    "agent_id",
    "priority",
    "latency_sla_ms",
    "model_family",
    "context_length",
    "max_new_tokens",
)
_HEADER_OF_FIELD: Final = {
    "priority": names.AGENT_PRIORITY,
    "latency_sla_ms": names.AGENT_LATENCY_SLA_MS,
    "max_new_tokens": names.AGENT_MAX_NEW_TOKENS,
    "context_length": names.AGENT_CONTEXT_LENGTH,
}
# Larger numbers than these are mistakes, whatever they count.
_MAX_NUMBER: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request's description with its policy applied.

    Attributes:
        agent: the configured id, or `names.NO_AGENT`; safe as a metric label.
        policy: None where no known agent is named.
        priority: larger = more important, never above the policy's.
        priority_class: follows from `priority`, unless the policy names one.
        model_family: the family that serves it; None: whatever serves the model that the body names.
        latency_sla_ms: target for the first token, in ms.
        context_length: prompt and output together, in tokens.
        max_new_tokens: most tokens of output.
        clamped: the fields that asked for more than the policy gives.
    """

    agent: str
    policy: AgentPolicy | None
    priority: int
    priority_class: PriorityClass
    model_family: str | None = None
    latency_sla_ms: int | None = None
    context_length: int | None = None
    max_new_tokens: int | None = None
    clamped: tuple[str, ...] = ()


class AgentResolver:
    """Finds the agent of a request and applies its policy. Built once for a set of policies."""

    def __init__(self, policies: Iterable[AgentPolicy], *, max_meta_bytes: int) -> None:
        self._max_meta_bytes = max_meta_bytes
        self._plain = {policy.agent_id.encode(): _of_policy(policy) for policy in policies}
        self._nobody = AgentRequest(names.NO_AGENT, None, NO_AGENT_PRIORITY, class_of_priority(NO_AGENT_PRIORITY))

    def resolve(self, headers: Mapping[str, bytes]) -> AgentRequest | ApiProblem:
        """The request's agent and limits, or the problem that its description has.

        Args:
            headers: lower-case names and raw values.
        """
        plain = self._plain.get(headers.get(names.AGENT_ID, b""))
        if names.AGENT_META in headers or not headers.keys().isdisjoint(names.AGENT_DESCRIPTION_HEADERS):
            return self._narrowed(plain, headers)
        return plain or self._nobody

    def _narrowed(self, plain: AgentRequest | None, headers: Mapping[str, bytes]) -> AgentRequest | ApiProblem:
        asked = self._description(headers)
        if isinstance(asked, ApiProblem):
            return asked
        agent_id = asked.pop("agent_id", None)
        if plain is None and names.AGENT_ID not in headers and isinstance(agent_id, str):
            plain = self._plain.get(agent_id.encode())
        return _narrow(plain or self._nobody, asked)

    def _description(self, headers: Mapping[str, bytes]) -> dict[str, int | str] | ApiProblem:
        """What the request says of itself; a single header wins over the same field of the JSON."""
        asked: dict[str, int | str] = {}
        raw_meta = headers.get(names.AGENT_META)
        if raw_meta is not None:
            meta = _parse_meta(raw_meta, self._max_meta_bytes)
            if isinstance(meta, ApiProblem):
                return meta
            asked.update(meta)
        for field, header in _HEADER_OF_FIELD.items():
            raw = headers.get(header)
            if raw is None:
                continue
            # int() would also take "1_0", "+1" and other scripts' digits.
            if not raw.isdigit() or len(raw) > len(str(_MAX_NUMBER)):
                return bad_request(f"{header} must be a whole number", param=header)
            asked[field] = int(raw)
        raw_family = headers.get(names.AGENT_MODEL_FAMILY)
        if raw_family is not None:
            asked["model_family"] = raw_family.decode("utf-8", "replace")
        for field in _HEADER_OF_FIELD:
            value = asked.get(field)
            smallest = 0 if field == "priority" else 1
            if isinstance(value, int) and not smallest <= value <= _MAX_NUMBER:
                return bad_request(f"{field} must be from {smallest} to {_MAX_NUMBER}, not {value}", param=field)
        return asked


def _parse_meta(raw: bytes, max_bytes: int) -> dict[str, int | str] | ApiProblem:
    if len(raw) > max_bytes:
        return bad_request(f"X-Agent-Meta has {len(raw)} bytes, allowed are {max_bytes}", param=names.AGENT_META)
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError):
        return bad_request("X-Agent-Meta is not valid JSON", param=names.AGENT_META)
    if not isinstance(meta, dict):
        return bad_request("X-Agent-Meta must be a JSON object", param=names.AGENT_META)
    asked: dict[str, int | str] = {}
    for field, value in meta.items():
        if field not in _META_FIELDS:
            allowed = ", ".join(_META_FIELDS)
            return bad_request(
                f"X-Agent-Meta has an unknown field {field[:64]!r}; known are {allowed}", param=field[:64]
            )
        wanted = str if field in ("agent_id", "model_family") else int
        if value is None:
            continue
        if not isinstance(value, wanted) or isinstance(value, bool):
            kind = "a string" if wanted is str else "a whole number"
            return bad_request(f"X-Agent-Meta: {field} must be {kind}", param=field)
        if isinstance(value, str) and not _is_text(value):
            return bad_request(f"X-Agent-Meta: {field} has half a surrogate pair, which is no text", param=field)
        asked[field] = value
    return asked


def _is_text(value: str) -> bool:
    """Can it be written as UTF-8? JSON can spell what cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _of_policy(policy: AgentPolicy) -> AgentRequest:
    return AgentRequest(
        agent=policy.agent_id,
        policy=policy,
        priority=policy.priority,
        priority_class=policy.priority_class,
        model_family=policy.model_family,
        latency_sla_ms=policy.latency_sla_ms,
        context_length=policy.context_length,
        max_new_tokens=policy.max_new_tokens,
    )


def _narrow(base: AgentRequest, asked: Mapping[str, int | str]) -> AgentRequest | ApiProblem:
    policy = base.policy
    family = asked.get("model_family")
    if policy is not None and family is not None and family != policy.model_family and not policy.allow_other_models:
        return forbidden(
            f"agent {policy.agent_id} may use models of the family {policy.model_family}, not {str(family)[:64]!r}",
            param="model_family",
            code="model_not_allowed",
        )
    clamped: list[str] = []

    def within(field: str, limit: int | None) -> int | None:
        value = asked.get(field)
        if not isinstance(value, int):
            return limit
        if limit is not None and value > limit:
            clamped.append(field)
            return limit
        return value

    priority = within("priority", base.priority)
    narrowed_priority = base.priority if priority is None else priority
    fixed_class = policy is not None and policy.class_ is not None
    return AgentRequest(
        agent=base.agent,
        policy=policy,
        priority=narrowed_priority,
        priority_class=base.priority_class if fixed_class else class_of_priority(narrowed_priority),
        model_family=family if isinstance(family, str) else base.model_family,
        latency_sla_ms=within("latency_sla_ms", base.latency_sla_ms),
        context_length=within("context_length", base.context_length),
        max_new_tokens=within("max_new_tokens", base.max_new_tokens),
        clamped=tuple(clamped),
    )
