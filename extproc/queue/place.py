"""A place for a request, and who finds it."""

from dataclasses import dataclass
from typing import Protocol

from extproc.queue.messages import Enter
from recursant.agents.priority import PriorityClass
from recursant.routing.picker import Refusal


@dataclass(frozen=True, slots=True)
class Place:
    """A place that is counted here, for another process to take over. See `extproc.gateway.Decision`."""

    rows: tuple[int, ...]
    model: str
    fallback: str | None
    shaped: int | None
    affinity: str | None
    cached_tokens: int
    prompt_tokens: int
    answer_tokens: int


class Places(Protocol):
    """Finds places and counts them."""

    def find(self, enter: Enter, count_as: PriorityClass | None, fallback: str | None) -> Place | Refusal:
        """A place for a request, counted until it is released."""

    def release(self, place: Place) -> None:
        """Count a place no more."""
