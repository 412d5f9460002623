"""Priority and KV pressure: what the gateway asks for, vLLM really does."""

import pytest
from fleet_rig import PRIORITY_SEQS, Fleet
from harness import wait_until
from load import Call, Load
from vllm_rig import MODEL, REQUEST_S, VllmServer, completion, token_prompt

PREEMPTIONS = "vllm:num_preemptions_total"
# Six of them need twice what the small cache holds; two are what the water-mark lets in.
PROMPT_TOKENS = 600
OUTPUT_TOKENS = 300
REQUESTS = 6


def longest(number: int, model: str) -> dict[str, object]:
    return {**completion(token_prompt(PROMPT_TOKENS, number), max_tokens=OUTPUT_TOKENS), "model": model}


def test_urgent_requests_overtake_within_vllm(fleet: Fleet) -> None:
    server = fleet.priority

    def send(load: Load, agent: str, count: int, tokens: int) -> None:
        for number in range(count):
            body = {**completion(f"{agent} {number}", max_tokens=tokens), "model": server.model}
            load.start(agent, body, {"x-agent-id": agent})

    def in_flight(count: int) -> bool:
        return fleet.stack.inflight() >= count

    with Load(fleet.stack.endpoints.gateway) as load:
        # No more than the water-mark lets in.
        send(load, "report", PRIORITY_SEQS, 1_200)
        wait_until(lambda: all(call.first for call in load.calls), what="as many run as can")
        # Held, so that all others are there before one of these ends.
        with server.stopped():
            send(load, "report", 4, 40)
            wait_until(lambda: in_flight(PRIORITY_SEQS + 4), what="four more reports have come")
            # Long enough that what is sent in one piece cannot hide who was first.
            send(load, "urgent", 4, 160)
            wait_until(lambda: in_flight(PRIORITY_SEQS + 8), what="four urgent requests have come after them")
        calls = load.wait()
    assert {(call.status, call.error) for call in calls} == {(200, "")}
    late_reports = [call.first for call in calls if call.label == "report"][PRIORITY_SEQS:]
    assert max(call.first for call in calls if call.label == "urgent") < min(late_reports)


def burst(fleet: Fleet, url: str, model: str, agent: str, waves: int = 1) -> tuple[list[Call], float]:
    """The calls of a burst, and how often the small server preempted meanwhile.

    Each further wave comes when the fleet knows of the one before, or that is over.
    """
    # A counter follows its engine by a step or more.
    fleet.small.wait_idle()
    before = fleet.small.metrics().value(PREEMPTIONS)
    with Load(url) as load:
        for wave in range(waves):
            for number in range(REQUESTS):
                load.start(agent, longest(wave * REQUESTS + number, model), {"x-agent-id": agent})
            if wave + 1 < waves:
                wait_until(
                    lambda: load.over or any(used(fleet, each) for each in fleet.servers),
                    REQUEST_S,
                    what="a report knows of the wave",
                )
        calls = load.wait()
    fleet.small.wait_idle()
    return calls, fleet.small.metrics().value(PREEMPTIONS) - before


def used(fleet: Fleet, server: VllmServer) -> float:
    """The share of its KV cache that a server has reported."""
    return float(fleet.report(server).get("kv_cache_usage", 0))


def test_past_the_gateway_the_burst_makes_vllm_preempt(fleet: Fleet) -> None:
    calls, preemptions = burst(fleet, fleet.small.url, fleet.small.model, "any")
    assert {(call.status, call.tokens) for call in calls} == {(200, OUTPUT_TOKENS)}
    assert preemptions > 0


@pytest.fixture
def fresh(fleet: Fleet) -> Fleet:
    """The fleet behind a gateway that has just started: what it learnt of other requests does not matter."""
    fleet.restart_gateway()
    fleet.wait_rested()
    return fleet


def test_under_kv_pressure_whoever_may_wait_is_held_before_vllm_preempts(fresh: Fleet) -> None:
    # Three times: in the end it has learnt how long these are.
    for _ in range(3):
        calls, preemptions = burst(fresh, fresh.stack.endpoints.gateway, fresh.small.model, "patient", waves=2)
        assert {(call.status, call.error, call.tokens) for call in calls} == {(200, "", OUTPUT_TOKENS)}
        assert preemptions == 0


def test_under_kv_pressure_whoever_may_not_is_refused_before_vllm_preempts(fresh: Fleet) -> None:
    calls, preemptions = burst(fresh, fresh.stack.endpoints.gateway, fresh.small.model, "any", waves=2)
    served = [call for call in calls if call.status == 200]
    refused = [call for call in calls if call.status == 429]
    assert len(served) + len(refused) == len(calls)
    assert {(call.error, call.tokens) for call in served} == {("", OUTPUT_TOKENS)}
    assert {call.body["error"]["code"] for call in refused} == {"kv_memory"}
    assert all("would fit" in call.body["error"]["message"] for call in refused)
    assert preemptions == 0


def test_under_kv_pressure_requests_go_to_other_workers_before_vllm_preempts(fresh: Fleet) -> None:
    calls, preemptions = burst(fresh, fresh.stack.endpoints.gateway, MODEL, "patient", waves=2)
    assert {(call.status, call.error, call.tokens) for call in calls} == {(200, "", OUTPUT_TOKENS)}
    assert len({call.worker for call in calls}) > 1
    assert preemptions == 0
