"""Workers' reports: one that every reader can use, or a ValueError; the same in both forms."""

import json
from typing import Final

from fuzz.targets import JSON_WORDS
from recursant.store.codec import MAX_STATE_BYTES, decode, encode, state_from_dict, state_to_dict
from recursant.v1.worker_state_pb2 import EngineErrors, LoadedModel, WorkerPhase, WorkerState


def check(data: bytes) -> None:
    """An even first byte: JSON follows, as over HTTP; an odd one: protobuf, as in Redis."""
    try:
        state = decode(data[1:]) if data[:1] and data[0] & 1 else state_from_dict(json.loads(data[1:]))
    except (ValueError, RecursionError):
        # The second comes of the JSON parser, which is not ours; who reads HTTP takes it for invalid JSON.
        return
    stored = encode(state)
    assert len(stored) <= MAX_STATE_BYTES
    assert decode(stored) == state
    if state.phase == WorkerPhase.WORKER_PHASE_STOPPED:
        # Of a farewell nothing is read but who it is of, so its facts may be anything; nobody shows them.
        return
    state.DiscardUnknownFields()
    told = json.dumps(state_to_dict(state), allow_nan=False)
    assert state_from_dict(json.loads(told)) == state


_STATE: Final = WorkerState(
    id="w1",
    address="10.0.0.7:8000",
    phase=WorkerPhase.WORKER_PHASE_READY,
    incarnation="a1",
    sequence=1,
    report_interval_ms=200,
    models=[LoadedModel(name="Qwen/Qwen2.5-7B-Instruct", family="qwen", vram_mb=15_000, max_model_len=32_768)],
    lora_adapters=["sql"],
    exclusive=True,
    running_requests=3,
    queue_wait_ms=1.5,
    kv_cache_usage=0.25,
    gpu_temperature_c=-4.0,
    errors=EngineErrors(cuda=1, last="CUDA error"),
)
_SHORT: Final = WorkerState(
    id="w1", phase=WorkerPhase.WORKER_PHASE_STOPPED, incarnation="a1", sequence=1, address="[::1]:80"
)
SEEDS: Final = (
    b"\1" + encode(_STATE),
    b"\1" + encode(_SHORT),
    b"\0" + json.dumps(state_to_dict(_STATE)).encode(),
    b"\0" + json.dumps(state_to_dict(_SHORT)).encode(),
    b'\0{"id": "w1", "sequence": 1e400, "phase": "ready", "token_rate": NaN}',
    b'\0{"id": "w1", "incarnation": "a1", "sequence": 1, "phase": "stopped", "token_rate": NaN}',
)
WORDS: Final = (*JSON_WORDS, *(b'"%s":' % field.name.encode() for field in WorkerState.DESCRIPTOR.fields))
