"""Messages over a Unix socket, both ends: lines in, lines out, those of one turn of the loop together."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from extproc.queue.messages import MAX_LINE_BYTES, MessageError, Reply, Request, decode, encode

# An end that takes nothing for so long that this much waits for it is cut off. Whoever hangs is left to time.
MAX_UNSENT_BYTES: Final = 16 << 20


class Listener(Protocol):
    """Whose messages they are."""

    def received(self, wire: "Wire", message: Request | Reply) -> None:
        """A message came."""

    def lost(self, wire: "Wire") -> None:
        """The other end is gone, or made no sense."""


class Wire(asyncio.Protocol):
    """One connection.

    Args:
        listener: told what comes.
        opened: told when it stands.
    """

    def __init__(self, listener: Listener, opened: Callable[["Wire"], None] = lambda _wire: None) -> None:
        self._listener = listener
        self._opened = opened
        self._transport: asyncio.Transport | None = None
        self._read = bytearray()
        self._unsent: list[bytes] = []
        self._flushing: asyncio.Handle | None = None

    def send(self, message: Request | Reply) -> None:
        """Send within this turn of the loop; nothing where the connection is closed."""
        if self._transport is None:
            return
        self._unsent.append(encode(message))
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        """End it, after what was sent; its listener hears no more of it."""
        self._flush()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._opened(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._read += data
        *lines, rest = self._read.split(b"\n")
        self._read = rest
        try:
            if len(rest) > MAX_LINE_BYTES:
                raise MessageError("a line without an end")
            for line in lines:
                message = decode(bytes(line))
                if self._transport is None:
                    return
                self._listener.received(self, message)
        except MessageError:
            self._cut()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        del exc
        self._cut()

    # --- inside ---

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        unsent, self._unsent = self._unsent, []
        if self._transport is None or not unsent:
            return
        self._transport.write(b"".join(unsent))
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._cut()

    def _cut(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
            self._listener.lost(self)
