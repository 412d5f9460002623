"""Prompts that workers have still to read: sent, and the answer has not begun, as far as that shows.

What a worker reports is a beat old, counts a token of a long prompt like one of a short one, and, where the engine is
scraped from outside, tells nothing of a prompt that is read piece by piece: it looks idle though 100,000 tokens are
ahead of whoever comes next. The gateway knows better. It sent the prompt, and it sees the answer begin, unless that is
a stream: vLLM sends the head of one before it has read anything. Then the prompt counts until its time is over.
"""

import heapq
from collections import deque
from typing import Final

from recursant.fleet.table import FleetTable

# Attention compares each token with all before it: of a prompt of so many tokens that takes as long as all the rest.
# About 4 x layers x width / (2 x parameters) a pair, half of all pairs: 1/60,000 for an 8B model, 1/100,000 for 70B.
ATTENTION_DOUBLES_AT: Final = 65_536
# An answer that is not streamed begins as it ends, and where one that is begins does not show. So a prompt counts no
# longer than a slow device needs for it: this many tokens a second, and at least so long. Seconds.
SLOWEST_PREFILL_TOKENS_S: Final = 5_000
LEAST_S: Final = 0.5
_LEAST_WORK: Final = SLOWEST_PREFILL_TOKENS_S * LEAST_S


def prefill_work(tokens: int, cached: int = 0) -> int:
    """What reading a prompt takes, in tokens of short ones, where its first `cached` tokens are cached."""
    return tokens - cached + (tokens * tokens - cached * cached) // ATTENTION_DOUBLES_AT


class Prompt:
    """One prompt under way."""

    __slots__ = ("row", "unread", "work")

    def __init__(self, row: int, work: int) -> None:
        self.row = row
        self.work = work
        self.unread = True


class Prompts:
    """Counts them in the fleet's table, each exactly until it is answered or its time is over.

    Args:
        table: with the rows that they are sent to.
    """

    def __init__(self, table: FleetTable) -> None:
        self._table = table
        # When each counts no more. Those that are answered before stay in until then. Short ones, which are nearly all,
        # end in the order in which they came.
        self._short: deque[tuple[float, Prompt]] = deque()
        self._ends: list[tuple[float, int, Prompt]] = []
        self._number = 0

    def sent(self, row: int, tokens: int, cached: int, now: float) -> Prompt:
        """A prompt goes to the worker in `row`, which is believed to have its first `cached` tokens."""
        self.expire(now)
        prompt = Prompt(row, prefill_work(tokens, cached))
        self._table.unread(row, prompt.work, cached)
        if prompt.work <= _LEAST_WORK:
            self._short.append((now + LEAST_S, prompt))
        else:
            self._number += 1
            heapq.heappush(self._ends, (now + prompt.work / SLOWEST_PREFILL_TOKENS_S, self._number, prompt))
        return prompt

    def read(self, prompt: Prompt) -> None:
        """Its answer has begun, or never will. Harmless when it does not count any more."""
        if prompt.unread:
            prompt.unread = False
            self._table.unread(prompt.row, -prompt.work)

    def expire(self, now: float) -> None:
        """Stop counting those whose time is over."""
        short, ends = self._short, self._ends
        while short and short[0][0] <= now:
            self.read(short.popleft()[1])
        while ends and ends[0][0] <= now:
            self.read(heapq.heappop(ends)[2])
