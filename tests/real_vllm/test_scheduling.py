"""Priority and KV pressure: what the gateway asks for, vLLM really does."""

import contextlib
from collections.abc import Callable, Iterator

from fleet_rig import PRIORITY_SEQS, Fleet
from harness import wait_until
from load import Call, Load
from vllm_rig import MODEL, completion, token_prompt

PREEMPTIONS = "vllm:num_preemptions_total"
# Six of them need twice what the small cache holds.
PROMPT_TOKENS = 600
OUTPUT_TOKENS = 300
REQUESTS = 6
# Of the small cache: what is left below the water-mark of 0.85 is less than the answer of such a request alone needs,
# whatever its prompt is taken for.
FILLED = 0.75


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
        send(load, "report", PRIORITY_SEQS, 1_500)
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


@contextlib.contextmanager
def filled(fleet: Fleet) -> Iterator[None]:
    """The small server with most of its KV cache in use, held there, and the fleet knows."""
    server = fleet.small
    with Load(server.url) as load:
        for number in range(2):
            load.start("fill", completion(token_prompt(1_000, number + 20), max_tokens=200))
        wait_until(lambda: all(call.first for call in load.calls), what="both run")
        with server.paused():
            wait_until(lambda: fleet.report(server)["kv_cache_usage"] > FILLED, what="the fleet knows of it")
            yield
        assert {(call.status, call.error, call.tokens) for call in load.wait()} == {(200, "", 200)}


def test_kv_pressure_is_refused(fleet: Fleet) -> None:
    with filled(fleet):
        answer = fleet.ask("/v1/completions", longest(40, fleet.small.model))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "kv_memory")
    assert "retry-after" in answer.headers


def test_kv_pressure_waits_where_the_policy_says_so(fleet: Fleet) -> None:
    with Load(fleet.stack.endpoints.gateway) as load:
        with filled(fleet):
            call = load.start("patient", longest(50, fleet.small.model), {"x-agent-id": "patient"})
            wait_until(held_one(fleet), what="it waits in the gateway")
            assert call.status == 0
        load.wait()
    assert (call.status, call.error, call.tokens) == (200, "", OUTPUT_TOKENS)


def held_one(fleet: Fleet) -> Callable[[], bool]:
    return lambda: fleet.stack.service_metrics("extproc").value("recursant_queue_depth") == 1


def test_kv_pressure_goes_to_other_workers(fleet: Fleet) -> None:
    with filled(fleet):
        calls, _ = burst(fleet, fleet.stack.endpoints.gateway, MODEL, "any")
    assert {(call.status, call.error, call.tokens) for call in calls} == {(200, "", OUTPUT_TOKENS)}
    assert "small-kv" not in {call.worker for call in calls}
