"""The rules on their way: configuration, message, replica."""

import math
from typing import Any

import pytest
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse, Resource
from hypothesis import given
from hypothesis import strategies as st

from extproc.rules_state import RulesState
from recursant.admission.rules import Admission, ClassRules, SlotShares
from recursant.config.live import GatewayRules
from recursant.config.model import Config, Limits, Routing, ScoreWeights
from recursant.config.rules_codec import (
    MAX_RULES_BYTES,
    RESOURCE_NAME,
    TYPE_URL,
    RulesError,
    decode_rules,
    encode_rules,
    rules_to_dict,
    rules_version,
)
from recursant.v1.gateway_rules_pb2 import GatewayRules as GatewayRulesMessage

share = st.floats(0.01, 1)
SHARES = (
    st.lists(share, min_size=4, max_size=4)
    .map(sorted)
    .map(lambda found: SlotShares(low=found[0], normal=found[1], high=found[2], critical=found[3]))
)
RULES = st.builds(
    GatewayRules,
    routing=st.builds(
        Routing,
        default_fallback=st.sampled_from(["round_robin", "reject"]),
        timeout_ms=st.integers(1, 86_400_000),
        weights=st.builds(
            ScoreWeights,
            profile=st.sampled_from(["classic", "adaptive"]),
            token_rate=st.floats(0.1, 1e6),
            queue=st.floats(0, 1e6),
        ),
        candidates=st.integers(1, 8),
    ),
    limits=st.builds(
        Limits,
        agent_meta_bytes=st.integers(64, 65_536),
        session_id_bytes=st.integers(16, 4_096),
        request_id_bytes=st.integers(16, 4_096),
        held_requests=st.integers(1, 100_000),
    ),
    admission=st.builds(
        Admission,
        kv_water_mark=st.floats(0.05, 1),
        ageing_ms=st.integers(1, 86_400_000),
        slot_shares=SHARES,
        rules=st.builds(
            ClassRules,
            short_input_tokens=st.integers(0, 1_000_000_000),
            short_output_tokens=st.integers(0, 1_000_000_000),
            report_words=st.lists(st.sampled_from(["a", "*b", "c*", "*总结*", "d e"]), max_size=4).map(tuple),
        ),
    ),
)


@given(RULES)
def test_rules_survive_the_message(rules: GatewayRules) -> None:
    assert decode_rules(encode_rules(rules)) == rules
    assert encode_rules(decode_rules(encode_rules(rules))) == encode_rules(rules)


@given(RULES, RULES)
def test_versions_are_equal_where_the_rules_are(one: GatewayRules, other: GatewayRules) -> None:
    assert (rules_version(one) == rules_version(other)) is (one == other)


@given(RULES)
def test_rules_come_from_a_configuration_and_go_onto_another(rules: GatewayRules) -> None:
    running = Config(limits=Limits(body_bytes=2_048, workers=7))
    assert GatewayRules.of(rules.onto(running)) == rules
    # What they do not speak of stays.
    assert rules.onto(running).limits.body_bytes == 2_048
    assert rules.onto(running).gateway is running.gateway


def test_the_message_has_every_key_of_the_configuration() -> None:
    # A key that it lacked would keep every snapshot from being built.
    def compare(data: dict[str, Any], descriptor: Any, path: str) -> None:
        assert set(data) == set(descriptor.fields_by_name), path
        for name, value in data.items():
            if isinstance(value, dict):
                compare(value, descriptor.fields_by_name[name].message_type, f"{path}.{name}")

    compare(rules_to_dict(GatewayRules()), GatewayRulesMessage.DESCRIPTOR, "rules")


def test_what_a_sender_does_not_know_is_the_readers_default() -> None:
    assert decode_rules(b"") == GatewayRules()
    message = GatewayRulesMessage()
    message.admission.kv_water_mark = 0.5
    rules = decode_rules(message.SerializeToString())
    assert rules == GatewayRules(admission=Admission(kv_water_mark=0.5))


def test_an_empty_list_of_words_is_not_the_default() -> None:
    message = GatewayRulesMessage()
    message.admission.rules.report_words.SetInParent()
    assert decode_rules(message.SerializeToString()).admission.rules.report_words == ()


def bad_mark(value: float) -> bytes:
    message = GatewayRulesMessage()
    message.admission.kv_water_mark = value
    return message.SerializeToString()


@pytest.mark.parametrize("value", [0.0, 1.5, math.nan, math.inf])
def test_what_is_not_allowed_is_refused_by_its_field(value: float) -> None:
    with pytest.raises(RulesError, match=r"admission\.kv_water_mark: "):
        decode_rules(bad_mark(value))


def test_what_are_no_rules_is_refused() -> None:
    with pytest.raises(RulesError, match="not GatewayRules"):
        decode_rules(b"\xff")
    with pytest.raises(RulesError, match="allowed are"):
        decode_rules(b"x" * (MAX_RULES_BYTES + 1))


def response(
    value: bytes, version: str, *, name: str = RESOURCE_NAME, type_url: str = TYPE_URL
) -> DeltaDiscoveryResponse:
    found = DeltaDiscoveryResponse(type_url=TYPE_URL)
    resource = Resource(name=name, version=version)
    resource.resource.type_url = type_url
    resource.resource.value = value
    found.resources.append(resource)
    return found


STRICT = GatewayRules(admission=Admission(kv_water_mark=0.5))


def test_a_replica_keeps_the_last_good_rules() -> None:
    state = RulesState(GatewayRules())
    assert state.versions == {RESOURCE_NAME: rules_version(GatewayRules())}
    assert state.take(response(encode_rules(STRICT), "v2")) == ""
    assert (state.rules, state.versions) == (STRICT, {RESOURCE_NAME: "v2"})
    assert "rules: admission.kv_water_mark: " in state.take(response(bad_mark(7.0), "v3"))
    assert "'other'" in state.take(response(encode_rules(GatewayRules()), "v4", name="other"))
    assert "is unknown here" in state.take(response(encode_rules(GatewayRules()), "v5", type_url="type/of.Else"))
    assert state.take(DeltaDiscoveryResponse(type_url=TYPE_URL, removed_resources=[RESOURCE_NAME])) == ""
    assert (state.rules, state.versions) == (STRICT, {RESOURCE_NAME: "v2"})


def test_a_replica_finds_again_what_it_kept() -> None:
    state = RulesState(STRICT, "v2")
    again = RulesState.parse(state.dump())
    assert (again.rules, again.versions) == (state.rules, state.versions)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "version": "v", "rules": {}}',
        '{"format": 1, "rules": {}}',
        '{"format": 1, "version": "v", "rules": 7}',
        '{"format": 1, "version": "v", "rules": {"admission": {"kv_water_mark": 9}}}',
    ],
)
def test_what_was_not_kept_by_us_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has words of its own
        RulesState.parse(text)
