"""What a simulated worker reports about itself: the facts that a real vLLM with a GPU would know."""

from dataclasses import dataclass
from typing import Final

from recursant import __version__
from recursant.sim.engine import Engine
from recursant.sim.options import SimOptions
from recursant.sim.profiles import MIB
from recursant.sim.stats import ServingStats
from recursant.v1.worker_state_pb2 import EngineErrors, LoadedModel, WorkerPhase, WorkerState

ENGINE_NAME: Final = f"recursant-sim {__version__}"

# A device warms from idle to busy: typical of an air-cooled data-centre card.
IDLE_TEMPERATURE_C: Final = 35.0
BUSY_TEMPERATURE_C: Final = 72.0


@dataclass(slots=True)
class ErrorCounts:
    """Errors since the worker started. `last` is the newest one's text, never a prompt."""

    cuda: int = 0
    out_of_memory: int = 0
    other: int = 0
    last: str = ""


def worker_state(
    *,
    options: SimOptions,
    port: int,
    phase: WorkerPhase,
    engine: Engine,
    stats: ServingStats,
    errors: ErrorCounts,
    now: float,
) -> WorkerState:
    """The report at `now`, all but what the reporter adds: incarnation, sequence and interval."""
    profile = engine.profile
    numbers = engine.stats()
    state = WorkerState(
        id=options.id_at(port),
        address=options.address_at(port),
        phase=phase,
        models=[LoadedModel(name=name, max_model_len=profile.max_model_len) for name in options.models],
        lora_adapters=options.lora_adapters,
        exclusive=options.exclusive,
        running_requests=numbers.running,
        waiting_requests=numbers.waiting,
        waiting_tokens=numbers.uncomputed_tokens,
        token_rate=stats.recent_tokens.rate(now),
        peak_token_rate=profile.peak_token_rate * options.speed,
        finished_requests=stats.finished_requests,
        finished_prompt_tokens=int(stats.prompt_tokens.total),
        finished_answer_tokens=int(stats.generation_tokens.total),
        # Any free block can be had by any request: the KV cache does not fragment.
        free_vram_mb=numbers.blocks_free * profile.block_bytes // MIB,
        total_vram_mb=profile.total_vram_mb,
        kv_cache_usage=numbers.kv_usage,
        kv_blocks_total=numbers.blocks_total,
        kv_blocks_free=numbers.blocks_free,
        kv_block_tokens=profile.block_tokens,
        kv_bytes_per_token=profile.kv_bytes_per_token,
        # In the device's own time: a faster simulation does not make its memory faster.
        bandwidth_used_mb_s=min(stats.recent_bytes.rate(now) / options.speed, profile.bandwidth_bytes_s) / MIB,
        bandwidth_total_mb_s=profile.bandwidth_bytes_s / MIB,
        gpu_temperature_c=_temperature(stats.recent_busy_s.rate(now)),
        capacity_tokens=options.capacity_tokens or profile.kv_tokens,
        max_num_seqs=profile.max_num_seqs,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        priority_scheduling=options.scheduling_policy == "priority",
        prefix_caching=options.prefix_caching,
        errors=EngineErrors(cuda=errors.cuda, out_of_memory=errors.out_of_memory, other=errors.other, last=errors.last),
        engine=ENGINE_NAME,
    )
    if options.max_queue is not None:
        state.max_queue = options.max_queue
    wait = stats.queue_wait_ms(now)
    if wait is not None:
        state.queue_wait_ms = wait
    return state


def _temperature(busy: float) -> float:
    return IDLE_TEMPERATURE_C + (BUSY_TEMPERATURE_C - IDLE_TEMPERATURE_C) * min(1.0, busy)
