"""Conversations that grow turn by turn, and the prefix blocks that their prompts share."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from recursant.sim.workloads.mooncake import BLOCK_TOKENS

# Conversations of one agent that go on at a time. A request continues one of them, so turns are far apart.
OPEN_CONVERSATIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation.

    Attributes:
        session_id: its conversation; "" for one that stands alone.
        prompt_tokens: system prompt, history and what is new.
        blocks: of the prompt, whole ones only.
    """

    session_id: str
    prompt_tokens: int
    blocks: tuple[int, ...]


@dataclass(slots=True)
class _Open:
    session_id: str
    tokens: int
    blocks: list[int] = field(default_factory=list)


class Conversations:
    """The open conversations of all agents."""

    def __init__(self, draw: random.Random, max_context: int) -> None:
        self._draw = draw
        self._max_context = max_context
        self._ids: Iterator[int] = count()
        self._numbers: Iterator[int] = count()
        self._system: dict[str, tuple[int, ...]] = {}
        self._open: dict[str, list[_Open]] = {}

    def turn(self, agent_id: str, system_tokens: int, new_tokens: int, output_tokens: int, turns: float) -> Turn:
        """The next request of an agent: it continues a conversation, or begins one.

        Args:
            agent_id: whose.
            system_tokens: that begin every prompt of the agent.
            new_tokens: of the prompt, at least 1.
            output_tokens: of the answer, which is history for the next turn.
            turns: requests of a conversation, in the mean.
        """
        current = self._continued(agent_id, new_tokens + output_tokens, turns) or self._fresh(agent_id, system_tokens)
        current.tokens += new_tokens
        prompt = current.tokens
        self._fill(current)
        blocks = tuple(current.blocks)
        if turns > 1:
            current.tokens += output_tokens
        # The chance to end after each turn makes the number of turns geometric, with that mean.
        if turns > 1 and self._draw.random() >= 1 / turns:
            self._keep(agent_id, current)
        return Turn(current.session_id if turns > 1 else "", prompt, blocks)

    def _continued(self, agent_id: str, more: int, turns: float) -> _Open | None:
        """An open conversation that goes on, out of the list; one that has no room for `more` tokens ends."""
        waiting = self._open.get(agent_id)
        # In the mean one request of `turns` begins a conversation.
        if not waiting or self._draw.random() < 1 / turns:
            return None
        chosen = waiting.pop(self._draw.randrange(len(waiting)))
        return chosen if chosen.tokens + more <= self._max_context else None

    def _fresh(self, agent_id: str, system_tokens: int) -> _Open:
        if agent_id not in self._system:
            self._system[agent_id] = tuple(next(self._ids) for _ in range(system_tokens // BLOCK_TOKENS))
        return _Open(f"{agent_id}-{next(self._numbers)}", system_tokens, list(self._system[agent_id]))

    def _keep(self, agent_id: str, current: _Open) -> None:
        waiting = self._open.setdefault(agent_id, [])
        if len(waiting) >= OPEN_CONVERSATIONS:
            waiting.pop(self._draw.randrange(len(waiting)))
        waiting.append(current)

    def _fill(self, current: _Open) -> None:
        while (len(current.blocks) + 1) * BLOCK_TOKENS <= current.tokens:
            current.blocks.append(next(self._ids))
