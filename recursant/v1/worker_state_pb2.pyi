from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_PHASE_UNSPECIFIED: _ClassVar[WorkerPhase]
    WORKER_PHASE_WARMING: _ClassVar[WorkerPhase]
    WORKER_PHASE_READY: _ClassVar[WorkerPhase]
    WORKER_PHASE_DRAINING: _ClassVar[WorkerPhase]
    WORKER_PHASE_ISOLATED: _ClassVar[WorkerPhase]
    WORKER_PHASE_STOPPED: _ClassVar[WorkerPhase]
    WORKER_PHASE_UNREACHABLE: _ClassVar[WorkerPhase]
WORKER_PHASE_UNSPECIFIED: WorkerPhase
WORKER_PHASE_WARMING: WorkerPhase
WORKER_PHASE_READY: WorkerPhase
WORKER_PHASE_DRAINING: WorkerPhase
WORKER_PHASE_ISOLATED: WorkerPhase
WORKER_PHASE_STOPPED: WorkerPhase
WORKER_PHASE_UNREACHABLE: WorkerPhase

class WorkerState(_message.Message):
    __slots__ = ("id", "address", "phase", "incarnation", "sequence", "report_interval_ms", "models", "lora_adapters", "exclusive", "scraped", "running_requests", "waiting_requests", "waiting_tokens", "queue_wait_ms", "token_rate", "peak_token_rate", "finished_requests", "finished_prompt_tokens", "finished_answer_tokens", "free_vram_mb", "total_vram_mb", "kv_cache_usage", "kv_blocks_total", "kv_blocks_free", "kv_block_tokens", "kv_bytes_per_token", "bandwidth_used_mb_s", "bandwidth_total_mb_s", "gpu_temperature_c", "gpu_ecc_errors", "gpu_xid_errors", "capacity_tokens", "max_queue", "max_num_seqs", "max_num_batched_tokens", "priority_scheduling", "prefix_caching", "errors", "engine", "counters")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REPORT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LORA_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    SCRAPED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_RATE_FIELD_NUMBER: _ClassVar[int]
    PEAK_TOKEN_RATE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_ANSWER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FREE_VRAM_MB_FIELD_NUMBER: _ClassVar[int]
    TOTAL_VRAM_MB_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_USAGE_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_USED_MB_S_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_TOTAL_MB_S_FIELD_NUMBER: _ClassVar[int]
    GPU_TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    GPU_ECC_ERRORS_FIELD_NUMBER: _ClassVar[int]
    GPU_XID_ERRORS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHING_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    address: str
    phase: WorkerPhase
    incarnation: str
    sequence: int
    report_interval_ms: int
    models: _containers.RepeatedCompositeFieldContainer[LoadedModel]
    lora_adapters: _containers.RepeatedScalarFieldContainer[str]
    exclusive: bool
    scraped: bool
    running_requests: int
    waiting_requests: int
    waiting_tokens: int
    queue_wait_ms: float
    token_rate: float
    peak_token_rate: float
    finished_requests: int
    finished_prompt_tokens: int
    finished_answer_tokens: int
    free_vram_mb: int
    total_vram_mb: int
    kv_cache_usage: float
    kv_blocks_total: int
    kv_blocks_free: int
    kv_block_tokens: int
    kv_bytes_per_token: int
    bandwidth_used_mb_s: float
    bandwidth_total_mb_s: float
    gpu_temperature_c: float
    gpu_ecc_errors: int
    gpu_xid_errors: int
    capacity_tokens: int
    max_queue: int
    max_num_seqs: int
    max_num_batched_tokens: int
    priority_scheduling: bool
    prefix_caching: bool
    errors: EngineErrors
    engine: str
    counters: EngineCounters
    def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ..., phase: _Optional[_Union[WorkerPhase, str]] = ..., incarnation: _Optional[str] = ..., sequence: _Optional[int] = ..., report_interval_ms: _Optional[int] = ..., models: _Optional[_Iterable[_Union[LoadedModel, _Mapping]]] = ..., lora_adapters: _Optional[_Iterable[str]] = ..., exclusive: bool = ..., scraped: bool = ..., running_requests: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., waiting_tokens: _Optional[int] = ..., queue_wait_ms: _Optional[float] = ..., token_rate: _Optional[float] = ..., peak_token_rate: _Optional[float] = ..., finished_requests: _Optional[int] = ..., finished_prompt_tokens: _Optional[int] = ..., finished_answer_tokens: _Optional[int] = ..., free_vram_mb: _Optional[int] = ..., total_vram_mb: _Optional[int] = ..., kv_cache_usage: _Optional[float] = ..., kv_blocks_total: _Optional[int] = ..., kv_blocks_free: _Optional[int] = ..., kv_block_tokens: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., bandwidth_used_mb_s: _Optional[float] = ..., bandwidth_total_mb_s: _Optional[float] = ..., gpu_temperature_c: _Optional[float] = ..., gpu_ecc_errors: _Optional[int] = ..., gpu_xid_errors: _Optional[int] = ..., capacity_tokens: _Optional[int] = ..., max_queue: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., priority_scheduling: bool = ..., prefix_caching: bool = ..., errors: _Optional[_Union[EngineErrors, _Mapping]] = ..., engine: _Optional[str] = ..., counters: _Optional[_Union[EngineCounters, _Mapping]] = ...) -> None: ...

class LoadedModel(_message.Message):
    __slots__ = ("name", "family", "vram_mb", "max_model_len")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    VRAM_MB_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    family: str
    vram_mb: int
    max_model_len: int
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., vram_mb: _Optional[int] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class EngineErrors(_message.Message):
    __slots__ = ("cuda", "out_of_memory", "other", "last")
    CUDA_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    cuda: int
    out_of_memory: int
    other: int
    last: str
    def __init__(self, cuda: _Optional[int] = ..., out_of_memory: _Optional[int] = ..., other: _Optional[int] = ..., last: _Optional[str] = ...) -> None: ...

class EngineCounters(_message.Message):
    __slots__ = ("generated_tokens", "prompt_tokens", "prefix_queries", "prefix_hits", "preemptions", "finished_stop", "finished_length", "finished_abort", "finished_error", "finished_other", "rejected")
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_QUERIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HITS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_STOP_FIELD_NUMBER: _ClassVar[int]
    FINISHED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FINISHED_ABORT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_ERROR_FIELD_NUMBER: _ClassVar[int]
    FINISHED_OTHER_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    generated_tokens: int
    prompt_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    finished_stop: int
    finished_length: int
    finished_abort: int
    finished_error: int
    finished_other: int
    rejected: int
    def __init__(self, generated_tokens: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., prefix_queries: _Optional[int] = ..., prefix_hits: _Optional[int] = ..., preemptions: _Optional[int] = ..., finished_stop: _Optional[int] = ..., finished_length: _Optional[int] = ..., finished_abort: _Optional[int] = ..., finished_error: _Optional[int] = ..., finished_other: _Optional[int] = ..., rejected: _Optional[int] = ...) -> None: ...
