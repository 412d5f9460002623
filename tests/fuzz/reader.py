"""Bytes as choices, so that the fuzzer's small changes are small changes of what is tried."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Reader:
    """Reads an input from its beginning; past its end there are zeros, and nothing to take."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def over(self) -> bool:
        """Everything was read."""
        return self._position >= len(self._data)

    def byte(self) -> int:
        """The next byte."""
        return next(iter(self.take(1)), 0)

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.byte() % len(options)]

    def take(self, size: int) -> bytes:
        """So many bytes, or fewer where there are not as many."""
        taken = self._data[self._position : self._position + size]
        self._position += size
        return taken

    def piece(self) -> bytes:
        """As many bytes as the next one says."""
        return self.take(self.byte())

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data))
