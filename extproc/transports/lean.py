"""The ext_proc transport that speaks HTTP/2 itself (extproc.http2), on asyncio: the default.

gRPC's library costs ten times what the request's own work costs, for each stream (DESIGN §5).
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final, cast

from extproc.grpc.context import ServerContext
from extproc.grpc.server import application
from extproc.http2.limits import Limits
from extproc.stream import SessionFactory
from extproc.transports.address import (
    AddressError,
    SocketFile,
    SocketUmask,
    TcpAddress,
    UnixAddress,
    claim_unix_path,
    parse_address,
)
from extproc.transports.base import TransportStats
from extproc.transports.peer import CLOSE_SECONDS, Peer

# Connections at once. Envoy opens one for each of its worker threads.
_MAX_CONNECTIONS: Final = 1_024
# Whole messages' worth of incomplete ones, of all streams together.
_BUFFERED_MESSAGES: Final = 16
# Seconds for a new connection to prove that it speaks HTTP/2.
_PREFACE_SECONDS: Final = 10.0
# Seconds for a client that takes nothing, before it is cut off.
_STALL_SECONDS: Final = 30.0
_BACKLOG: Final = 1_024


class LeanTransport:
    """A `Transport` (extproc.transports.base) on our own HTTP/2.

    Args:
        factory: makes the session of each stream.
        max_message_bytes: the largest message taken; a larger one ends its stream with RESOURCE_EXHAUSTED.
        limits: bounds on each connection.
    """

    def __init__(self, factory: SessionFactory, *, max_message_bytes: int, limits: Limits | None = None) -> None:
        self.stats = TransportStats()
        self._context = ServerContext(
            factory=factory,
            max_message_bytes=max_message_bytes,
            max_buffered_bytes=_BUFFERED_MESSAGES * max_message_bytes,
            stats=self.stats,
        )
        self._application = application(self._context)
        self._limits = limits or Limits()
        self._peers: set[Peer] = set()
        self._servers: list[asyncio.Server] = []
        self._files: list[SocketFile] = []
        self._empty = asyncio.Event()
        self._empty.set()

    async def listen(self, addresses: Sequence[str]) -> list[str]:
        """See `Transport.listen`."""
        parsed = [parse_address(address) for address in addresses]
        return [await self._serve(address) for address in parsed]

    async def _serve(self, address: UnixAddress | TcpAddress) -> str:
        loop = asyncio.get_running_loop()
        if isinstance(address, UnixAddress):
            listener = self._bind_unix(address)
            self._servers.append(await loop.create_unix_server(self._peer, sock=listener, backlog=_BACKLOG))
            return str(address)
        try:
            server = await loop.create_server(self._peer, address.host, address.port, backlog=_BACKLOG)
        except OSError as error:
            raise AddressError(f"{address}: cannot listen there: {error.strerror}") from error
        self._servers.append(server)
        return str(TcpAddress(address.host, server.sockets[0].getsockname()[1]))

    def _bind_unix(self, address: UnixAddress) -> socket.socket:
        claim_unix_path(address.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with SocketUmask():
                listener.bind(str(address.path))
        except OSError as error:
            listener.close()
            raise AddressError(f"{address}: cannot listen there: {error.strerror}") from error
        self._files.append(SocketFile.of(address.path))
        return listener

    def _peer(self) -> asyncio.Protocol:
        if len(self._peers) >= _MAX_CONNECTIONS:
            self.stats.errors["too_many_connections"] += 1
            return _Refusal()
        peer = Peer(
            self._application,
            self._limits,
            self.stats,
            self._entered,
            self._left,
            _PREFACE_SECONDS,
            _STALL_SECONDS,
        )
        return cast("asyncio.Protocol", peer)

    def _entered(self, peer: Peer) -> None:
        self._peers.add(peer)
        self._empty.clear()
        self.stats.connections_open += 1

    def _left(self, peer: Peer) -> None:
        self._peers.discard(peer)
        self.stats.connections_open -= 1
        if not self._peers:
            self._empty.set()

    async def drain(self, timeout_s: float) -> None:
        """See `Transport.drain`. Streams that do not end in time are ended in order, with status OK."""
        for server in self._servers:
            server.close()
        for file in self._files:
            file.remove()
        self._context.drain()
        for peer in list(self._peers):
            peer.drain()
        if await self._emptied(timeout_s):
            return
        for peer in list(self._peers):
            peer.finish()
        if await self._emptied(CLOSE_SECONDS):
            return
        for peer in list(self._peers):
            peer.abort()
        await self._empty.wait()

    async def _emptied(self, timeout_s: float) -> bool:
        try:
            # Not wait_for(): before Python 3.12 it loses a cancellation that meets the event.
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True


class _Refusal(asyncio.Protocol):
    """Closes a connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
