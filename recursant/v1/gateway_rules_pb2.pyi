from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GatewayRules(_message.Message):
    __slots__ = ("routing", "limits", "admission")
    class Routing(_message.Message):
        __slots__ = ("default_fallback", "timeout_ms", "weights", "candidates", "affinity")
        DEFAULT_FALLBACK_FIELD_NUMBER: _ClassVar[int]
        TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
        WEIGHTS_FIELD_NUMBER: _ClassVar[int]
        CANDIDATES_FIELD_NUMBER: _ClassVar[int]
        AFFINITY_FIELD_NUMBER: _ClassVar[int]
        default_fallback: str
        timeout_ms: int
        weights: GatewayRules.Weights
        candidates: int
        affinity: GatewayRules.Affinity
        def __init__(self, default_fallback: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., weights: _Optional[_Union[GatewayRules.Weights, _Mapping]] = ..., candidates: _Optional[int] = ..., affinity: _Optional[_Union[GatewayRules.Affinity, _Mapping]] = ...) -> None: ...
    class Affinity(_message.Message):
        __slots__ = ("sessions", "session_ttl_s", "prefix_blocks", "prefix_ttl_s")
        SESSIONS_FIELD_NUMBER: _ClassVar[int]
        SESSION_TTL_S_FIELD_NUMBER: _ClassVar[int]
        PREFIX_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        PREFIX_TTL_S_FIELD_NUMBER: _ClassVar[int]
        sessions: int
        session_ttl_s: int
        prefix_blocks: int
        prefix_ttl_s: int
        def __init__(self, sessions: _Optional[int] = ..., session_ttl_s: _Optional[int] = ..., prefix_blocks: _Optional[int] = ..., prefix_ttl_s: _Optional[int] = ...) -> None: ...
    class Weights(_message.Message):
        __slots__ = ("token_rate", "queue", "profile", "affinity")
        TOKEN_RATE_FIELD_NUMBER: _ClassVar[int]
        QUEUE_FIELD_NUMBER: _ClassVar[int]
        PROFILE_FIELD_NUMBER: _ClassVar[int]
        AFFINITY_FIELD_NUMBER: _ClassVar[int]
        token_rate: float
        queue: float
        profile: str
        affinity: float
        def __init__(self, token_rate: _Optional[float] = ..., queue: _Optional[float] = ..., profile: _Optional[str] = ..., affinity: _Optional[float] = ...) -> None: ...
    class Limits(_message.Message):
        __slots__ = ("agent_meta_bytes", "session_id_bytes", "request_id_bytes", "held_requests")
        AGENT_META_BYTES_FIELD_NUMBER: _ClassVar[int]
        SESSION_ID_BYTES_FIELD_NUMBER: _ClassVar[int]
        REQUEST_ID_BYTES_FIELD_NUMBER: _ClassVar[int]
        HELD_REQUESTS_FIELD_NUMBER: _ClassVar[int]
        agent_meta_bytes: int
        session_id_bytes: int
        request_id_bytes: int
        held_requests: int
        def __init__(self, agent_meta_bytes: _Optional[int] = ..., session_id_bytes: _Optional[int] = ..., request_id_bytes: _Optional[int] = ..., held_requests: _Optional[int] = ...) -> None: ...
    class Admission(_message.Message):
        __slots__ = ("kv_water_mark", "ageing_ms", "slot_shares", "rules", "express")
        KV_WATER_MARK_FIELD_NUMBER: _ClassVar[int]
        AGEING_MS_FIELD_NUMBER: _ClassVar[int]
        SLOT_SHARES_FIELD_NUMBER: _ClassVar[int]
        RULES_FIELD_NUMBER: _ClassVar[int]
        EXPRESS_FIELD_NUMBER: _ClassVar[int]
        kv_water_mark: float
        ageing_ms: int
        slot_shares: GatewayRules.SlotShares
        rules: GatewayRules.ClassRules
        express: GatewayRules.Express
        def __init__(self, kv_water_mark: _Optional[float] = ..., ageing_ms: _Optional[int] = ..., slot_shares: _Optional[_Union[GatewayRules.SlotShares, _Mapping]] = ..., rules: _Optional[_Union[GatewayRules.ClassRules, _Mapping]] = ..., express: _Optional[_Union[GatewayRules.Express, _Mapping]] = ...) -> None: ...
    class Express(_message.Message):
        __slots__ = ("enabled", "share", "turn_ms", "clear_ms", "kv_kept_free")
        ENABLED_FIELD_NUMBER: _ClassVar[int]
        SHARE_FIELD_NUMBER: _ClassVar[int]
        TURN_MS_FIELD_NUMBER: _ClassVar[int]
        CLEAR_MS_FIELD_NUMBER: _ClassVar[int]
        KV_KEPT_FREE_FIELD_NUMBER: _ClassVar[int]
        enabled: bool
        share: float
        turn_ms: int
        clear_ms: int
        kv_kept_free: float
        def __init__(self, enabled: bool = ..., share: _Optional[float] = ..., turn_ms: _Optional[int] = ..., clear_ms: _Optional[int] = ..., kv_kept_free: _Optional[float] = ...) -> None: ...
    class SlotShares(_message.Message):
        __slots__ = ("critical", "high", "normal", "low")
        CRITICAL_FIELD_NUMBER: _ClassVar[int]
        HIGH_FIELD_NUMBER: _ClassVar[int]
        NORMAL_FIELD_NUMBER: _ClassVar[int]
        LOW_FIELD_NUMBER: _ClassVar[int]
        critical: float
        high: float
        normal: float
        low: float
        def __init__(self, critical: _Optional[float] = ..., high: _Optional[float] = ..., normal: _Optional[float] = ..., low: _Optional[float] = ...) -> None: ...
    class ClassRules(_message.Message):
        __slots__ = ("short_input_tokens", "short_output_tokens", "report_words")
        SHORT_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
        SHORT_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
        REPORT_WORDS_FIELD_NUMBER: _ClassVar[int]
        short_input_tokens: int
        short_output_tokens: int
        report_words: _struct_pb2.ListValue
        def __init__(self, short_input_tokens: _Optional[int] = ..., short_output_tokens: _Optional[int] = ..., report_words: _Optional[_Union[_struct_pb2.ListValue, _Mapping]] = ...) -> None: ...
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    routing: GatewayRules.Routing
    limits: GatewayRules.Limits
    admission: GatewayRules.Admission
    def __init__(self, routing: _Optional[_Union[GatewayRules.Routing, _Mapping]] = ..., limits: _Optional[_Union[GatewayRules.Limits, _Mapping]] = ..., admission: _Optional[_Union[GatewayRules.Admission, _Mapping]] = ...) -> None: ...
