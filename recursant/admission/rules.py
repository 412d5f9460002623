"""The numbers and words that admission goes by, as configuration: section `admission`. They change while requests run.

Whoever decides gets them as an argument; nothing here is read from anywhere else.
"""

import re
from functools import cached_property
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from recursant.agents.priority import PriorityClass

# A request must not take a worker's KV cache past this share (SPEC E2): beyond it the engine preempts, and all pay.
WATER_MARK: Final = 0.85
# A request that has waited this long counts as one class higher, and so on; never as Critical. Low is therefore
# never starved: after twice this time it waits among the High ones, and the oldest goes first.
AGEING_MS: Final = 4_000
# A short request: input and output both below, in tokens (SPEC E1).
SHORT_INPUT_TOKENS: Final = 512
SHORT_OUTPUT_TOKENS: Final = 128
# Words that ask for long work, as they stand in a prompt (SPEC E1).
REPORT_WORDS: Final = (
    "summary",
    "summaries",
    "summarise*",
    "summarize*",
    "analys*",
    "analyz*",
    "report",
    "reports",
)

# The express lane: found with the fleet simulation (docs/adr/0010-express-lane.md).
EXPRESS_SHARE: Final = 0.125
EXPRESS_TURN_MS: Final = 1_500
EXPRESS_CLEAR_MS: Final = 1_200
EXPRESS_KV_KEPT_FREE: Final = 0.06

_MOST_TOKENS: Final = 1_000_000_000
_MOST_WORDS: Final = 256
_WORD: Final = re.compile(r"\*?[^*\x00-\x1f]{1,64}\*?")


def check_word(value: str) -> str:
    """A word of a rule, perhaps with a `*` at its beginning, its end, or both.

    Raises:
        ValueError: it is none.
    """
    if not _WORD.fullmatch(value) or not value.strip("*").strip() or not value.isprintable():
        raise ValueError("not allowed")
    return value


Share = Annotated[float, Field(ge=0.01, le=1)]
Tokens = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]
Word = Annotated[
    str,
    AfterValidator(check_word),
    Field(json_schema_extra={"allowed": "1 to 64 printable characters, a * before or behind them for any letters"}),
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SlotShares(_Part):
    """Up to which share of a worker's slots (`max_num_seqs`) each class may fill it (SPEC E3)."""

    critical: Share = 1.0
    high: Share = 1.0
    normal: Share = 0.9
    low: Share = 0.7

    @model_validator(mode="after")
    def _in_order(self) -> "SlotShares":
        if not self.critical >= self.high >= self.normal >= self.low:
            raise ValueError("no class may have a larger share than the classes above it")
        return self

    def of(self, priority_class: PriorityClass) -> float:
        """The share of a class."""
        share: float = getattr(self, priority_class.label)
        return share


class ClassRules(_Part):
    """What moves a request to another class than its policy's (SPEC E1)."""

    # Both below: one class up. 0 switches the rule off.
    short_input_tokens: Tokens = SHORT_INPUT_TOKENS
    short_output_tokens: Tokens = SHORT_OUTPUT_TOKENS
    # Any of them in the prompt: class Low. YAML gives lists; strict mode alone would insist on tuples.
    report_words: Annotated[tuple[Word, ...], Field(strict=False, max_length=_MOST_WORDS)] = REPORT_WORDS

    @cached_property
    def _report(self) -> re.Pattern[str] | None:
        # Words are no regular expressions of the operator's: each is searched for in time that grows with the text.
        whole = [_expression(word) for word in self.report_words if not word.startswith("*")]
        parts = [_expression(word) for word in self.report_words if word.startswith("*")]
        if whole:
            # One look at what stands before and at the first character, not one for each word: half the time.
            first = "".join(re.escape(each) for each in sorted({word[0] for word in self.report_words} - {"*"}))
            parts.insert(0, rf"(?<!\w)(?=[{first}])(?:{'|'.join(whole)})")
        return re.compile("|".join(parts), re.IGNORECASE) if parts else None

    def asks_for_report(self, text: str) -> bool:
        """Does one of the words stand in the text?"""
        return self._report is not None and self._report.search(text) is not None


class ExpressRules(_Part):
    """The express lane (recursant.routing.express), in force with the profile `adaptive`."""

    enabled: bool = True
    # Of the workers that could read a long prompt of a low class; at least one of them, and none of fewer than three.
    share: Annotated[float, Field(ge=0.01, le=0.5)] = EXPRESS_SHARE
    # Then the next ones are the lane; gateways agree on whose turn it is by their clocks.
    turn_ms: Annotated[int, Field(ge=100, le=600_000)] = EXPRESS_TURN_MS
    # So long before its turn a worker gets no long prompt any more.
    clear_ms: Annotated[int, Field(ge=0, le=600_000)] = EXPRESS_CLEAR_MS
    # Of a worker's KV cache, left free by the classes below High while the lane is in use.
    kv_kept_free: Annotated[float, Field(ge=0, le=0.5)] = EXPRESS_KV_KEPT_FREE

    @model_validator(mode="after")
    def _clears_within_a_turn(self) -> "ExpressRules":
        if self.clear_ms > self.turn_ms:
            raise ValueError("clear_ms may not be larger than turn_ms: more than one turn ahead nobody can be told")
        return self


class Admission(_Part):
    """All of it."""

    kv_water_mark: Annotated[float, Field(ge=0.05, le=1)] = WATER_MARK
    ageing_ms: Annotated[int, Field(ge=1, le=86_400_000)] = AGEING_MS
    slot_shares: SlotShares = SlotShares()
    rules: ClassRules = ClassRules()
    express: ExpressRules = ExpressRules()

    @property
    def ageing_s(self) -> float:
        """`ageing_ms` in seconds."""
        return self.ageing_ms / 1_000


DEFAULT_ADMISSION: Final = Admission()


def _expression(word: str) -> str:
    """The word as a regular expression; what stands before it is not looked at."""
    return re.escape(word.strip("*")) + ("" if word.endswith("*") else r"(?!\w)")
