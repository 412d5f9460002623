"""A request to the engine, and the sequence that it becomes there."""

from collections.abc import Sequence as Sequenced
from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation. What is generated is not the engine's business: it counts tokens.

    Attributes:
        request_id: unique among the engine's unfinished requests.
        prompt_tokens: at least 1.
        output_tokens: how many it will generate, at least 1.
        priority: smaller runs sooner, under priority scheduling.
        block_hashes: the chained hashes of its full KV blocks, for the prefix cache; may be shorter.
        tag: the caller's own; handed back with every output.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    block_hashes: Sequenced[int] = ()
    tag: Any = None


class SequenceState(Enum):
    """Where a sequence is. A preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class Sequence:
    """A request inside the engine. Others read it; only the engine writes.

    Attributes:
        generated: output tokens so far; preemption keeps them.
        computed: leading tokens whose KV is in the cache.
        cached_tokens: of the prompt, found in the prefix cache when it first ran.
        arrived, started, first_token, finished: the caller's clock, in seconds; None while it has not happened.
        preemptions: how often its KV was taken away.
    """

    __slots__ = (
        "arrived",
        "blocks",
        "cached_tokens",
        "computed",
        "finished",
        "first_token",
        "generated",
        "hashes",
        "order",
        "output_tokens",
        "preemptions",
        "priority",
        "prompt_tokens",
        "request",
        "scheduled",
        "shared",
        "started",
        "state",
        "visited",
    )

    def __init__(self, request: EngineRequest, order: int, arrived: float, hashes: Sequenced[int]) -> None:
        self.request = request
        self.prompt_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self.priority = request.priority
        self.hashes = hashes
        self.order = order
        self.arrived = arrived
        self.started: float | None = None
        self.first_token: float | None = None
        self.finished: float | None = None
        self.state = SequenceState.WAITING
        self.generated = 0
        self.computed = 0
        self.cached_tokens = 0
        self.preemptions = 0
        # Tokens that the step in progress computes; 0: not part of it.
        self.scheduled = 0
        # Blocks held, and the hashes of those that are shared.
        self.blocks = 0
        self.shared: list[int] = []
        # Leading entries of `hashes` that were offered to the cache, or came from it.
        self.visited = 0

    @property
    def length(self) -> int:
        """Prompt and output so far, in tokens."""
        return self.prompt_tokens + self.generated

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def tag(self) -> Any:
        """The caller's own object."""
        return self.request.tag
