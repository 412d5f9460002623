"""A request to the engine, and the sequence that it becomes there."""

from collections.abc import Sequence as Sequenced
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


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


class Group(Protocol):
    """What keeps count of sequences that all compute one token a step.

    Attributes:
        clock: steps that have passed.
        ahead: of the steps in progress, those whose blocks are taken already.
        block_tokens: tokens of a block.
    """

    clock: int
    ahead: int
    block_tokens: int


class Sequence:
    """A request inside the engine. Others read it; only the engine writes.

    Attributes:
        cached_tokens: of the prompt, found in the prefix cache when it first ran.
        arrived, started, first_token, finished: the caller's clock, in seconds; None while it has not happened.
        preemptions: how often its KV was taken away.
        place: in the order of those that run; another one each time that it starts to.
        group: that counts for it; None: its numbers are its own.
    """

    __slots__ = (
        "_blocks",
        "_computed",
        "_generated",
        "_joined",
        "_scheduled",
        "arrived",
        "cached_tokens",
        "finished",
        "first_token",
        "group",
        "hashes",
        "order",
        "output_tokens",
        "place",
        "preemptions",
        "priority",
        "prompt_tokens",
        "request",
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
        self.cached_tokens = 0
        self.preemptions = 0
        self.place = -1
        self.group: Group | None = None
        # The hashes of those of its blocks that are shared.
        self.shared: list[int] = []
        # Leading entries of `hashes` that were offered to the cache, or came from it.
        self.visited = 0
        self._generated = 0
        self._computed = 0
        self._scheduled = 0
        self._blocks = 0
        self._joined = 0

    @property
    def generated(self) -> int:
        """Output tokens so far; preemption keeps them."""
        group = self.group
        return self._generated if group is None else self._generated + group.clock - self._joined

    @generated.setter
    def generated(self, tokens: int) -> None:
        self._generated = tokens

    @property
    def computed(self) -> int:
        """Leading tokens whose KV is in the cache."""
        group = self.group
        return self._computed if group is None else self._computed + group.clock - self._joined

    @computed.setter
    def computed(self, tokens: int) -> None:
        self._computed = tokens

    @property
    def scheduled(self) -> int:
        """Tokens that the step in progress computes; 0: not part of it."""
        group = self.group
        return self._scheduled if group is None else min(1, group.ahead)

    @scheduled.setter
    def scheduled(self, tokens: int) -> None:
        self._scheduled = tokens

    @property
    def blocks(self) -> int:
        """Blocks held."""
        group = self.group
        return self._blocks if group is None else -(-(self.computed + group.ahead) // group.block_tokens)

    @blocks.setter
    def blocks(self, count: int) -> None:
        self._blocks = count

    def enter(self, group: Group) -> None:
        """Let `group` count from now on."""
        self.group = group
        self._joined = group.clock

    def leave(self) -> None:
        """Take its own numbers back from its group."""
        self._blocks, self._generated, self._computed = self.blocks, self.generated, self.computed
        self.group = None

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
