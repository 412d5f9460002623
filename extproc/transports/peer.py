"""One connection of the lean transport on asyncio's side."""

import asyncio
import socket
from collections.abc import Callable
from logging import getLogger
from typing import Final, cast

from extproc.http2.connection import Application, Connection
from extproc.http2.limits import Limits
from extproc.transports.base import TransportStats

# Frames worked on before what they produced is written: an answer does not wait for the end of a long read.
FRAMES_PER_TURN: Final = 64
# Bytes that the transport may hold before DATA is held back and reading stops.
_WRITE_BUFFER_BYTES: Final = 262_144
# Seconds for the last bytes of a closing connection.
CLOSE_SECONDS: Final = 2.0
# Seconds of silence before the kernel probes a TCP peer, between probes, and probes without an answer: a host that
# vanished releases its streams within half a minute.
_KEEPALIVE: Final = (15, 5, 3)

_log = getLogger(__name__)


class Peer:
    """Moves bytes between asyncio and a `Connection`.

    An `asyncio.Protocol` in all but name: it does not derive from it, as a compiled class cannot.

    Args:
        app: what the connection serves.
        limits: bounds on what the client may do.
        stats: the transport's counters.
        entered, left: called as the connection begins and when it is gone.
        preface_s: for a new connection to prove that it speaks HTTP/2.
        stall_s: for a client that takes nothing, before it is cut off.
    """

    def __init__(
        self,
        app: Application,
        limits: Limits,
        stats: TransportStats,
        entered: Callable[["Peer"], None],
        left: Callable[["Peer"], None],
        preface_s: float,
        stall_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = Connection(app, limits, self._wake)
        self._stats = stats
        self._entered = entered
        self._left = left
        self._preface_s = preface_s
        self._stall_s = stall_s
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
        """See `asyncio.Protocol`."""
        # Stream servers make stream transports; uvloop's do not derive from asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        _keep_alive(transport.get_extra_info("socket"))
        self._entered(self)
        self._connection.start()
        self._cut_off_in(self._preface_s, "no_preface")
        self._flush()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._connection.receive(data)
        if not self._busy:
            self._work()

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`. A client that sends no more is gone."""
        return False

    def connection_lost(self, _: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._forget_deadline()
        self._connection.lost()
        self._left(self)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._full = True
        self._connection.pause()
        # A closing connection has a shorter deadline already.
        if not self._closing:
            self._cut_off_in(self._stall_s, "stalled")
        self._steer()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
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
        self._busy = connection.run(self._loop.time(), FRAMES_PER_TURN)
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
        self._cut_off_in(CLOSE_SECONDS, None)

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
