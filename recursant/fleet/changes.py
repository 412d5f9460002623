"""Which rows of the fleet table have changed, for whoever keeps something that was worked out from them."""

from typing import Final

# Rows remembered before everybody has to look at the whole table again. Beyond that many a look is cheaper anyway.
MAX_REMEMBERED: Final = 1_024


class Changes:
    """A log of changed rows that readers follow, each from its own place.

    Attributes:
        rows: the rows, oldest first, with repetitions; readers remember how far they have read.
        epoch: rises when the log begins anew; whoever read an earlier one has missed something.
    """

    __slots__ = ("epoch", "rows")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.epoch = 0

    def row(self, row: int) -> None:
        """One row has changed."""
        if len(self.rows) >= MAX_REMEMBERED:
            self.all()
        self.rows.append(row)

    def all(self) -> None:
        """Anything may have changed: other candidates, other rows."""
        self.rows.clear()
        self.epoch += 1
