"""One HTTP/2 stream as the server keeps it, and who is told what happens on it (RFC 9113 §5.1)."""

from collections import deque
from typing import Final, Protocol

from extproc.http2.windows import ReceiveWindow


class StreamHandler(Protocol):
    """Takes what arrives on one stream. Its calls may send on the stream, end it, or reset it."""

    def data(self, payload: bytes) -> None:
        """Content arrived; never empty."""

    def ended(self) -> None:
        """The client will send no more."""

    def closed(self) -> None:
        """The stream is over: both sides ended it, one reset it, or the connection is gone. Called exactly once.

        Nothing can be sent any more.
        """

    def finish(self) -> None:
        """The connection ends soon: bring the stream to its end now."""


class NullHandler:
    """Nobody listens: of a stream that is refused, or not handed over yet."""

    def data(self, payload: bytes) -> None:
        """Ignored."""

    def ended(self) -> None:
        """Ignored."""

    def closed(self) -> None:
        """Ignored."""

    def finish(self) -> None:
        """Ignored."""


NOBODY: Final = NullHandler()


class Stream:
    """The state of a stream that is neither idle nor closed; a closed one is kept nowhere.

    Attributes:
        stream_id: its number.
        handler: who is told.
        send_window: what the client still takes; negative after it shrank its initial window.
        receive_window: what we still take.
        remote_closed: the client has ended it.
        local_closed: we have ended it, though `pending` may still hold what comes before.
        received: content has arrived.
        answered: we have sent something.
        content_left: bytes of content still promised by content-length; None without one.
        pending: DATA that the windows hold back.
        trailers: the header block that ends it once `pending` is out.
    """

    __slots__ = (
        "answered",
        "content_left",
        "handler",
        "local_closed",
        "pending",
        "receive_window",
        "received",
        "remote_closed",
        "send_window",
        "stream_id",
        "trailers",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int, content_length: int | None) -> None:
        self.stream_id = stream_id
        self.handler: StreamHandler = NOBODY
        self.send_window = send_window
        self.receive_window = ReceiveWindow(receive_window)
        self.content_left = content_length
        self.remote_closed = False
        self.local_closed = False
        self.received = False
        self.answered = False
        self.pending: deque[memoryview] | None = None
        self.trailers: bytes | None = None
