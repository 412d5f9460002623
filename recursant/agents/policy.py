"""An agent's policy (SPEC A2): what this kind of caller needs and what it may take."""

import re
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from recursant.agents.priority import PriorityClass, class_of_priority

# An agent id is a metric label, a header value and a Redis key: one plain word.
AGENT_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
FALLBACKS = ("queue_and_retry", "drop", "round_robin", "reject", "degrade_to_<family>")
DEGRADE_PREFIX = "degrade_to_"
_FALLBACK = re.compile(r"^(?:queue_and_retry|drop|round_robin|reject|degrade_to_[A-Za-z0-9][A-Za-z0-9._-]{0,63})$")

# Beyond any time, memory or length that makes sense, and within what protocols can carry.
_MOST = 1_000_000_000
Count = Annotated[int, Field(ge=0, le=_MOST)]
Positive = Annotated[int, Field(ge=1, le=_MOST)]


class AgentPolicy(BaseModel):
    """What one agent needs from the fleet. Frozen; unknown keys are refused.

    Attributes of time are milliseconds, of memory MiB, of bandwidth MiB/s, of length tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    agent_id: Annotated[
        str,
        Field(
            pattern=AGENT_ID_PATTERN,
            json_schema_extra={"allowed": "1 to 64 letters, digits, '.', '_' and '-', the first a letter or digit"},
        ),
    ]
    # The family of models ("qwen"); absent: whatever model the request names.
    model_family: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    # The concrete model that "auto" becomes; absent: the worker's first of the family.
    model: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    allow_other_models: bool = False

    # Larger = more important.
    priority: Annotated[int, Field(ge=0, le=1_000)] = 5
    # Named outright, the class is not moved by the rules.
    class_: Literal["critical", "high", "normal", "low"] | None = Field(default=None, alias="class")
    allow_real_time: bool = False

    min_vram_mb: Count = 0
    min_bandwidth_mb_s: Count = 0
    latency_sla_ms: Positive | None = None
    # Arrival to first response byte; absent: routing.timeout_ms.
    timeout_ms: Positive | None = None
    max_new_tokens: Positive | None = None
    context_length: Positive | None = None

    fallback_strategy: Annotated[str, Field(json_schema_extra={"allowed": list(FALLBACKS)})] = "reject"
    retry_max: Annotated[int, Field(ge=0, le=100)] = 0
    retry_delay_ms: Count = 200
    batch_window_ms: Count = 0
    on_memory_pressure: Literal["reject", "hold", "shape"] = "reject"
    failure_mode: Literal["open", "closed"] = "open"
    inspect_body: Literal["auto", "always", "never"] = "auto"
    # What leads its requests to the worker that served earlier ones: nothing, X-Session-ID, or the prompt as well.
    affinity: Literal["none", "session", "prefix"] = "session"

    # Ids of exclusive workers that this agent may use.
    workers: Annotated[tuple[str, ...], Field(strict=False)] = ()

    @field_validator("fallback_strategy")
    @classmethod
    def _known_fallback(cls, value: str) -> str:
        if not _FALLBACK.match(value):
            raise ValueError(f"must be one of {', '.join(FALLBACKS)}")
        return value

    @property
    def degrade_family(self) -> str | None:
        """The family that takes this one's place under `degrade_to_<family>`."""
        strategy = self.fallback_strategy
        return strategy.removeprefix(DEGRADE_PREFIX) if strategy.startswith(DEGRADE_PREFIX) else None

    @property
    def waits_for_room(self) -> bool:
        """Its requests wait where every worker is full: no other strategy takes them elsewhere, or drops them."""
        return self.fallback_strategy in ("reject", "queue_and_retry")

    @cached_property
    def priority_class(self) -> PriorityClass:
        """The class this policy gives its requests, before any rule moves them."""
        if self.class_ is not None:
            return PriorityClass[self.class_.upper()]
        return class_of_priority(self.priority)
