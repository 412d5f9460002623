"""Identifiers of requests that come without one."""

import os
from typing import Final

# Bytes asked of the system at a time: for about 170 trace contexts. A call for each would take longer than all else
# that is done with a request's headers.
_STOCK_BYTES: Final = 4_096


class Ids:
    """Random identifiers, from the system's own generator. Not for secrets: the stock lies in memory. Not for forks."""

    def __init__(self) -> None:
        self._stock = ""
        self._at = 0

    def request_id(self) -> str:
        """32 hexadecimal digits."""
        return self._digits(32)

    def traceparent(self) -> str:
        """W3C Trace Context: version 00, a new trace and parent id, not sampled."""
        digits = self._digits(48)
        return f"00-{digits[:32]}-{digits[32:]}-00"

    def _digits(self, count: int) -> str:
        at = self._at
        if at + count > len(self._stock):
            self._stock = os.urandom(_STOCK_BYTES).hex()
            at = 0
        self._at = at + count
        return self._stock[at : at + count]
