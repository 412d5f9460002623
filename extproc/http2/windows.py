"""How much the peer may send before we say more (RFC 9113 §5.2)."""


class ReceiveWindow:
    """The flow-control window of what we receive, on a stream or on the connection.

    Every byte is consumed as it comes, so the window is topped up in one update when half of it is used: fewer
    frames, and the peer never waits for one.
    """

    __slots__ = ("_left", "_low", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._low = size // 2
        self._left = size

    def consume(self, size: int) -> int:
        """Count `size` received bytes, padding included.

        Returns the increment of the WINDOW_UPDATE that is now due, 0 when none is.

        Raises:
            OverflowError: the peer sent more than it was allowed to.
        """
        left = self._left - size
        if left > self._low:
            self._left = left
            return 0
        if left < 0:
            raise OverflowError("more bytes than the window allows")
        self._left = self._size
        return self._size - left
