"""vLLM 0.32's metrics, by its names and labels, from plain counters at the time of the scrape."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from recursant.sim.engine import Engine
from recursant.sim.stats import Histogram, ServingStats

# Of a worker without data parallelism.
_ENGINE: Final = "0"


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """What the metrics are about."""

    model: str
    engine: Engine
    stats: ServingStats
    lora_adapters: tuple[str, ...]
    started_at: float
    sleep_level: Callable[[], int]


class MetricsPage:
    """The exposition of one worker. Keeps no numbers of its own."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """None: saves the registry from collecting at registration."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Called by the registry at every scrape."""
        yield from self._gauges()
        yield from self._counters()
        yield from self._histograms()

    def _gauges(self) -> Iterable[Metric]:
        source, engine = self._source, self._source.engine
        stats = engine.stats()
        level = source.sleep_level()
        yield self._gauge("num_requests_running", "Number of requests in model execution batches.", stats.running)
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting)
        yield self._labelled(
            GaugeMetricFamily,
            "num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            "reason",
            {"capacity": stats.waiting, "deferred": 0},
        )
        yield self._labelled(
            GaugeMetricFamily,
            "engine_sleep_state",
            "Engine sleep state; awake = 1 means the engine is awake.",
            "sleep_state",
            {"awake": int(level == 0), "weights_offloaded": int(level == 1), "discard_all": int(level == 2)},
        )
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", stats.kv_usage)
        profile = engine.profile
        config = {
            "block_size": profile.block_tokens,
            "cache_dtype": "auto",
            "enable_prefix_caching": engine.prefix_caching,
            "engine": _ENGINE,
            "kv_cache_memory_bytes": profile.kv_blocks * profile.block_bytes,
            "kv_cache_size_tokens": profile.kv_tokens,
            "num_gpu_blocks": profile.kv_blocks,
            "prefix_caching_hash_algo": "sha256",
        }
        info = GaugeMetricFamily("vllm:cache_config_info", "The engine's cache configuration.", labels=tuple(config))
        info.add_metric([str(value) for value in config.values()], 1)
        yield info
        if source.lora_adapters:
            lora = GaugeMetricFamily(
                "vllm:lora_requests_info",
                "Running stats on lora requests.",
                labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
            )
            lora.add_metric([str(len(source.lora_adapters)), ",".join(source.lora_adapters), ""], source.started_at)
            yield lora

    def _counters(self) -> Iterable[Metric]:
        serving = self._source.stats
        stats = self._source.engine.stats()
        simple: tuple[tuple[str, str, float], ...] = (
            ("estimated_flops_per_gpu", "Estimated floating point operations per GPU.", serving.flops),
            ("estimated_read_bytes_per_gpu", "Estimated bytes read from memory per GPU.", serving.read_bytes),
            ("estimated_write_bytes_per_gpu", "Estimated bytes written to memory per GPU.", serving.write_bytes),
            ("prefix_cache_queries", "Prefix cache queries, in tokens.", stats.prefix_queries),
            ("prefix_cache_hits", "Prefix cache hits, in tokens.", stats.prefix_hits),
            ("external_prefix_cache_queries", "External prefix cache queries, in tokens.", 0),
            ("external_prefix_cache_hits", "External prefix cache hits, in tokens.", 0),
            ("mm_cache_queries", "Multi-modal cache queries, in items.", 0),
            ("mm_cache_hits", "Multi-modal cache hits, in items.", 0),
            ("num_preemptions", "Cumulative number of preemptions.", stats.preemptions),
            ("prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens),
            ("prompt_tokens_cached", "Number of cached prompt tokens.", stats.cached_tokens),
            ("generation_tokens", "Number of generation tokens processed.", stats.generated_tokens),
        )
        for name, text, value in simple:
            yield self._counter(name, text, value)
        computed = stats.prompt_tokens - stats.cached_tokens
        yield self._labelled(
            CounterMetricFamily,
            "prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            "source",
            {"local_compute": computed, "local_cache_hit": stats.cached_tokens, "external_kv_transfer": 0},
        )
        yield self._labelled(
            CounterMetricFamily,
            "prompt_tokens_cached_by_source",
            "Prefix-cache hit tokens by the cache tier that supplied them.",
            "source",
            {"device": stats.prefix_hits, "host": 0, "p2p": 0, "disk": 0, "external_unspecified": 0},
        )
        yield self._labelled(
            CounterMetricFamily,
            "request_success",
            "Count of successfully processed requests.",
            "finished_reason",
            serving.finished,
        )
        rejections = CounterMetricFamily(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            labels=("model_name", "reason"),
        )
        for reason, count in serving.rejected.items():
            rejections.add_metric([self._source.model, reason], count)
        yield rejections

    def _histograms(self) -> Iterable[Metric]:
        stats = self._source.stats
        named: tuple[tuple[str, str, Histogram], ...] = (
            ("request_prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens),
            ("request_generation_tokens", "Number of generation tokens processed.", stats.generation_tokens),
            ("iteration_tokens_total", "Number of tokens per engine_step.", stats.iteration_tokens),
            (
                "request_max_num_generation_tokens",
                "Maximum number of requested generation tokens.",
                stats.max_generation_tokens,
            ),
            ("request_params_n", "The n request parameter.", stats.params_n),
            ("request_params_max_tokens", "The max_tokens request parameter.", stats.params_max_tokens),
            ("time_to_first_token_seconds", "Time to first token in seconds.", stats.first_token),
            ("inter_token_latency_seconds", "Inter-token latency in seconds.", stats.inter_token),
            (
                "request_time_per_output_token_seconds",
                "Time per output token in seconds per request.",
                stats.per_output_token,
            ),
            ("e2e_request_latency_seconds", "End to end request latency in seconds.", stats.latency),
            ("request_queue_time_seconds", "Time spent in WAITING phase for request.", stats.queue_time),
            ("request_inference_time_seconds", "Time spent in RUNNING phase for request.", stats.inference_time),
            ("request_prefill_time_seconds", "Time spent in PREFILL phase for request.", stats.prefill_time),
            ("request_decode_time_seconds", "Time spent in DECODE phase for request.", stats.decode_time),
            ("request_num_preemptions", "Number of times a request was preempted.", stats.preemptions),
            (
                "request_prefill_kv_computed_tokens",
                "New KV tokens computed during prefill (excluding cached tokens).",
                stats.prefill_computed,
            ),
        )
        for name, text, histogram in named:
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=("engine", "model_name"))
            bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
            counts = accumulate(histogram.counts)
            family.add_metric([_ENGINE, self._source.model], list(zip(bounds, counts, strict=True)), histogram.total)
            yield family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=("engine", "model_name"))
        family.add_metric([_ENGINE, self._source.model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=("engine", "model_name"))
        family.add_metric([_ENGINE, self._source.model], value)
        return family

    def _labelled(self, kind: Any, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family: Metric = kind(f"vllm:{name}", text, labels=("engine", "model_name", label))
        for value, number in values.items():
            family.add_metric([_ENGINE, self._source.model, value], number)  # type: ignore[attr-defined]
        return family
