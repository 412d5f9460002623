"""What vLLM's stat objects say, added up. Pure; called on the engine's thread after every step, so it only counts.

vLLM calls these classes unstable, so every field is read as if it might be missing: what is not there is not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from recursant.names import PROBE_REQUEST_ID

# vLLM's FinishReason, by its own words; what is none of these counts as "other".
FINISH_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
OTHER: Final = "other"
# Adapters whose names are kept: those that run or wait now.
MAX_ADAPTERS: Final = 256


@dataclass(frozen=True, slots=True)
class Counts:
    """Everything at one moment, all engines of the server together. Counters count from its start.

    Attributes:
        running: requests in the batch.
        waiting: requests in the queue, those included that are put off for another reason than room.
        kv_cache_usage: share of the KV cache in use, 0..1; None before the first step.
        generated_tokens: counter.
        prompt_tokens: counter: prompt tokens processed, cached ones included.
        prefix_queries: counter: prompt tokens that were looked up in the prefix cache; None where it never said.
        prefix_hits: counter: those that were found.
        preemptions: counter.
        finished: counters of ended requests, by vLLM's reason.
        asked: counter: requests that have ended and were no probes of ours.
        asked_prompt_tokens: counter: the tokens of their prompts.
        asked_answer_tokens: counter: the tokens of their answers.
        queue_seconds: counter: how long all ended requests had waited in the queue, together.
        gap_seconds: counter: time between two tokens of a request, in all.
        gaps: counter: how many those were.
        rejected: counter: requests that a queue limit refused.
        asleep: it was put to sleep, and lets requests hang.
        adapters: LoRA adapters with a request in the engine.
    """

    running: int
    waiting: int
    kv_cache_usage: float | None
    generated_tokens: int
    prompt_tokens: int
    prefix_queries: int | None
    prefix_hits: int | None
    preemptions: int
    finished: dict[str, int]
    asked: int
    asked_prompt_tokens: int
    asked_answer_tokens: int
    queue_seconds: float
    gap_seconds: float
    gaps: int
    rejected: int
    asleep: bool
    adapters: tuple[str, ...]

    @property
    def finished_requests(self) -> int:
        """Counter: requests that have ended."""
        return sum(self.finished.values())


@dataclass(slots=True)
class _Engine:
    """One engine's newest figures."""

    running: int = 0
    waiting: int = 0
    kv_cache_usage: float | None = None
    adapters: tuple[str, ...] = ()


@dataclass(slots=True)
class Tally:
    """Counts on one thread; `counts` may be called on another: each figure is right, and at most a step apart."""

    _engines: dict[int, _Engine] = field(default_factory=dict)
    _generated: int = 0
    _prompt: int = 0
    _prefix_queries: int | None = None
    _prefix_hits: int | None = None
    _preemptions: int = 0
    _finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*FINISH_REASONS, OTHER), 0))
    _asked: int = 0
    _asked_prompt: int = 0
    _asked_answer: int = 0
    _queue_seconds: float = 0.0
    _gap_seconds: float = 0.0
    _gaps: int = 0
    _rejected: int = 0
    _asleep: bool = False

    def step(self, scheduler: Any, iteration: Any, engine: int = 0) -> None:
        """Take what vLLM hands over after a step: its SchedulerStats and IterationStats, either of them None."""
        if scheduler is not None:
            self._scheduled(scheduler, engine)
        if iteration is not None:
            self._iterated(iteration)

    def slept(self, *, asleep: bool) -> None:
        """The engine went to sleep, or woke up."""
        self._asleep = asleep

    def reject(self) -> None:
        """A queue limit refused a request."""
        self._rejected += 1

    def counts(self) -> Counts:
        """Everything now."""
        engines = list(self._engines.values())
        usages = [engine.kv_cache_usage for engine in engines if engine.kv_cache_usage is not None]
        adapters = sorted({name for engine in engines for name in engine.adapters})
        return Counts(
            running=sum(engine.running for engine in engines),
            waiting=sum(engine.waiting for engine in engines),
            # The engines of one server are alike, so each weighs the same.
            kv_cache_usage=sum(usages) / len(usages) if usages else None,
            generated_tokens=self._generated,
            prompt_tokens=self._prompt,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            preemptions=self._preemptions,
            finished=dict(self._finished),
            asked=self._asked,
            asked_prompt_tokens=self._asked_prompt,
            asked_answer_tokens=self._asked_answer,
            queue_seconds=self._queue_seconds,
            gap_seconds=self._gap_seconds,
            gaps=self._gaps,
            rejected=self._rejected,
            asleep=self._asleep,
            adapters=tuple(adapters[:MAX_ADAPTERS]),
        )

    # --- inside ---

    def _scheduled(self, stats: Any, engine: int) -> None:
        # vLLM since 0.12 counts those put off (a grammar, a KV transfer) apart.
        waiting = getattr(stats, "num_waiting_reqs", 0) + getattr(stats, "num_skipped_waiting_reqs", 0)
        usage = getattr(stats, "kv_cache_usage", None)
        if usage is None:
            # Until vLLM 0.9.
            usage = getattr(stats, "gpu_cache_usage", None)
        running_adapters = getattr(stats, "running_lora_adapters", None) or ()
        waiting_adapters = getattr(stats, "waiting_lora_adapters", None) or ()
        # Replaced whole, so that a reader never sees half of it.
        self._engines[engine] = _Engine(
            running=getattr(stats, "num_running_reqs", 0),
            waiting=waiting,
            kv_cache_usage=None if usage is None else min(max(float(usage), 0.0), 1.0),
            adapters=(*running_adapters, *waiting_adapters)[:MAX_ADAPTERS],
        )
        prefix = getattr(stats, "prefix_cache_stats", None)
        if prefix is not None:
            # Of this step alone.
            self._prefix_queries = (self._prefix_queries or 0) + getattr(prefix, "queries", 0)
            self._prefix_hits = (self._prefix_hits or 0) + getattr(prefix, "hits", 0)

    def _iterated(self, stats: Any) -> None:
        self._generated += getattr(stats, "num_generation_tokens", 0)
        self._prompt += getattr(stats, "num_prompt_tokens", 0)
        self._preemptions += getattr(stats, "num_preempted_reqs", 0)
        # The second until vLLM 0.11.
        former = getattr(stats, "time_per_output_tokens_iter", ())
        gaps: Sequence[float] = getattr(stats, "inter_token_latencies_iter", former)
        self._gap_seconds += sum(gaps)
        self._gaps += len(gaps)
        for request in getattr(stats, "finished_requests", ()):
            reason = str(getattr(request, "finish_reason", OTHER)).rpartition(".")[2].lower()
            self._finished[reason if reason in self._finished else OTHER] += 1
            self._queue_seconds += max(0.0, getattr(request, "queued_time", 0.0))
            # vLLM has its own words before and after the id that a request came with.
            if PROBE_REQUEST_ID not in (getattr(request, "request_id", None) or ""):
                self._asked += 1
                self._asked_prompt += getattr(request, "num_prompt_tokens", 0)
                self._asked_answer += getattr(request, "num_generation_tokens", 0)
