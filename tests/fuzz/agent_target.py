"""Headers that describe an agent's request: a description within its policy, or an answer that says what is wrong."""

import json
from typing import Final

from fuzz.reader import Reader
from fuzz.targets import JSON_WORDS
from recursant import names
from recursant.agents.policy import AgentPolicy
from recursant.agents.request import AgentResolver
from recursant.problems import ApiProblem
from recursant.routing.affinity_blocks import session_key

_POLICIES: Final = (
    AgentPolicy(agent_id="chat-web", model_family="qwen", priority=10, max_new_tokens=512, context_length=8_192),
    AgentPolicy(agent_id="open", priority=3, latency_sla_ms=800, allow_other_models=True),
)
_RESOLVER: Final = AgentResolver(_POLICIES, max_meta_bytes=4_096)
_HEADERS: Final = (names.AGENT_ID, *names.AGENT_DESCRIPTION_HEADERS)
_LIMITED: Final = ("priority", "latency_sla_ms", "context_length", "max_new_tokens")
_MOST_HEADERS: Final = 8


def check(data: bytes) -> None:
    """The first byte chooses the agent; X-Agent-Meta and other headers follow, each with its length."""
    reader = Reader(data)
    headers: dict[str, bytes] = {}
    agent = reader.pick((b"chat-web", b"open", b"", None))
    if agent is not None:
        headers[names.AGENT_ID] = agent
    headers[names.AGENT_META] = reader.piece()
    for _ in range(_MOST_HEADERS):
        if reader.over:
            break
        headers[reader.pick(_HEADERS)] = reader.piece()
    found = _RESOLVER.resolve(headers)
    if isinstance(found, ApiProblem):
        assert found.status in (400, 403)
        assert json.loads(found.body())["error"]["message"] == found.message
        return
    policy = next((each for each in _POLICIES if each.agent_id == found.agent), None)
    assert found.policy is policy
    assert found.agent == (names.NO_AGENT if policy is None else policy.agent_id)
    assert set(found.clamped) <= set(_LIMITED)
    for field in _LIMITED:
        value, bound = getattr(found, field), getattr(policy, field, None)
        assert value is None or 0 <= value <= 1_000_000_000
        assert bound is None or value <= bound
    if policy is not None and not policy.allow_other_models:
        assert found.model_family == policy.model_family
    # It goes on into keys and into what people read.
    session_key(found.agent, found.model_family or "", b"session")


def _seed(agent: int, meta: bytes, *more: tuple[int, bytes]) -> bytes:
    return bytes((agent, len(meta))) + meta + b"".join(bytes((which, len(value))) + value for which, value in more)


SEEDS: Final = (
    _seed(0, b'{"priority": 4, "latency_sla_ms": 500, "model_family": "qwen", "context_length": 4096}'),
    _seed(0, b'{"max_new_tokens": 100000, "model_family": "phi"}'),
    _seed(3, b'{"agent_id": "open", "model_family": "\\u00e9t\\u00e9"}'),
    _seed(1, b"{}", (2, b"3"), (3, b"200"), (4, b"16"), (5, b"1"), (6, b"phi")),
    _seed(2, b'{"agent_id": null, "priority": 1e3}'),
    _seed(1, b"[" * 60),
    # Half a surrogate pair, once no text for anybody.
    _seed(3, b'{"agent_id": "\\ud800"}'),
    _seed(3, b'{"model_family": "\\ud800"}'),
)
WORDS: Final = (
    *JSON_WORDS,
    *(b'"%s":' % field for field in (b"agent_id", b"model_family", *(each.encode() for each in _LIMITED))),
)
