"""What one request needs from a worker, with every source merged: policy, description, body."""

from dataclasses import dataclass
from typing import Final

from recursant.agents.priority import PriorityClass

# Output tokens expected of a request that names no bound and whose agent has none.
DEFAULT_EXPECTED_TOKENS: Final = 256


class Express:
    """What a request has to do with the express lane (recursant.routing.express).

    Plain numbers, as the columns of the table: they are compared for every request.
    """

    # Nothing.
    NONE: Final = 0
    # Somebody waits for it: it rather goes where no long prompt is read.
    URGENT: Final = 1
    # Where its prompt is long it waits for a worker off the lane.
    KEEPS_OFF: Final = 2


# One is made for every request: neither frozen nor with a generated `__init__`, which is interpreted where this is
# compiled.
@dataclass(init=False)
class Need:
    """The limits that filters compare, zero or None where the request sets none.

    Attributes:
        family: the model family; "" for any.
        model: a concrete model or LoRA adapter; "" for any of the family.
        exclusive: ids of exclusive workers that it may use.
        min_vram_mb: memory that the worker must be able to give it.
        min_bandwidth_mb_s: memory bandwidth that must be left.
        prompt_tokens: length of the prompt, estimated.
        expected_tokens: length of the answer, expected: no longer than that.
        likely_tokens: how much of the KV cache stays free for it while it runs; None: `expected_tokens`.
        context_length: prompt and output together that the worker's model must be able to hold, in tokens.
        latency_sla_ms: what the expected wait is held against.
        count_as: the class whose share of the slots it may use; None: any worker, full or not.
        express: one of `Express`.
    """

    family: str
    model: str
    exclusive: frozenset[str]
    min_vram_mb: int
    min_bandwidth_mb_s: int
    prompt_tokens: int
    expected_tokens: int
    likely_tokens: int | None
    context_length: int
    latency_sla_ms: int | None
    count_as: PriorityClass | None
    express: int

    def __init__(
        self,
        family: str = "",
        model: str = "",
        exclusive: frozenset[str] = frozenset(),
        min_vram_mb: int = 0,
        min_bandwidth_mb_s: int = 0,
        prompt_tokens: int = 0,
        expected_tokens: int = DEFAULT_EXPECTED_TOKENS,
        likely_tokens: int | None = None,
        context_length: int = 0,
        latency_sla_ms: int | None = None,
        count_as: PriorityClass | None = None,
        express: int = Express.NONE,
    ) -> None:
        self.family = family
        self.model = model
        self.exclusive = exclusive
        self.min_vram_mb = min_vram_mb
        self.min_bandwidth_mb_s = min_bandwidth_mb_s
        self.prompt_tokens = prompt_tokens
        self.expected_tokens = expected_tokens
        self.likely_tokens = likely_tokens
        self.context_length = context_length
        self.latency_sla_ms = latency_sla_ms
        self.count_as = count_as
        self.express = express

    @property
    def context_tokens(self) -> int:
        """How long a model's context must be: what the agent needs, and the prompt where it is longer."""
        return max(self.context_length, self.prompt_tokens)

    @property
    def kv_tokens(self) -> int:
        """What the request will hold in the KV cache at its end."""
        return self.prompt_tokens + self.expected_tokens

    @property
    def answer_tokens(self) -> int:
        """What the request counts with for its answer while it is in flight."""
        return self.expected_tokens if self.likely_tokens is None else min(self.likely_tokens, self.expected_tokens)
