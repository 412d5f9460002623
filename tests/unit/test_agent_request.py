import json
from typing import Any

import pytest

from recursant.agents.policy import AgentPolicy
from recursant.agents.priority import PriorityClass, class_of_priority
from recursant.agents.request import AgentRequest, AgentResolver
from recursant.problems import ApiProblem

POLICY = AgentPolicy(
    agent_id="chat-web",
    model_family="qwen",
    priority=10,
    latency_sla_ms=800,
    max_new_tokens=512,
    context_length=8_192,
)
OPEN = AgentPolicy(agent_id="open", priority=3)


def resolve(headers: dict[str, str], **limits: int) -> AgentRequest | ApiProblem:
    resolver = AgentResolver([POLICY, OPEN], max_meta_bytes=limits.get("max_meta_bytes", 4_096))
    return resolver.resolve({name: value.encode() for name, value in headers.items()})


def resolved(headers: dict[str, str]) -> AgentRequest:
    found = resolve(headers)
    assert isinstance(found, AgentRequest), found
    return found


def refused(headers: dict[str, str], **limits: int) -> ApiProblem:
    found = resolve(headers, **limits)
    assert isinstance(found, ApiProblem), found
    return found


def meta(**fields: Any) -> dict[str, str]:
    return {"x-agent-id": "chat-web", "x-agent-meta": json.dumps(fields)}


def test_the_policy_supplies_everything() -> None:
    found = resolved({"x-agent-id": "chat-web"})
    assert (found.agent, found.priority, found.latency_sla_ms, found.model_family) == ("chat-web", 10, 800, "qwen")
    assert (found.max_new_tokens, found.context_length, found.clamped) == (512, 8_192, ())


@pytest.mark.parametrize("headers", [{}, {"x-agent-id": "nobody"}, {"x-agent-id": ""}, {"x-agent-id": "CHAT-WEB"}])
def test_an_unknown_agent_is_nobody(headers: dict[str, str]) -> None:
    found = resolved(headers)
    assert (found.agent, found.policy) == ("default", None)


@pytest.mark.parametrize(
    ("field", "header", "narrower", "wider", "limit"),
    [
        ("priority", "x-agent-priority", 4, 11, 10),
        ("latency_sla_ms", "x-agent-latency-sla-ms", 500, 5_000, 800),
        ("max_new_tokens", "x-agent-max-new-tokens", 16, 4_096, 512),
        ("context_length", "x-agent-context-length", 1_024, 131_072, 8_192),
    ],
)
def test_a_request_narrows_and_never_widens(field: str, header: str, narrower: int, wider: int, limit: int) -> None:
    for headers in (meta(**{field: narrower}), {"x-agent-id": "chat-web", header: str(narrower)}):
        found = resolved(headers)
        assert getattr(found, field) == narrower
        assert found.clamped == ()
    for headers in (meta(**{field: wider}), {"x-agent-id": "chat-web", header: str(wider)}):
        found = resolved(headers)
        assert getattr(found, field) == limit
        assert found.clamped == (field,)


def test_a_limit_that_the_policy_leaves_open_is_taken() -> None:
    found = resolved({"x-agent-id": "open", "x-agent-max-new-tokens": "64"})
    assert (found.max_new_tokens, found.clamped) == (64, ())


def test_a_single_header_wins_over_the_json() -> None:
    found = resolved({**meta(priority=2), "x-agent-priority": "4"})
    assert found.priority == 4


def test_the_class_follows_the_narrowed_priority() -> None:
    assert resolved({"x-agent-id": "chat-web"}).priority_class is PriorityClass.HIGH
    assert resolved(meta(priority=2)).priority_class is PriorityClass.LOW


def test_a_class_named_by_the_policy_stays() -> None:
    policy = AgentPolicy.model_validate({"agent_id": "a", "priority": 10, "class": "critical"})
    resolver = AgentResolver([policy], max_meta_bytes=4_096)
    found = resolver.resolve({"x-agent-id": b"a", "x-agent-priority": b"1"})
    assert isinstance(found, AgentRequest)
    assert (found.priority, found.priority_class) == (1, PriorityClass.CRITICAL)


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (0, "LOW"),
        (3, "LOW"),
        (4, "NORMAL"),
        (7, "NORMAL"),
        (8, "HIGH"),
        (14, "HIGH"),
        (15, "CRITICAL"),
        (99, "CRITICAL"),
    ],
)
def test_classes_by_priority(priority: int, expected: str) -> None:
    assert class_of_priority(priority).name == expected


def test_the_json_may_name_the_agent_where_no_header_does() -> None:
    assert resolved({"x-agent-meta": '{"agent_id": "chat-web"}'}).agent == "chat-web"
    assert resolved({"x-agent-id": "open", "x-agent-meta": '{"agent_id": "chat-web"}'}).agent == "open"
    assert resolved({"x-agent-id": "nobody", "x-agent-meta": '{"agent_id": "chat-web"}'}).agent == "default"


def test_another_family_than_the_policys_is_forbidden() -> None:
    assert resolved(meta(model_family="qwen")).model_family == "qwen"
    problem = refused(meta(model_family="deepseek"))
    assert (problem.status, problem.param) == (403, "model_family")


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"x-agent-meta": "{"}, "x-agent-meta"),
        ({"x-agent-meta": "[]"}, "x-agent-meta"),
        ({"x-agent-meta": "[" * 2_000}, "x-agent-meta"),
        ({"x-agent-meta": '{"priorty": 1}'}, "priorty"),
        ({"x-agent-meta": '{"priority": "1"}'}, "priority"),
        ({"x-agent-meta": '{"priority": true}'}, "priority"),
        ({"x-agent-meta": '{"priority": -1}'}, "priority"),
        ({"x-agent-meta": '{"priority": 1.5}'}, "priority"),
        ({"x-agent-meta": '{"latency_sla_ms": 0}'}, "latency_sla_ms"),
        ({"x-agent-meta": '{"max_new_tokens": 99999999999}'}, "max_new_tokens"),
        ({"x-agent-meta": '{"agent_id": 7}'}, "agent_id"),
        ({"x-agent-priority": "high"}, "x-agent-priority"),
        ({"x-agent-priority": "-1"}, "x-agent-priority"),
        ({"x-agent-priority": "1_0"}, "x-agent-priority"),
        ({"x-agent-priority": ""}, "x-agent-priority"),
        ({"x-agent-max-new-tokens": "9" * 400}, "x-agent-max-new-tokens"),
    ],
)
def test_a_malformed_description_is_the_clients_error(headers: dict[str, str], param: str) -> None:
    problem = refused({"x-agent-id": "chat-web", **headers})
    assert (problem.status, problem.param) == (400, param)
    assert json.loads(problem.body())["error"].keys() == {"message", "type", "param", "code"}


def test_the_json_is_bounded() -> None:
    assert refused(meta(priority=1), max_meta_bytes=8).status == 400


@pytest.mark.parametrize("field", ["agent_id", "model_family"])
@pytest.mark.parametrize("agent", [{}, {"x-agent-id": "open"}])
def test_half_a_surrogate_pair_is_no_text(field: str, agent: dict[str, str]) -> None:
    # json.dumps writes it as an escape, and no encoder takes what comes of that.
    problem = refused(agent | {"x-agent-meta": json.dumps({field: "\ud800"})})
    assert (problem.status, problem.param) == (400, field)
