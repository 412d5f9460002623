"""vLLM's metrics, model list and counters as facts of a worker."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recursant.config.model import StaticWorker
from recursant.fleet.families import FamilyResolver
from recursant.v1.worker_state_pb2 import WorkerState
from recursant.worker.metrics_text import EngineMetrics, parse_metrics
from recursant.worker.model_list import ListedModel, declared_models, fill_models, parse_model_list
from recursant.worker.rates import PEAK_WINDOW_S, CounterWindow, PeakRate

# One engine, as vLLM 0.32 writes it; the lines between are what a real answer is full of.
CURRENT = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79595639878e+09
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 5.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 5.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="weights_offloaded"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:generation_tokens_total{engine="0",model_name="tiny"} 190.0
vllm:generation_tokens_created{engine="0",model_name="tiny"} 1.795956470578e+09
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 12.0
vllm:request_success_total{engine="0",finished_reason="error",model_name="tiny"} 2.0
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 4.0
vllm:request_queue_time_seconds_count{engine="0",model_name="tiny"} 4.0
vllm:request_queue_time_seconds_sum{engine="0",model_name="tiny"} 0.5
vllm:request_prompt_tokens_bucket{engine="0",le="1.0",model_name="tiny"} 0.0
vllm:request_prompt_tokens_count{engine="0",model_name="tiny"} 14.0
vllm:request_prompt_tokens_sum{engine="0",model_name="tiny"} 2800.0
vllm:request_generation_tokens_count{engine="0",model_name="tiny"} 14.0
vllm:request_generation_tokens_sum{engine="0",model_name="tiny"} 170.0
vllm:cache_config_info{block_size="128",enable_prefix_caching="True",engine="0",num_gpu_blocks="80"} 1.0
http_requests_total{handler="/v1/models",method="GET",status="2xx"} 1.0
"""


def test_reads_the_current_names() -> None:
    assert parse_metrics(CURRENT) == EngineMetrics(
        running=3,
        waiting=5,
        kv_cache_usage=0.25,
        kv_blocks_total=80,
        kv_blocks_free=60,
        kv_block_tokens=128,
        prefix_caching=True,
        awake=True,
        generated_tokens=190.0,
        queue_seconds=0.5,
        queued_requests=4.0,
        failed_requests=2.0,
        finished_requests=14.0,
        finished_prompt_tokens=2800.0,
        finished_answer_tokens=170.0,
        started_at=1.79595639878e9,
        finished={"stop": 12.0, "error": 2.0},
    )


def test_reads_what_a_real_vllm_says_of_its_cache_and_of_its_requests() -> None:
    # From the metrics of a vLLM 0.32 on a CPU with VLLM_CPU_KVCACHE_SPACE=1.
    text = (
        CURRENT.replace('num_gpu_blocks="80"', 'num_gpu_blocks="32768",num_gpu_blocks_override="None"').replace(
            'enable_prefix_caching="True"',
            'enable_prefix_caching="True",kv_cache_memory_bytes="1073741824",kv_cache_size_tokens="4194304"',
        )
        + """\
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 26.0
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 26.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 10.0
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="tiny"} 10.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 3.0
vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 1.0
vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_tokens"} 2.0
"""
    )
    state = WorkerState()
    parse_metrics(text).fill(state)
    # Two layers of two heads of 16 elements, keys and values, two bytes each.
    assert state.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert state.capacity_tokens == 4_194_304
    assert state.free_vram_mb == 0.75 * 1_024
    counters = state.counters
    assert (counters.prompt_tokens, counters.prefix_queries, counters.prefix_hits) == (26, 26, 10)
    assert (counters.preemptions, counters.rejected, counters.generated_tokens) == (3, 3, 190)
    assert (counters.finished_stop, counters.finished_error, counters.finished_other) == (12, 2, 0)


def test_a_cache_whose_blocks_were_given_by_hand_does_not_tell_what_a_token_takes() -> None:
    text = CURRENT.replace(
        'num_gpu_blocks="80"', 'num_gpu_blocks="80",num_gpu_blocks_override="80",kv_cache_memory_bytes="1073741824"'
    )
    assert parse_metrics(text).kv_bytes_per_token is None


def test_reads_the_former_names() -> None:
    old = """\
vllm:num_requests_running{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="1000"} 1.0
"""
    assert parse_metrics(old) == EngineMetrics(
        running=1,
        waiting=0,
        kv_cache_usage=0.5,
        kv_blocks_total=1_000,
        kv_blocks_free=500,
        kv_block_tokens=16,
        prefix_caching=False,
    )


def test_puts_the_engines_together() -> None:
    two = """\
vllm:num_requests_running{engine="0"} 1
vllm:num_requests_running{engine="1"} 2
vllm:num_requests_waiting{engine="0"} 3
vllm:num_requests_waiting{engine="1"} 4
vllm:kv_cache_usage_perc{engine="0"} 1.0
vllm:kv_cache_usage_perc{engine="1"} 0.0
vllm:cache_config_info{engine="0",num_gpu_blocks="300",block_size="16"} 1.0
vllm:cache_config_info{engine="1",num_gpu_blocks="100",block_size="16"} 1.0
vllm:generation_tokens_total{engine="0"} 10
vllm:generation_tokens_total{engine="1"} 20
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="1",sleep_state="awake"} 0.0
"""
    metrics = parse_metrics(two)
    assert (metrics.running, metrics.waiting) == (3, 7)
    assert metrics.kv_cache_usage == 0.75  # by blocks, not by engines
    assert (metrics.kv_blocks_total, metrics.kv_blocks_free) == (400, 100)
    assert metrics.generated_tokens == 30
    assert metrics.awake is False  # requests to the sleeping one would hang


def test_engines_that_state_their_blocks_together_are_not_counted_twice() -> None:
    # With data parallelism vLLM 0.32 writes the sum at every engine (seen in its source).
    two = """\
vllm:num_requests_running{engine="0"} 1
vllm:num_requests_running{engine="1"} 2
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.0
vllm:cache_config_info{engine="0",num_gpu_blocks="400",block_size="16",kv_cache_size_tokens="3200"} 1.0
vllm:cache_config_info{engine="1",num_gpu_blocks="400",block_size="16",kv_cache_size_tokens="3200"} 1.0
"""
    metrics = parse_metrics(two)
    assert (metrics.kv_blocks_total, metrics.kv_blocks_free) == (400, 300)
    assert metrics.kv_cache_tokens == 6_400


def test_without_block_counts_engines_count_alike() -> None:
    text = """\
vllm:num_requests_running{engine="0"} 1
vllm:num_requests_waiting{engine="0"} 0
vllm:kv_cache_usage_perc{engine="0"} 0.75
vllm:kv_cache_usage_perc{engine="1"} 0.25
vllm:cache_config_info{engine="0",num_gpu_blocks="None"} 1.0
"""
    metrics = parse_metrics(text)
    assert metrics.kv_cache_usage == 0.5
    assert metrics.kv_blocks_total is None
    assert metrics.kv_blocks_free is None


def test_what_is_not_said_is_unknown() -> None:
    metrics = parse_metrics("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")
    assert metrics == EngineMetrics(running=0, waiting=0)
    state = WorkerState()
    metrics.fill(state)
    assert [field.name for field, _ in state.ListFields()] == []
    assert not state.HasField("kv_cache_usage")


def test_fills_a_state() -> None:
    state = WorkerState()
    parse_metrics(CURRENT).fill(state)
    assert (state.running_requests, state.waiting_requests) == (3, 5)
    assert state.kv_cache_usage == 0.25
    assert (state.kv_blocks_total, state.kv_blocks_free, state.kv_block_tokens) == (80, 60, 128)
    assert state.prefix_caching
    assert state.errors.other == 2
    # Metrics tell no memory and no rate: absent, not zero.
    for field in ("free_vram_mb", "total_vram_mb", "gpu_temperature_c", "token_rate", "priority_scheduling"):
        assert not state.HasField(field)


@pytest.mark.parametrize("text", ["", "hello", "<html></html>", "vllm:num_requests_running 1\n", "node_load1 0.2\n"])
def test_refuses_what_is_no_vllm(text: str) -> None:
    with pytest.raises(ValueError, match="not a vLLM"):
        parse_metrics(text)


@pytest.mark.parametrize(
    ("line", "usage"),
    [
        ('vllm:kv_cache_usage_perc{model_name="a } b \\" c",engine="0"} 0.5', 0.5),
        ("vllm:kv_cache_usage_perc{} 5e-1 1700000000000", 0.5),
        ("vllm:kv_cache_usage_perc\t0.5", None),  # not what any client library writes
        ("vllm:kv_cache_usage_perc NaN", None),
        ("vllm:kv_cache_usage_perc +Inf", None),
        ("vllm:kv_cache_usage_perc -1", None),
        ("vllm:kv_cache_usage_perc half", None),
        ("vllm:kv_cache_usage_perc{", None),
        ("vllm:kv_cache_usage_perc 1.0000001", 1.0),
    ],
)
def test_lines_in_every_form(line: str, usage: float | None) -> None:
    text = f"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n{line}\n"
    assert parse_metrics(text).kv_cache_usage == usage


@given(st.lists(st.sampled_from(CURRENT.splitlines()) | st.text(max_size=40)))
def test_any_text_is_metrics_or_a_value_error(lines: list[str]) -> None:
    try:
        metrics = parse_metrics("\n".join(lines))
    except ValueError:
        return
    metrics.fill(WorkerState())


@pytest.mark.parametrize(
    "line", ["vllm:num_requests_running 1e30", 'vllm:cache_config_info{block_size="99999999999"} 1']
)
def test_numbers_that_no_engine_has_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        parse_metrics(f"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n{line}\n").fill(WorkerState())


# --- rates ---


def test_a_rate_needs_two_readings() -> None:
    window = CounterWindow()
    assert window.risen() is None
    window.add(0.0, 100.0)
    assert window.risen() is None
    window.add(0.0, 100.0)
    assert window.risen() is None
    window.add(2.0, 150.0)
    assert window.risen() == (2.0, 50.0)


def test_a_rate_is_that_of_the_last_ten_seconds() -> None:
    window = CounterWindow()
    for second in range(31):
        window.add(float(second), 0.0 if second < 15 else 1_000.0 * (second - 15), float(second))
    assert window.risen() == (10.0, 10_000.0, 10.0)


def test_a_counter_that_fell_starts_afresh() -> None:
    window = CounterWindow()
    window.add(0.0, 100.0, 5.0)
    window.add(1.0, 200.0, 6.0)
    window.add(2.0, 10.0, 7.0)
    assert window.risen() is None
    window.add(3.0, 30.0, 8.0)
    assert window.risen() == (1.0, 20.0, 1.0)


# --- models ---


def test_reads_the_model_list() -> None:
    body = {
        "object": "list",
        "data": [
            {"id": "Qwen/Qwen2.5-7B", "object": "model", "root": "/models/qwen", "parent": None, "max_model_len": 2048},
            {
                "id": "sql",
                "object": "model",
                "root": "/adapters/sql",
                "parent": "Qwen/Qwen2.5-7B",
                "max_model_len": None,
            },
            {"id": "other"},
        ],
    }
    assert parse_model_list(body) == [
        ListedModel("Qwen/Qwen2.5-7B", max_model_len=2048),
        ListedModel("sql", adapter=True),
        ListedModel("other"),
    ]


@pytest.mark.parametrize(
    "body", [None, [], {}, {"data": {}}, {"data": ["qwen"]}, {"data": [{"id": 7}]}, {"data": [{}]}]
)
def test_refuses_what_is_no_model_list(body: object) -> None:
    with pytest.raises(ValueError, match="/v1/models"):
        parse_model_list(body)


@pytest.mark.parametrize(
    ("declared", "listed", "family"),
    [
        ([], "Qwen/Qwen2.5-7B", "qwen"),  # by its own name
        ([], "tiny", ""),
        (["qwen"], "tiny", "qwen"),  # the operators named one family, and this is it
        (["Qwen/Qwen2.5-7B"], "tiny", "qwen"),
        (["qwen", "phi"], "tiny", ""),  # which one?
        ([{"name": "tiny", "family": "phi"}, "qwen"], "tiny", "phi"),
        (["qwen"], "microsoft/phi-4", "phi"),  # what it says itself comes first
        ([{"name": "a", "family": "mine"}], "b", "mine"),
    ],
)
def test_families_of_discovered_models(declared: list[Any], listed: str, family: str) -> None:
    worker = StaticWorker.model_validate({"host": "node", "models": declared})
    state = WorkerState()
    fill_models(state, [ListedModel(listed, max_model_len=9)], worker, FamilyResolver((), ("qwen", "phi")))
    assert [(model.name, model.family, model.max_model_len) for model in state.models] == [(listed, family, 9)]


def test_adapters_are_no_models() -> None:
    worker = StaticWorker(host="node")
    state = WorkerState()
    # A name with a comma cannot be reported, and keeps nothing else from it.
    listed = [ListedModel("base"), ListedModel("sql", adapter=True), ListedModel("a,b", adapter=True)]
    fill_models(state, listed, worker, FamilyResolver((), ()))
    assert [model.name for model in state.models] == ["base"]
    assert list(state.lora_adapters) == ["sql"]
    assert not state.models[0].HasField("max_model_len")


def test_declared_models_stand_in() -> None:
    worker = StaticWorker.model_validate({"host": "node", "models": ["qwen", {"name": "tiny", "family": "phi"}]})
    assert declared_models(worker) == [ListedModel("qwen"), ListedModel("tiny")]


def test_the_peak_is_the_best_of_the_last_minutes() -> None:
    peak = PeakRate()
    assert peak.add(1_000.0, None, None) is None
    assert peak.add(1_000.0, 0.0, None) is None
    # Thirty tokens a second altogether; each request a token every 20 ms.
    assert peak.add(1_001.0, 30.0, 0.02) == 50.0
    assert peak.add(1_002.0, 400.0, 0.1) == 400.0
    # It is remembered for a while, and no longer.
    assert peak.add(1_000.0 + PEAK_WINDOW_S / 2, 10.0, None) == 400.0
    assert peak.add(1_002.0 + PEAK_WINDOW_S, 10.0, None) == 10.0
    assert peak.add(1_002.0 + 3 * PEAK_WINDOW_S, None, None) is None


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_reads_the_time_between_tokens_under_both_names(name: str) -> None:
    text = (
        CURRENT
        + f"""\
vllm:{name}_bucket{{engine="0",le="0.1",model_name="tiny"}} 7.0
vllm:{name}_sum{{engine="0",model_name="tiny"}} 0.7
vllm:{name}_count{{engine="0",model_name="tiny"}} 14.0
"""
    )
    metrics = parse_metrics(text)
    assert (metrics.gap_seconds, metrics.gaps) == (0.7, 14.0)
