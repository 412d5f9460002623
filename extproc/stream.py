"""What a transport and a session agree on: one ext_proc stream, messages as bytes.

A transport knows gRPC and nothing of requests; a session knows requests and nothing of gRPC. Both transports
run the same sessions.
"""

from collections.abc import Callable
from typing import Protocol


class StreamError(Exception):
    """The peer broke the ext_proc protocol. The transport ends the stream with INVALID_ARGUMENT."""


class Unready(Exception):  # noqa: N818 - a state, no mistake
    """We cannot decide anything yet. The transport ends the stream with UNAVAILABLE: Envoy goes on without us."""


class Session(Protocol):
    """One ext_proc stream, which is one HTTP request's life (DESIGN §4.3)."""

    def receive(self, message: bytes) -> bytes | None:
        """Take one serialised `ProcessingRequest`; return the serialised `ProcessingResponse`.

        None means that nothing is to be sent now: the session answers later through the `send` that it was
        made with, or never.

        Raises:
            StreamError: the message cannot be parsed, or has no place in the protocol now.
            Unready: the request is to go on without us.
        """

    def close(self) -> None:
        """The stream is over: ended, reset, or its connection lost. The transport calls it exactly once."""


# Makes the session of a new stream; `send` carries an answer that comes later. `send` after the stream's end is
# dropped silently.
SessionFactory = Callable[[Callable[[bytes], None]], Session]
