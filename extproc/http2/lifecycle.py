"""How streams end, and what the client is told of it (RFC 9113 §5.1, §5.4.2, §8.1)."""

from extproc.http2 import frames
from extproc.http2.errors import ErrorCode
from extproc.http2.registry import StreamRegistry
from extproc.http2.sender import Sender
from extproc.http2.stream import NOBODY, Stream


class Lifecycle:
    """Ends streams: the registry, the sender and the stream's handler learn of it here and nowhere else."""

    __slots__ = ("_registry", "_sender")

    def __init__(self, registry: StreamRegistry, sender: Sender) -> None:
        self._registry = registry
        self._sender = sender

    def end(self, stream: Stream, block: bytes) -> None:
        """End our side with a header block, once everything sent before is out. Later calls do nothing."""
        if stream.local_closed:
            return
        stream.local_closed = True
        if stream.pending is not None:
            stream.trailers = block
        else:
            self._finish(stream, block)

    def finish(self, stream: Stream) -> None:
        """All DATA held back on `stream` is out: if its trailers wait, it is their turn."""
        if stream.trailers is not None:
            self._finish(stream, stream.trailers)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """Break a stream off, living or just refused."""
        self._send_reset(stream_id, code)
        stream = self._registry.live.get(stream_id)
        if stream is not None:
            self.close(stream)

    def close(self, stream: Stream) -> None:
        """The stream is over; its handler hears of it."""
        stream.local_closed = True
        stream.remote_closed = True
        self._registry.remove(stream)
        self._sender.drop(stream)
        handler, stream.handler = stream.handler, NOBODY
        handler.closed()

    def close_all(self) -> None:
        """The connection is over."""
        live = self._registry.live
        while live:
            self.close(next(reversed(live.values())))

    def _finish(self, stream: Stream, block: bytes) -> None:
        self._sender.headers(stream, block, end_stream=True)
        if not stream.remote_closed:
            # We need no more of the request (§8.1).
            self._send_reset(stream.stream_id, ErrorCode.NO_ERROR)
        self.close(stream)

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self._registry.remember_reset(stream_id)
        self._sender.control(frames.rst_stream(stream_id, code))
