"""What vLLM says of itself in Prometheus text, as numbers. Pure.

Metrics by vLLM's documentation ("Production Metrics"), under their current and their former names. Each sample
belongs to one engine of the server (label `engine`, with data parallelism there are several); all are put together.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from recursant.v1.worker_state_pb2 import WorkerState

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
_STARTED: Final = "process_start_time_seconds"
_WANTED: Final = frozenset(
    (
        *(_RUNNING, _WAITING, *_KV_USAGE, _CACHE_CONFIG, _SLEEP_STATE),
        *(_GENERATED, _QUEUE_SUM, _QUEUE_COUNT, _FINISHED, _PROMPT_SUM, _PROMPT_COUNT, _STARTED),
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
        started_at: when the server process started, by its clock, in seconds.
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
    started_at: float | None = None

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
        if self.failed_requests is not None:
            state.errors.other = int(self.failed_requests)
        if self.finished_requests is not None and self.finished_prompt_tokens is not None:
            state.finished_requests = int(self.finished_requests)
            state.finished_prompt_tokens = int(self.finished_prompt_tokens)


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
        started_at=found[_STARTED][0][1] if found[_STARTED] else None,
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
