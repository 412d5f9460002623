"""What the control plane knows of a worker is what the engine says of itself."""

import pytest
from fleet_rig import PRIORITY_SEQS, SMALL_KV_BLOCKS, Fleet
from load import Load
from vllm_rig import BLOCK_TOKENS, MAX_MODEL_LEN, MODEL, VllmServer, completion, token_prompt, wait_until

from recursant.names import PROBE_REQUEST_ID, REQUEST_ID

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
    assert [model["name"] for model in priority["models"]] == [MODEL, fleet.priority.model]
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


def test_probes_do_not_count_among_the_requests_whose_lengths_are_learnt(fleet: Fleet) -> None:
    server = fleet.small
    before = fleet.report(server)
    for request_id, tokens in ((f"{PROBE_REQUEST_ID}-1", 7), ("any-1", 9)):
        headers = {REQUEST_ID: request_id}
        answer = server.client.post("/v1/completions", json=completion(max_tokens=tokens), headers=headers)
        assert answer.status_code == 200, answer.text
    server.wait_idle()
    wait_until(lambda: same_counters(fleet, server), what="the reported counters are those of /metrics")
    after = fleet.report(server)
    names = ("finished_requests", "finished_answer_tokens")
    assert [int(after[name]) - int(before[name]) for name in names] == [1, 9]


@pytest.mark.parametrize("name", ["priority", "small", "lora"])
def test_state_follows_the_engine_under_load(fleet: Fleet, name: str) -> None:
    server: VllmServer = getattr(fleet, name)
    # Of `priority` more than run at once.
    sequences, running, tokens = {
        fleet.priority: (PRIORITY_SEQS + 2, PRIORITY_SEQS, 1_900),
        fleet.small: (2, 2, 1_100),
        fleet.lora: (6, 6, 1_900),
    }[server]
    here = server.load()
    with Load(server.url) as load:
        # Held, so that none of them ends before all are there.
        with server.stopped() as engine:
            for number in range(sequences):
                body = completion(token_prompt(64, number), max_tokens=tokens, stream=False)
                load.start("long", body)
            wait_until(lambda: server.load() - here >= sequences, what="all have come")
            # A probe may wait with them.
            engine.run_until(
                lambda: figures_now(server)[0] == running and figures_now(server)[1] >= sequences - running,
                what="as many run as can",
            )
        # Whoever is asked first and last sees the same; a scrape from outside wants a word of the engine, too.
        with server.paused():
            wait_until(lambda: figures_now(server) == reported(fleet, server), what="the report is the engine's state")
            said = reported(fleet, server)
        assert said[0] == running
        assert said[1] >= sequences - running
        assert said[2] > 0
    server.wait_idle()
    wait_until(lambda: reported(fleet, server) == (0, 0, 0), what="the report is at rest")


Figures = tuple[float, float, float]


def figures_now(server: VllmServer) -> Figures:
    """Running, waiting, and use of the KV cache in per cent, by /metrics."""
    metrics = server.metrics()
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    running, waiting, usage = (metrics.value(f"vllm:{name}") for name in names)
    return running, waiting, round(100 * usage)


def reported(fleet: Fleet, server: VllmServer) -> Figures:
    """The same as the fleet knows them."""
    report = fleet.report(server)
    usage = round(100 * float(report.get("kv_cache_usage", 0)))
    return report.get("running_requests", 0), report.get("waiting_requests", 0), usage
