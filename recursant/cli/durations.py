"""Durations as people write them."""

import re
from typing import Final

from recursant.cli.errors import USAGE, CommandError

_FORM: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600}
LONGEST_S: Final = 86_400


def seconds_of(text: str) -> float:
    """The seconds in "90s", "10m" or "2h".

    Raises:
        CommandError: it is none of these, or not above 0 and at most a day.
    """
    match = _FORM.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds <= LONGEST_S:
        raise CommandError(f"{text!r} is no time: expected 90s, 10m or 2h, and at most 24h", USAGE)
    return seconds
