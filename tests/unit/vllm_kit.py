"""vLLM's stat objects and configuration as several of its versions shape them, and a stand-in for its package.

The attributes are those that were read in the installed vLLM 0.32 and in earlier releases' sources; vLLM itself is not
installed here.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

MODEL = "Qwen/Qwen2.5-7B-Instruct"


class FinishReason(IntEnum):
    """As vLLM has it: an integer whose text is the word."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    def __str__(self) -> str:
        return self.name.lower()


def finished(
    reason: Any = FinishReason.STOP, *, prompt: int = 10, queued: float = 0.0, request_id: str | None = None
) -> SimpleNamespace:
    """A FinishedRequestStats."""
    return SimpleNamespace(
        finish_reason=reason,
        request_id=request_id,
        num_prompt_tokens=prompt,
        num_generation_tokens=5,
        queued_time=queued,
        e2e_latency=1.0,
    )


def scheduler(
    running: int = 0,
    waiting: int = 0,
    *,
    deferred: int = 0,
    usage: float = 0.0,
    queries: int = 0,
    hits: int = 0,
    running_adapters: dict[str, int] | None = None,
    waiting_adapters: dict[str, int] | None = None,
) -> SimpleNamespace:
    """A SchedulerStats of vLLM 0.32."""
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_skipped_waiting_reqs=deferred,
        kv_cache_usage=usage,
        prefix_cache_stats=SimpleNamespace(requests=1, queries=queries, hits=hits),
        running_lora_adapters=running_adapters or {},
        waiting_lora_adapters=waiting_adapters or {},
    )


def iteration(
    *requests: SimpleNamespace,
    generated: int = 0,
    prompt: int = 0,
    preempted: int = 0,
    gaps: tuple[float, ...] = (),
) -> SimpleNamespace:
    """An IterationStats of vLLM 0.32."""
    return SimpleNamespace(
        num_generation_tokens=generated,
        num_prompt_tokens=prompt,
        prompt_token_stats=SimpleNamespace(total=prompt, computed=prompt, cached_tokens=0, local_cache_hit=0),
        num_preempted_reqs=preempted,
        finished_requests=list(requests),
        time_to_first_tokens_iter=[],
        inter_token_latencies_iter=list(gaps),
    )


class ModelConfig:
    """What is asked of a ModelConfig: a Qwen2.5-7B on two devices."""

    def __init__(self, **changes: Any) -> None:
        self.served_model_name: Any = MODEL
        self.model = "/models/qwen"
        self.max_model_len = 32_768
        self.dtype = "torch.bfloat16"
        self.use_mla = False
        self.is_hybrid = False
        self.is_attention_free = False
        self.__dict__.update(changes)

    def get_num_layers(self, parallel: Any) -> int:
        return 28 // int(parallel.pipeline_parallel_size)

    def get_num_kv_heads(self, parallel: Any) -> int:
        return max(1, 4 // int(parallel.tensor_parallel_size))

    def get_head_size(self) -> int:
        return 128


def vllm_config(*, model: Any = None, tensor: int = 1, pipeline: int = 1, **cache: Any) -> SimpleNamespace:
    """A VllmConfig of vLLM 0.32, as far as it is read."""
    return SimpleNamespace(
        model_config=model or ModelConfig(),
        cache_config=SimpleNamespace(
            **{
                "block_size": 16,
                "num_gpu_blocks": 1_000,
                "cache_dtype": "auto",
                "enable_prefix_caching": True,
                "kv_cache_size_tokens": 16_000,
            }
            | cache
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=256, max_num_batched_tokens=8_192, policy="priority"),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, _api_process_count=1
        ),
    )


class StatLoggerBase(ABC):
    @abstractmethod
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None: ...

    @abstractmethod
    def log_engine_initialized(self) -> None: ...

    def log(self) -> None:  # noqa: B027 - as vLLM has it
        pass

    def record_sleep_state(self, is_awake: int, level: int) -> None:  # noqa: B027 - as vLLM has it
        pass


class AggregateStatLoggerBase(StatLoggerBase):
    @abstractmethod
    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None: ...

    def record_admission_rejection(self, reason: str) -> None:
        pass


@contextmanager
def vllm_installed(version: str = "0.32.0") -> Iterator[None]:
    """Let `import vllm` find the stand-in, and our plugin be imported afresh with it."""
    ours = "recursant.worker.vllm_plugin.plugin"
    vllm, v1, metrics, loggers = (
        ModuleType(name) for name in ("vllm", "vllm.v1", "vllm.v1.metrics", "vllm.v1.metrics.loggers")
    )
    made: Any = {"__version__": version, "StatLoggerBase": StatLoggerBase}
    vllm.__dict__.update(made, v1=v1)
    v1.__dict__.update(metrics=metrics)
    metrics.__dict__.update(loggers=loggers)
    loggers.__dict__.update(StatLoggerBase=StatLoggerBase, AggregateStatLoggerBase=AggregateStatLoggerBase)
    modules = {module.__name__: module for module in (vllm, v1, metrics, loggers)}
    before = {name: sys.modules.get(name) for name in (*modules, ours)}
    sys.modules.update(modules)
    sys.modules.pop(ours, None)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
