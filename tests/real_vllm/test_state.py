"""What the control plane knows of a worker is what the engine says of itself."""

import time
from typing import Any

import pytest
from fleet_rig import PRIORITY_SEQS, SMALL_KV_BLOCKS, Fleet
from harness import Metrics, wait_until
from load import Load
from vllm_rig import BLOCK_TOKENS, MAX_MODEL_LEN, MODEL, VllmServer, completion, token_prompt

# Share of the KV cache.
NEAR = 0.04
# Keys and values, two layers, two heads of 32 floats of four bytes.
KV_BYTES_PER_TOKEN = 2 * 2 * 2 * 32 * 4


def same_counters(fleet: Fleet, server: VllmServer) -> bool:
    """Are the counters that it reported those of its /metrics?"""
    said, metrics = fleet.report(server)["counters"], server.metrics()
    pairs = {
        "generated_tokens": metrics.value("vllm:generation_tokens_total"),
        "prompt_tokens": metrics.value("vllm:prompt_tokens_total"),
        "prefix_queries": metrics.value("vllm:prefix_cache_queries_total"),
        "prefix_hits": metrics.value("vllm:prefix_cache_hits_total"),
        "preemptions": metrics.value("vllm:num_preemptions_total"),
        "finished_length": metrics.value("vllm:request_success_total", finished_reason="length"),
        "finished_stop": metrics.value("vllm:request_success_total", finished_reason="stop"),
        "finished_error": metrics.value("vllm:request_success_total", finished_reason="error"),
    }
    return all(int(said.get(name, 0)) == value for name, value in pairs.items())


def test_the_plugin_reads_what_was_configured(fleet: Fleet) -> None:
    priority, small = fleet.report(fleet.priority), fleet.report(fleet.small)
    assert priority["models"][0]["name"] == MODEL
    assert priority["models"][0]["max_model_len"] == MAX_MODEL_LEN
    assert (priority["max_num_seqs"], priority["priority_scheduling"]) == (PRIORITY_SEQS, True)
    assert small["priority_scheduling"] is False
    assert (small["kv_blocks_total"], small["kv_block_tokens"]) == (SMALL_KV_BLOCKS, BLOCK_TOKENS)
    assert int(small["kv_bytes_per_token"]) == KV_BYTES_PER_TOKEN
    assert int(small["capacity_tokens"]) == SMALL_KV_BLOCKS * BLOCK_TOKENS
    assert small["engine"].startswith("vllm 0.32")


@pytest.mark.parametrize("name", ["priority", "small"])
def test_counters_are_exact_at_rest(fleet: Fleet, name: str) -> None:
    server: VllmServer = getattr(fleet, name)
    before = server.metrics().value("vllm:generation_tokens_total")
    for number in range(5):
        answer = server.client.post("/v1/completions", json=completion(f"Request {number}", max_tokens=7))
        assert answer.status_code == 200, answer.text
    server.wait_idle()
    # A probe may have generated, too.
    assert server.metrics().value("vllm:generation_tokens_total") >= before + 35
    wait_until(lambda: same_counters(fleet, server), what="the reported counters are those of /metrics")
    report = fleet.report(server)
    assert (report.get("running_requests", 0), report.get("waiting_requests", 0)) == (0, 0)
    assert report["kv_cache_usage"] == pytest.approx(server.metrics().value("vllm:kv_cache_usage_perc"), abs=1e-3)


@pytest.mark.parametrize("name", ["priority", "small", "lora"])
def test_state_follows_the_engine_under_load(fleet: Fleet, name: str) -> None:
    server: VllmServer = getattr(fleet, name)
    sequences = 4
    requests = 6 if server is fleet.priority else sequences
    with Load(server.url) as load:
        for number in range(requests):
            prompt = token_prompt(64, number)
            load.start("long", completion(prompt, max_tokens=450 if server is fleet.small else 1_900))
        wait_until(lambda: followed(fleet, server, (sequences, requests - sequences)), what="the counts are the same")
        assert near_now(fleet, server)
    server.wait_idle()
    wait_until(lambda: counts(fleet.report(server)) == (0, 0), what="the report is at rest")


def followed(fleet: Fleet, server: VllmServer, least: tuple[int, int]) -> bool:
    """Are the reported counts those of /metrics, and at least these? A probe of our own may wait, too."""
    metrics = server.metrics()
    running, waiting = metrics.value("vllm:num_requests_running"), metrics.value("vllm:num_requests_waiting")
    return counts(fleet.report(server)) == (running, waiting) and running >= least[0] and waiting >= least[1]


def counts(report: dict[str, Any]) -> tuple[int, int]:
    return report.get("running_requests", 0), report.get("waiting_requests", 0)


def near_now(fleet: Fleet, server: VllmServer) -> bool:
    """Is the reported use of the KV cache within a few per cent of what /metrics says around that time?"""
    usage = "vllm:kv_cache_usage_perc"
    seen: list[Metrics] = [server.metrics()]
    # Reports and scrapes are up to a second old.
    time.sleep(0.3)
    said = float(fleet.report(server)["kv_cache_usage"])
    seen.append(server.metrics())
    before, after = (metrics.value(usage) for metrics in seen)
    assert min(before, after) - NEAR <= said <= max(before, after) + NEAR, (before, said, after)
    return said > 0
