"""The ext_proc transport that speaks HTTP/2 itself (extproc.http2), on asyncio: the default.

gRPC's library costs ten times what the request's own work costs, for each stream (DESIGN §5).
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final, cast

from extproc.grpc.context import ServerContext
from extproc.grpc.server import application
from extproc.http2.connection import Application, Connection
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

# Connections at once. Envoy opens one for each of its worker threads.
_MAX_CONNECTIONS: Final = 1_024
# Whole messages' worth of incomplete ones, of all streams together.
_BUFFERED_MESSAGES: Final = 16
# Frames worked on before what they produced is written: an answer does not wait for the end of a long read.
_FRAMES_PER_TURN: Final = 64
# Bytes that the transport may hold before DATA is held back and reading stops.
_WRITE_BUFFER_BYTES: Final = 262_144
# Seconds for a new connection to prove that it speaks HTTP/2.
_PREFACE_SECONDS: Final = 10.0
# Seconds for a client that takes nothing, before it is cut off; also for the last bytes of a closing connection.
_STALL_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 2.0
_BACKLOG: Final = 1_024
# Seconds of silence before the kernel probes a TCP peer, between probes, and probes without an answer: a host that
# vanished releases its streams within half a minute.
_KEEPALIVE: Final = (15, 5, 3)

_log = logging.getLogger(__name__)


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
        self._peers: set[_Peer] = set()
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
        return _Peer(self._application, self._limits, self.stats, self._entered, self._left)

    def _entered(self, peer: "_Peer") -> None:
        self._peers.add(peer)
        self._empty.clear()
        self.stats.connections_open += 1

    def _left(self, peer: "_Peer") -> None:
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
        if await self._emptied(_CLOSE_SECONDS):
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


class _Peer(asyncio.Protocol):
    """One connection: moves bytes between asyncio and a `Connection`."""

    def __init__(
        self,
        app: Application,
        limits: Limits,
        stats: TransportStats,
        entered: Callable[["_Peer"], None],
        left: Callable[["_Peer"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(app, limits, self._wake)
        self._stats = stats
        self._entered = entered
        self._left = left
        self._transport: asyncio.Transport
        # Input is left over for the next turn.
        self._busy = False
        # The transport's buffer is full.
        self._full = False
        self._reading = True
        self._closing = False
        self._deadline: asyncio.TimerHandle | None = None

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Stream servers make stream transports; uvloop's do not derive from asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        _keep_alive(transport.get_extra_info("socket"))
        self._entered(self)
        self._connection.start()
        self._cut_off_in(_PREFACE_SECONDS, "no_preface")
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._connection.receive(data)
        if not self._busy:
            self._work()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _: Exception | None) -> None:
        self._forget_deadline()
        self._connection.lost()
        self._left(self)

    def pause_writing(self) -> None:
        self._full = True
        self._connection.pause()
        # A closing connection has a shorter deadline already.
        if not self._closing:
            self._cut_off_in(_STALL_SECONDS, "stalled")
        self._steer()

    def resume_writing(self) -> None:
        self._full = False
        if not self._closing:
            self._forget_deadline()
        self._connection.resume()
        if self._busy:
            self._loop.call_soon(self._go_on)
        self._steer()

    # --- draining ---

    def drain(self) -> None:
        """Ask the client to leave. One that has not even greeted would not answer."""
        if self._connection.established:
            self._connection.drain()
            self._flush()
        elif not self._closing:
            self._close()

    def finish(self) -> None:
        """End what still runs, and close."""
        self._connection.finish()
        self._flush()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    # --- inside ---

    def _work(self) -> None:
        connection = self._connection
        fresh = not connection.established
        self._busy = connection.run(self._loop.time(), _FRAMES_PER_TURN)
        if fresh and connection.established:
            self._forget_deadline()
        self._flush()
        if self._busy and not self._full:
            self._loop.call_soon(self._go_on)
        self._steer()

    def _go_on(self) -> None:
        # The buffer may have filled since; then it goes on when there is room again.
        if self._busy and not self._full and not self._closing:
            self._work()

    def _wake(self) -> None:
        """A late answer: written with all others of this turn of the loop."""
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._closing:
            return
        connection = self._connection
        output = connection.take()
        if output:
            self._transport.write(output)
        if connection.closed or connection.drained:
            self._close()

    def _close(self) -> None:
        self._closing = True
        failure = self._connection.failure
        if failure is not None:
            self._stats.errors[failure.code.name.lower()] += 1
            _log.info("a connection ends: %s", failure)
        self._transport.close()
        self._cut_off_in(_CLOSE_SECONDS, None)

    def _steer(self) -> None:
        """Read only while there is room for what the input produces, and none of it waits."""
        if self._closing:
            return
        wanted = not self._busy and not self._full
        if wanted and not self._reading:
            self._transport.resume_reading()
        elif self._reading and not wanted:
            self._transport.pause_reading()
        self._reading = wanted

    def _cut_off_in(self, seconds: float, kind: str | None) -> None:
        self._forget_deadline()
        self._deadline = self._loop.call_later(seconds, self._cut_off, kind)

    def _cut_off(self, kind: str | None) -> None:
        if kind is not None:
            self._stats.errors[kind] += 1
        self._transport.abort()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _keep_alive(peer: socket.socket) -> None:
    """Let the kernel notice a TCP peer that vanished; a Unix peer cannot."""
    if peer.family == socket.AF_UNIX:
        return
    idle, interval, probes = _KEEPALIVE
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", probes)):
        option = getattr(socket, name, None)  # not on every platform
        if option is not None:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)
