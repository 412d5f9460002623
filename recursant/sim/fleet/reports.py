"""What a simulated worker says of itself: the facts that stay."""

from typing import Final

from recursant.sim.fleet.spec import WorkerSpec
from recursant.sim.profiles import MIB
from recursant.v1.worker_state_pb2 import EngineErrors, LoadedModel, WorkerPhase, WorkerState

# Looked up once: protobuf finds enum values by name at every access.
_READY: Final = WorkerPhase.WORKER_PHASE_READY


def state_template(worker_id: str, address: str, spec: WorkerSpec, beat_s: float) -> WorkerState:
    """The part of a worker's reports that never changes."""
    profile = spec.profile
    claimed = spec.claims or profile
    return WorkerState(
        id=worker_id,
        address=address,
        phase=_READY,
        report_interval_ms=round(beat_s * 1_000),
        models=[
            LoadedModel(name=name, family=family, max_model_len=profile.max_model_len) for name, family in spec.models
        ],
        peak_token_rate=claimed.peak_token_rate,
        total_vram_mb=profile.total_vram_mb,
        kv_blocks_total=profile.kv_blocks,
        kv_block_tokens=profile.block_tokens,
        kv_bytes_per_token=profile.kv_bytes_per_token,
        bandwidth_total_mb_s=claimed.bandwidth_bytes_s / MIB,
        capacity_tokens=spec.declared_tokens,
        max_num_seqs=profile.max_num_seqs,
        max_num_batched_tokens=profile.max_num_batched_tokens,
        priority_scheduling=spec.priority_scheduling,
        prefix_caching=True,
        errors=EngineErrors(),
    )
