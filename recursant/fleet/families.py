"""From a model's name to its family (DESIGN §9): agents ask for families, workers load names."""

import re
from collections.abc import Iterable, Sequence

from recursant.config.model import Config, FamilyPattern


class FamilyResolver:
    """Names the family of a model: the first matching pattern, else the first known family word in it.

    Only the part after the last `/` counts, ignoring case: `deepseek-ai/DeepSeek-R1-Distill-Qwen-7B` is searched
    from its own name, not from its publisher's. Where two known words occur, the one that stands first wins, and
    of two that start together the longer.
    """

    def __init__(self, patterns: Sequence[FamilyPattern], known_families: Iterable[str]) -> None:
        self._patterns = [(re.compile(entry.pattern, re.IGNORECASE), entry.family) for entry in patterns]
        self._known = sorted({family for family in known_families if family})

    @classmethod
    def from_config(cls, config: Config) -> "FamilyResolver":
        """The resolver for a configuration: its patterns, its agents' families, those that they degrade to, and its
        workers' declared ones.
        """
        known = {agent.model_family for agent in config.agents if agent.model_family}
        known.update(agent.degrade_family for agent in config.agents if agent.degrade_family)
        for worker in config.workers:
            for model in worker.models:
                family = model if isinstance(model, str) else model.family
                if family and "/" not in family:
                    known.add(family)
        return cls(config.families, known)

    def __eq__(self, other: object) -> bool:
        """Do both name the same family of every model?"""
        if not isinstance(other, FamilyResolver):
            return NotImplemented
        return (self._patterns, self._known) == (other._patterns, other._known)

    __hash__ = None  # type: ignore[assignment]

    def family_of(self, model: str) -> str | None:
        """The family of `model`, or None where no pattern and no known word fits."""
        tail = model.rsplit("/", 1)[-1]
        for pattern, family in self._patterns:
            if pattern.search(tail):
                return family
        lowered = tail.lower()
        found = [
            (position, -len(family), family)
            for family in self._known
            if (position := lowered.find(family.lower())) >= 0
        ]
        return min(found)[2] if found else None
