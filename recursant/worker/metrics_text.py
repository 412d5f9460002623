"""What vLLM says of itself in Prometheus text, as numbers. Pure.

Metrics by vLLM's documentation ("Production Metrics"), under their current and their former names. Each sample
belongs to one engine of the server (label `engine`, with data parallelism there are several); all are put together.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from recursant.v1.worker_state_pb2 import EngineCounters, WorkerState

_MIB: Final = 1 << 20

_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
# The second until vLLM 0.9.
_KV_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_CACHE_CONFIG: Final = "vllm:cache_config_info"
_SLEEP_STATE: Final = "vllm:engine_sleep_state"
_GENERATED: Final = "vllm:generation_tokens_total"
_QUEUE_SUM: Final = "vllm:request_queue_time_seconds_sum"
_QUEUE_COUNT: Final = "vllm:request_queue_time_seconds_count"
_FINISHED: Final = "vllm:request_success_total"
# Of each request at its end, cached prompt tokens included.
_PROMPT_SUM: Final = "vllm:request_prompt_tokens_sum"
_PROMPT_COUNT: Final = "vllm:request_prompt_tokens_count"
_ANSWER_SUM: Final = "vllm:request_generation_tokens_sum"
# The second until vLLM 0.11; of one of them.
_GAP: Final = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
_PREFIX_QUERIES: Final = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_PREFIX_HITS: Final = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_PREEMPTIONS: Final = "vllm:num_preemptions_total"
_REJECTED: Final = "vllm:admission_rejections_total"
_STARTED: Final = "process_start_time_seconds"
_WANTED: Final = frozenset(
    (
        *(_RUNNING, _WAITING, *_KV_USAGE, _CACHE_CONFIG, _SLEEP_STATE),
        *(_GENERATED, _QUEUE_SUM, _QUEUE_COUNT, _FINISHED, _PROMPT_SUM, _PROMPT_COUNT, _ANSWER_SUM, _STARTED),
        *(f"{name}{part}" for name in _GAP for part in ("_sum", "_count")),
        *(_PROMPT_TOKENS, *_PREFIX_QUERIES, *_PREFIX_HITS, _PREEMPTIONS, _REJECTED),
    )
)

# https://github.com/prometheus/docs: name{label="value",...} value [timestamp]
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{(.*)\})?\s*([^\s{}]+)(?:\s+-?\d+)?\s*$")
_LABEL: Final = re.compile(r'([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One reading. None stands for "it does not say".

    Attributes:
        running: requests in the batch.
        waiting: requests in the queue.
        kv_cache_usage: share of the KV cache in use, 0..1.
        kv_blocks_total: blocks of the KV cache.
        kv_blocks_free: those not in use.
        kv_block_tokens: tokens in a block.
        prefix_caching: whether it is on.
        awake: it takes requests; False while it sleeps: then requests hang although it looks healthy.
        generated_tokens: counter.
        queue_seconds: counter: how long the requests that left the queue had waited, in all.
        queued_requests: counter: how many those were.
        failed_requests: counter: requests that ended in an error.
        finished_requests: counter: requests that have ended.
        finished_prompt_tokens: counter: the tokens of their prompts.
        finished_answer_tokens: counter: the tokens of their answers.
        started_at: when the server process started, by its clock, in seconds.
        kv_cache_tokens: tokens that the KV cache holds, where vLLM works that out itself.
        kv_bytes_per_token: of the KV cache.
        gap_seconds: counter: time between two tokens of a request, in all.
        gaps: counter: how many those were.
        prompt_tokens: counter: prompt tokens processed, cached ones included.
        prefix_queries: counter: prompt tokens looked up in the prefix cache.
        prefix_hits: counter: those that were found.
        preemptions: counter.
        rejected: counter: requests that a queue limit refused.
        finished: counters: requests that have ended, by vLLM's reason.
    """

    running: int
    waiting: int
    kv_cache_usage: float | None = None
    kv_blocks_total: int | None = None
    kv_blocks_free: int | None = None
    kv_block_tokens: int | None = None
    prefix_caching: bool | None = None
    awake: bool | None = None
    generated_tokens: float | None = None
    queue_seconds: float | None = None
    queued_requests: float | None = None
    failed_requests: float | None = None
    finished_requests: float | None = None
    finished_prompt_tokens: float | None = None
    finished_answer_tokens: float | None = None
    started_at: float | None = None
    kv_cache_tokens: int | None = None
    kv_bytes_per_token: int | None = None
    gap_seconds: float | None = None
    gaps: float | None = None
    prompt_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    rejected: float | None = None
    finished: Mapping[str, float] = field(default_factory=dict)

    def fill(self, state: WorkerState) -> None:
        """Write into `state` what one reading tells; rates need two."""
        state.running_requests = self.running
        state.waiting_requests = self.waiting
        if self.kv_cache_usage is not None:
            state.kv_cache_usage = self.kv_cache_usage
        if self.kv_blocks_total is not None:
            state.kv_blocks_total = self.kv_blocks_total
        if self.kv_blocks_free is not None:
            state.kv_blocks_free = self.kv_blocks_free
        if self.kv_block_tokens is not None:
            state.kv_block_tokens = self.kv_block_tokens
        if self.prefix_caching is not None:
            state.prefix_caching = self.prefix_caching
        if self.kv_bytes_per_token is not None:
            state.kv_bytes_per_token = self.kv_bytes_per_token
            if self.kv_blocks_free is not None and self.kv_block_tokens is not None:
                # Blocks need not lie together, so any request can have every free one (SPEC B4).
                state.free_vram_mb = self.kv_blocks_free * self.kv_block_tokens * self.kv_bytes_per_token // _MIB
        if self.kv_cache_tokens is not None and not state.HasField("capacity_tokens"):
            state.capacity_tokens = self.kv_cache_tokens
        if self.failed_requests is not None:
            state.errors.other = int(self.failed_requests)
            if self.failed_requests:
                state.errors.last = "a request ended in an error"
        if self.finished_requests is not None and self.finished_prompt_tokens is not None:
            state.finished_requests = int(self.finished_requests)
            state.finished_prompt_tokens = int(self.finished_prompt_tokens)
            if self.finished_answer_tokens is not None:
                state.finished_answer_tokens = int(self.finished_answer_tokens)
        self._fill_counters(state)

    def _fill_counters(self, state: WorkerState) -> None:
        if self.generated_tokens is None:
            return
        known = dict(self.finished)
        counters = EngineCounters(
            generated_tokens=int(self.generated_tokens),
            prompt_tokens=int(self.prompt_tokens or 0),
            preemptions=int(self.preemptions or 0),
            finished_stop=int(known.pop("stop", 0)),
            finished_length=int(known.pop("length", 0)),
            finished_abort=int(known.pop("abort", 0)),
            finished_error=int(known.pop("error", 0)),
            finished_other=int(sum(known.values())),
            rejected=int(self.rejected or 0),
        )
        if self.prefix_queries is not None and self.prefix_hits is not None:
            counters.prefix_queries = int(self.prefix_queries)
            counters.prefix_hits = int(self.prefix_hits)
        state.counters.CopyFrom(counters)


def parse_metrics(text: str) -> EngineMetrics:
    """Read the text of `/metrics`.

    Raises:
        ValueError: these are not the metrics of a vLLM.
    """
    found: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for name, labels, value in _samples(text):
        found[name].append((labels, value))
    if not found[_RUNNING] or not found[_WAITING]:
        raise ValueError(f"no {_RUNNING} and {_WAITING} among the metrics: this is not a vLLM")
    usage = {_engine(labels): min(value, 1.0) for name in _KV_USAGE for labels, value in found[name]}
    configs = {_engine(labels): labels for labels, _ in found[_CACHE_CONFIG]}
    blocks = {
        engine: count
        for engine, config in configs.items()
        if (count := _whole(config.get("num_gpu_blocks"))) is not None
    }
    if len(blocks) > 1 and len(set(blocks.values())) == 1:
        # vLLM states the blocks of all engines together, at each of them.
        blocks = {engine: count // len(blocks) for engine, count in blocks.items()}
    complete = bool(blocks) and blocks.keys() == usage.keys()
    config = next(iter(configs.values()), {})
    return EngineMetrics(
        running=int(sum(value for _, value in found[_RUNNING])),
        waiting=int(sum(value for _, value in found[_WAITING])),
        kv_cache_usage=_mean(usage, blocks if complete else dict.fromkeys(usage, 1)),
        kv_blocks_total=sum(blocks.values()) if blocks else None,
        kv_blocks_free=sum(int(blocks[engine] * (1 - usage[engine])) for engine in blocks) if complete else None,
        kv_block_tokens=_whole(config.get("block_size")),
        prefix_caching=_flag(config.get("enable_prefix_caching")),
        awake=_all_awake(found[_SLEEP_STATE]),
        generated_tokens=_total(found[_GENERATED]),
        queue_seconds=_total(found[_QUEUE_SUM]),
        queued_requests=_total(found[_QUEUE_COUNT]),
        failed_requests=_total([entry for entry in found[_FINISHED] if entry[0].get("finished_reason") == "error"]),
        finished_requests=_total(found[_PROMPT_COUNT]),
        finished_prompt_tokens=_total(found[_PROMPT_SUM]),
        finished_answer_tokens=_total(found[_ANSWER_SUM]),
        started_at=found[_STARTED][0][1] if found[_STARTED] else None,
        kv_cache_tokens=_sum_of(configs, "kv_cache_size_tokens"),
        kv_bytes_per_token=_bytes_per_token(config, max(1, len(configs))),
        gap_seconds=_total(found[f"{_GAP[0]}_sum"] or found[f"{_GAP[1]}_sum"]),
        gaps=_total(found[f"{_GAP[0]}_count"] or found[f"{_GAP[1]}_count"]),
        prompt_tokens=_total(found[_PROMPT_TOKENS]),
        # Some versions give both names: they are one counter.
        prefix_queries=_total(found[_PREFIX_QUERIES[0]] or found[_PREFIX_QUERIES[1]]),
        prefix_hits=_total(found[_PREFIX_HITS[0]] or found[_PREFIX_HITS[1]]),
        preemptions=_total(found[_PREEMPTIONS]),
        rejected=_total(found[_REJECTED]),
        finished=_by(found[_FINISHED], "finished_reason"),
    )


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """The samples of interest; a line that is none, or has no usable number, is passed over."""
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name not in _WANTED:
            continue
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        if math.isfinite(value) and value >= 0:
            yield match[1], dict(_LABEL.findall(match[2] or "")), value


def _sum_of(configs: dict[str, dict[str, str]], label: str) -> int | None:
    values = [_whole(config.get(label)) for config in configs.values()]
    return sum(value for value in values if value is not None) if values and None not in values else None


def _bytes_per_token(config: dict[str, str], engines: int) -> int | None:
    """What the cache takes for a token, of one whose size in bytes was given; the blocks must fill it."""
    size, blocks = _whole(config.get("kv_cache_memory_bytes")), _whole(config.get("num_gpu_blocks"))
    tokens = _whole(config.get("block_size"))
    if size is None or not blocks or not tokens or _whole(config.get("num_gpu_blocks_override")) is not None:
        return None
    return size * engines // (blocks * tokens) or None


def _by(samples: list[tuple[dict[str, str], float]], label: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for labels, value in samples:
        key = labels.get(label, "")
        sums[key] = sums.get(key, 0.0) + value
    return sums


def _engine(labels: dict[str, str]) -> str:
    return labels.get("engine", "0")


def _total(samples: list[tuple[dict[str, str], float]]) -> float | None:
    return sum(value for _, value in samples) if samples else None


def _mean(values: dict[str, float], weights: dict[str, int]) -> float | None:
    weight = sum(weights.values())
    return sum(values[key] * weights[key] for key in values) / weight if weight else None


def _all_awake(samples: list[tuple[dict[str, str], float]]) -> bool | None:
    awake = [value > 0 for labels, value in samples if labels.get("sleep_state") == "awake"]
    return all(awake) if awake else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _flag(text: str | None) -> bool | None:
    return {"true": True, "false": False}.get((text or "").lower())
