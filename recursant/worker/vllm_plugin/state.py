"""The report of a vLLM from inside: what it counts, what it declares, what its server answers. Pure."""

from dataclasses import dataclass
from typing import Final

from recursant.v1.worker_state_pb2 import EngineCounters, LoadedModel, WorkerPhase, WorkerState
from recursant.worker.gpu import GpuFacts
from recursant.worker.rates import CounterWindow, PeakRate
from recursant.worker.settings import WorkerSettings
from recursant.worker.vllm_plugin.counting import OTHER, Counts
from recursant.worker.vllm_plugin.declared import Declared

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Standing:
    """What is seen of the engine's HTTP server.

    Attributes:
        serving: it takes requests.
        deaths: counter: times that it said that its engine is dead.
        models: names of its model that it lists; None where it was not or cannot be asked.
        adapters: LoRA adapters that it lists; None likewise.
    """

    serving: bool
    deaths: int = 0
    models: tuple[str, ...] | None = None
    adapters: tuple[str, ...] | None = None


class StateBuilder:
    """Makes reports; keeps what the rates of the last ten seconds need.

    Args:
        settings: what the worker was told.
        engine: name and version, for people.
    """

    def __init__(self, settings: WorkerSettings, engine: str) -> None:
        self._settings = settings
        self._engine = engine
        self._tokens = CounterWindow()
        self._queue = CounterWindow()
        self._gaps = CounterWindow()
        self._peak = PeakRate()

    def build(
        self,
        *,
        address: str,
        counts: Counts,
        declared: Declared,
        standing: Standing,
        gpu: GpuFacts | None,
        now: float,
    ) -> WorkerState:
        """The report at `now`, in seconds of a monotonic clock, all but what the reporter adds."""
        settings = self._settings
        state = WorkerState(
            id=settings.worker_id,
            address=address,
            # Asleep, it looks healthy and lets requests hang.
            phase=WorkerPhase.WORKER_PHASE_READY
            if standing.serving and not counts.asleep
            else WorkerPhase.WORKER_PHASE_WARMING,
            exclusive=settings.exclusive,
            running_requests=counts.running,
            waiting_requests=counts.waiting,
            # For the lengths of requests, of which a probe says nothing.
            finished_requests=counts.asked,
            finished_prompt_tokens=counts.asked_prompt_tokens,
            finished_answer_tokens=counts.asked_answer_tokens,
            engine=self._engine,
        )
        # Its configuration has the first of several served names only.
        self._declare(state, declared, standing.models or declared.models)
        self._fill_cache(state, declared, counts)
        self._fill_rates(state, counts, now)
        state.lora_adapters.extend(counts.adapters if standing.adapters is None else standing.adapters)
        state.counters.CopyFrom(_counters(counts))
        # A request that ended in an error was answered so inside a stream of status 200, as likely as not.
        state.errors.other = counts.finished["error"] + standing.deaths
        if standing.deaths:
            state.errors.last = "the engine is dead, says its /health"
        elif counts.finished["error"]:
            state.errors.last = "a request ended in an error"
        if gpu is not None:
            gpu.fill(state)
        return state

    def _declare(self, state: WorkerState, declared: Declared, models: tuple[str, ...]) -> None:
        for name in models:
            model = LoadedModel(name=name, family=self._settings.family)
            if declared.max_model_len is not None:
                model.max_model_len = declared.max_model_len
            state.models.append(model)
        capacity = self._settings.capacity_tokens or declared.capacity_tokens
        if capacity is not None:
            state.capacity_tokens = capacity
        if self._settings.max_queue is not None:
            state.max_queue = self._settings.max_queue
        if declared.max_num_seqs is not None:
            state.max_num_seqs = declared.max_num_seqs
        if declared.max_num_batched_tokens is not None:
            state.max_num_batched_tokens = declared.max_num_batched_tokens
        if declared.priority_scheduling is not None:
            state.priority_scheduling = declared.priority_scheduling
        if declared.prefix_caching is not None:
            state.prefix_caching = declared.prefix_caching

    @staticmethod
    def _fill_cache(state: WorkerState, declared: Declared, counts: Counts) -> None:
        # Before its first step nothing is in it.
        usage = counts.kv_cache_usage or 0.0
        state.kv_cache_usage = usage
        if declared.kv_block_tokens is not None:
            state.kv_block_tokens = declared.kv_block_tokens
        if declared.kv_bytes_per_token is not None:
            state.kv_bytes_per_token = declared.kv_bytes_per_token
        if declared.kv_blocks_total is None:
            return
        free = int(declared.kv_blocks_total * (1 - usage))
        state.kv_blocks_total = declared.kv_blocks_total
        state.kv_blocks_free = free
        if declared.kv_block_tokens is not None and declared.kv_bytes_per_token is not None:
            # Blocks need not lie together, so any request can have every free one (SPEC B4).
            state.free_vram_mb = free * declared.kv_block_tokens * declared.kv_bytes_per_token // MIB

    def _fill_rates(self, state: WorkerState, counts: Counts, now: float) -> None:
        self._tokens.add(now, counts.generated_tokens)
        if (risen := self._tokens.risen()) is not None:
            state.token_rate = risen[1] / risen[0]
        gap_s: float | None = None
        self._gaps.add(now, counts.gap_seconds, counts.gaps)
        if (risen := self._gaps.risen()) is not None and risen[2] > 0:
            gap_s = risen[1] / risen[2]
        peak = self._peak.add(now, state.token_rate, gap_s)
        if peak is not None:
            state.peak_token_rate = peak
        self._queue.add(now, counts.queue_seconds, counts.finished_requests)
        if (risen := self._queue.risen()) is not None and risen[2] > 0:
            state.queue_wait_ms = risen[1] / risen[2] * 1_000


def _counters(counts: Counts) -> EngineCounters:
    finished = counts.finished
    counters = EngineCounters(
        generated_tokens=counts.generated_tokens,
        prompt_tokens=counts.prompt_tokens,
        preemptions=counts.preemptions,
        finished_stop=finished["stop"],
        finished_length=finished["length"],
        finished_abort=finished["abort"],
        finished_error=finished["error"],
        finished_other=finished["repetition"] + finished[OTHER],
        rejected=counts.rejected,
    )
    if counts.prefix_queries is not None and counts.prefix_hits is not None:
        counters.prefix_queries = counts.prefix_queries
        counters.prefix_hits = counts.prefix_hits
    return counters
