"""Priority and KV pressure: what the gateway asks for, vLLM really does."""

from collections.abc import Sequence

import pytest
from both import Ends, Engine
from fleet_rig import PRIORITY_SEQS, Fleet
from load import Call, Load
from vllm_rig import MODEL, REQUEST_S, VllmServer, completion, token_prompt, wait_until

PREEMPTIONS = "vllm:num_preemptions_total"
# Six of them need twice what the small cache holds; two are what the water-mark lets in.
PROMPT_TOKENS = 600
OUTPUT_TOKENS = 300
REQUESTS = 6
# Looks may come late on a busy machine, and show too little.
ATTEMPTS = 5
# Before any priority that the gateway gives.
FIRST = -100


def longest(number: int, model: str) -> dict[str, object]:
    return {**completion(token_prompt(PROMPT_TOKENS, number), max_tokens=OUTPUT_TOKENS), "model": model}


def test_urgent_requests_overtake_within_vllm(fleet: Fleet) -> None:
    for _ in range(ATTEMPTS):
        seen = urgent_after_reports(fleet)
        # Those that came last are served first: while one of them is left, no report has ended.
        assert all(not reports or urgent == 4 for reports, urgent in seen), seen
        if set(seen) - {(0, 0), (4, 4)}:
            return
        # Whoever looks may stand still for two seconds, while the engine does not.
        fleet.wait_rested()
    pytest.fail("too little was seen")


def urgent_after_reports(fleet: Fleet) -> Sequence[tuple[int, ...]]:
    """Send four reports, then four urgent requests, to a full engine. Gives how many had ended at each look."""
    server = fleet.priority
    ends = Ends(Engine("vllm", server.url), 50, 100, 200)
    here = server.load()
    with Load(server.url) as taken, Load(fleet.stack.endpoints.gateway) as load:

        def come() -> bool:
            return server.load() - here >= len(taken.calls) + len(load.calls)

        # Held, so that all are there before one of them ends.
        with server.stopped():
            # They take all places, whoever comes: one is free soon, the others are not until all is over.
            for number, tokens in enumerate((600, *[1_900] * (PRIORITY_SEQS - 1))):
                body = completion(token_prompt(8, number), max_tokens=tokens, priority=FIRST, stream=False)
                taken.start("taken", body)
            wait_until(come, what="all places are taken")
            for agent, tokens in (("report", 90), ("urgent", 190)):
                for number in range(4):
                    body = completion(f"{agent} {number}", max_tokens=tokens, stream=False, model=server.model)
                    load.start(agent, body, {"x-agent-id": agent})
                wait_until(come, what=f"the {agent} requests have come")
        seen = ends.watch(server.stopped, 8)
        calls = load.wait()
    assert {(call.status, call.error, call.worker) for call in calls} == {(200, "", server.name)}
    return seen


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


def whole(call: Call) -> bool:
    """Has it all of its answer?"""
    return (call.status, call.error, call.tokens) == (200, "", OUTPUT_TOKENS)


def used(fleet: Fleet, server: VllmServer) -> float:
    """The share of its KV cache that a server has reported."""
    return float(fleet.report(server).get("kv_cache_usage", 0))


def test_past_the_gateway_the_burst_makes_vllm_preempt(fleet: Fleet) -> None:
    calls, preemptions = burst(fleet, fleet.small.url, fleet.small.model, "any")
    assert not [call for call in calls if not whole(call)]
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
        assert not [call for call in calls if not whole(call)]
        assert preemptions == 0


def test_under_kv_pressure_whoever_may_not_is_refused_before_vllm_preempts(fresh: Fleet) -> None:
    calls, preemptions = burst(fresh, fresh.stack.endpoints.gateway, fresh.small.model, "any", waves=2)
    served = [call for call in calls if call.status == 200]
    refused = [call for call in calls if call.status == 429]
    assert not [call for call in calls if call.status not in {200, 429}]
    assert not [call for call in served if not whole(call)]
    assert {call.body["error"]["code"] for call in refused} == {"kv_memory"}
    assert all("would fit" in call.body["error"]["message"] for call in refused)
    assert preemptions == 0


def test_under_kv_pressure_requests_go_to_other_workers_before_vllm_preempts(fresh: Fleet) -> None:
    calls, preemptions = burst(fresh, fresh.stack.endpoints.gateway, MODEL, "patient", waves=2)
    assert not [call for call in calls if not whole(call)]
    assert len({call.worker for call in calls}) > 1
    assert preemptions == 0
