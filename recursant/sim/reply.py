"""One reply: which tokens it has, when it ends and why. Known beforehand; the engine only takes its time over it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from recursant.sim.text import natural_length, reply_tokens

# Sets replies of different seeds apart from those of different choices.
_SEED_STRIDE: Final = 1_000_003


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a reply ends.

    Attributes:
        max_tokens: at most so many.
        min_tokens: it does not end by itself before.
        ignore_eos: it does not end by itself at all.
        stop: strings that end it; the text is cut before them.
        include_stop: the text is cut after them instead.
    """

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop: bool = False


class Reply:
    """The text of one choice, taken token by token.

    Attributes:
        tokens: how many it has.
        finish_reason: "stop" or "length".
        stop_reason: the stop string that ended it, if one did.
    """

    def __init__(self, digest: str, length: int, rule: StopRule, *, index: int = 0, seed: int = 0) -> None:
        variant = seed * _SEED_STRIDE + index
        natural = max(natural_length(digest, variant), rule.min_tokens)
        ends_itself = not rule.ignore_eos and natural <= rule.max_tokens
        self.tokens = natural if ends_itself else rule.max_tokens
        self.finish_reason = "stop" if ends_itself else "length"
        self.stop_reason: str | None = None
        self._source: Iterator[str] = reply_tokens(digest, length, variant)
        if rule.stop:
            self._cut_at_stop(rule)

    def take(self, count: int) -> str:
        """The text of the next `count` tokens."""
        return "".join(islice(self._source, count))

    def _cut_at_stop(self, rule: StopRule) -> None:
        pieces = list(islice(self._source, self.tokens))
        text = "".join(pieces)
        found = [(at, stop) for stop in rule.stop if (at := text.find(stop)) >= 0]
        if not found:
            self._source = iter(pieces)
            return
        # The one that is complete first ends the reply.
        at, stop = min(found, key=lambda hit: hit[0] + len(hit[1]))
        cut = at + (len(stop) if rule.include_stop else 0)
        kept: list[str] = []
        position = 0
        for piece in pieces:
            if position >= at + len(stop):
                break
            kept.append(piece[: max(0, cut - position)])
            position += len(piece)
        self.tokens = len(kept)
        self.finish_reason = "stop"
        self.stop_reason = stop
        self._source = iter(kept)
