"""Policies as protobuf: nothing is lost, nothing bad comes in, and equal content has equal versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import (
    MAX_POLICY_BYTES,
    PolicyError,
    content_version,
    decode,
    encode,
    parse,
    to_message,
)
from recursant.v1.agent_policy_pb2 import AgentPolicy as AgentPolicyMessage

FULL = {
    "agent_id": "voice-transcribe",
    "model_family": "whisper",
    "model": "openai/whisper-large-v3",
    "allow_other_models": True,
    "priority": 0,
    "class": "critical",
    "allow_real_time": True,
    "min_vram_mb": 4200,
    "min_bandwidth_mb_s": 7,
    "latency_sla_ms": 3000,
    "timeout_ms": 15000,
    "max_new_tokens": 512,
    "context_length": 8192,
    "fallback_strategy": "degrade_to_qwen",
    "retry_max": 3,
    "retry_delay_ms": 0,
    "batch_window_ms": 50,
    "on_memory_pressure": "shape",
    "failure_mode": "closed",
    "inspect_body": "never",
    "affinity": "prefix",
    "workers": ["gpu-1", "gpu-2"],
}


def test_every_field_survives() -> None:
    policy = AgentPolicy.model_validate(FULL)
    # A field that is added to the model and not to this test, or not to the message, is noticed.
    assert {field.alias or name for name, field in AgentPolicy.model_fields.items()} == FULL.keys()
    assert decode(encode(policy)) == policy


def test_defaults_survive() -> None:
    policy = AgentPolicy(agent_id="a")
    assert decode(encode(policy)) == policy


def test_what_a_sender_does_not_know_is_the_readers_default() -> None:
    found = decode(AgentPolicyMessage(agent_id="a").SerializeToString())
    assert found == AgentPolicy(agent_id="a")
    assert found.priority == 5


@given(st.integers(0, 1000), st.one_of(st.none(), st.integers(1, 10**9)), st.lists(st.text(max_size=8), max_size=3))
def test_any_policy_survives(priority: int, sla: int | None, workers: list[str]) -> None:
    policy = AgentPolicy(agent_id="a", priority=priority, latency_sla_ms=sla, workers=tuple(workers))
    assert decode(encode(policy)) == policy


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("priority", 1001, "priority"),
        ("priority_class", "urgent", "class"),
        ("fallback_strategy", "hope", "fallback_strategy"),
        ("latency_sla_ms", 0, "latency_sla_ms"),
        ("agent_id", "two words", "agent_id"),
        ("agent_id", "", "agent_id"),
    ],
)
def test_a_bad_policy_is_refused_by_its_field(field: str, value: object, named: str) -> None:
    message = AgentPolicyMessage(agent_id="a")
    setattr(message, field, value)
    with pytest.raises(PolicyError, match=rf"\b{named}: ") as caught:
        decode(message.SerializeToString())
    assert caught.value.field == named


def test_what_is_no_policy() -> None:
    with pytest.raises(PolicyError, match="not an AgentPolicy"):
        decode(b"\xff\xff\xff")
    with pytest.raises(PolicyError, match="bytes"):
        parse(b"x" * (MAX_POLICY_BYTES + 1))


def test_the_version_is_the_contents() -> None:
    short = AgentPolicy.model_validate({"agent_id": "a", "priority": 7})
    long = AgentPolicy.model_validate({"priority": 7, "retry_max": 0, "agent_id": "a", "class": None})
    assert content_version(short) == content_version(long) == to_message(short).version
    assert content_version(short) != content_version(AgentPolicy(agent_id="a", priority=8))
    assert content_version(short) != content_version(AgentPolicy(agent_id="b", priority=7))
