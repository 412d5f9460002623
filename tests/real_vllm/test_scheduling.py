"""Priority and KV pressure: what the gateway asks for, vLLM really does."""

from fleet_rig import PRIORITY_SEQS, Fleet
from harness import wait_until
from load import Call, Load
from vllm_rig import MODEL, completion, token_prompt

PREEMPTIONS = "vllm:num_preemptions_total"
# Six of them need twice what the small cache holds.
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
        # Held between two steps, so that all others are there before one of these ends.
        with server.paused():
            send(load, "report", 4, 40)
            wait_until(lambda: in_flight(PRIORITY_SEQS + 4), what="four more reports have come")
            send(load, "urgent", 4, 40)
            wait_until(lambda: in_flight(PRIORITY_SEQS + 8), what="four urgent requests have come after them")
        calls = load.wait()
    assert {(call.status, call.error) for call in calls} == {(200, "")}
    late_reports = [call.first for call in calls if call.label == "report"][PRIORITY_SEQS:]
    assert max(call.first for call in calls if call.label == "urgent") < min(late_reports)


def burst(fleet: Fleet, url: str, model: str, agent: str) -> tuple[list[Call], float]:
    """The calls of a burst, and how often the small server preempted meanwhile."""
    before = fleet.small.metrics().value(PREEMPTIONS)
    with Load(url) as load:
        for number in range(REQUESTS):
            load.start(agent, longest(number, model), {"x-agent-id": agent})
        calls = load.wait()
    return calls, fleet.small.metrics().value(PREEMPTIONS) - before


def test_past_the_gateway_the_burst_makes_vllm_preempt(fleet: Fleet) -> None:
    calls, preemptions = burst(fleet, fleet.small.url, fleet.small.model, "any")
    assert {(call.status, call.tokens) for call in calls} == {(200, OUTPUT_TOKENS)}
    assert preemptions > 0


def test_kv_pressure_is_spread_over_workers(fleet: Fleet) -> None:
    calls, _ = burst(fleet, fleet.stack.endpoints.gateway, MODEL, "any")
    assert {(call.status, call.error, call.tokens) for call in calls} == {(200, "", OUTPUT_TOKENS)}
    assert len({call.worker for call in calls}) > 1
