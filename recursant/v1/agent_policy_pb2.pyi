from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class AgentPolicy(_message.Message):
    __slots__ = ("agent_id", "model_family", "model", "allow_other_models", "priority", "priority_class", "allow_real_time", "min_vram_mb", "min_bandwidth_mb_s", "latency_sla_ms", "timeout_ms", "max_new_tokens", "context_length", "fallback_strategy", "retry_max", "retry_delay_ms", "batch_window_ms", "on_memory_pressure", "failure_mode", "inspect_body", "affinity", "workers", "version", "set_by", "set_at_ms", "deleted")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FAMILY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALLOW_OTHER_MODELS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_REAL_TIME_FIELD_NUMBER: _ClassVar[int]
    MIN_VRAM_MB_FIELD_NUMBER: _ClassVar[int]
    MIN_BANDWIDTH_MB_S_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SLA_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    BATCH_WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    ON_MEMORY_PRESSURE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_MODE_FIELD_NUMBER: _ClassVar[int]
    INSPECT_BODY_FIELD_NUMBER: _ClassVar[int]
    AFFINITY_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SET_BY_FIELD_NUMBER: _ClassVar[int]
    SET_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    model_family: str
    model: str
    allow_other_models: bool
    priority: int
    priority_class: str
    allow_real_time: bool
    min_vram_mb: int
    min_bandwidth_mb_s: int
    latency_sla_ms: int
    timeout_ms: int
    max_new_tokens: int
    context_length: int
    fallback_strategy: str
    retry_max: int
    retry_delay_ms: int
    batch_window_ms: int
    on_memory_pressure: str
    failure_mode: str
    inspect_body: str
    affinity: str
    workers: _containers.RepeatedScalarFieldContainer[str]
    version: str
    set_by: str
    set_at_ms: int
    deleted: bool
    def __init__(self, agent_id: _Optional[str] = ..., model_family: _Optional[str] = ..., model: _Optional[str] = ..., allow_other_models: bool = ..., priority: _Optional[int] = ..., priority_class: _Optional[str] = ..., allow_real_time: bool = ..., min_vram_mb: _Optional[int] = ..., min_bandwidth_mb_s: _Optional[int] = ..., latency_sla_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., context_length: _Optional[int] = ..., fallback_strategy: _Optional[str] = ..., retry_max: _Optional[int] = ..., retry_delay_ms: _Optional[int] = ..., batch_window_ms: _Optional[int] = ..., on_memory_pressure: _Optional[str] = ..., failure_mode: _Optional[str] = ..., inspect_body: _Optional[str] = ..., affinity: _Optional[str] = ..., workers: _Optional[_Iterable[str]] = ..., version: _Optional[str] = ..., set_by: _Optional[str] = ..., set_at_ms: _Optional[int] = ..., deleted: bool = ...) -> None: ...
