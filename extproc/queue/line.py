"""A process's way to the owner of its host's queue, whoever that is just now: itself, or another one over a socket."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from extproc.gateway import Gateway
from extproc.queue.board import Board
from extproc.queue.messages import Enter, Freed, Hello, Reply, Request
from extproc.queue.office import Office
from extproc.queue.places import GatewayPlaces
from extproc.queue.pools import Pools
from extproc.queue.wire import Wire
from extproc.transports.address import SocketUmask
from recursant.admission.queue import HoldQueue
from recursant.fleet.shared_file import SharedFileError
from recursant.routing.need import Need

# How often a process writes that it does not hang, and looks after the owner. A dead owner is noticed at once.
TICK_SECONDS: Final = 0.1
# Who is turned away comes again no sooner than this, and with the next tick at the latest.
_RETRY_SECONDS: Final = 0.01
_BACKLOG: Final = 128

_log = logging.getLogger(__name__)


class QueueLine:
    """The `Line` of a process.

    Args:
        path: of the board; the sockets are beside it.
        process: which of them this is, from 1.
        board: this process's part of it.
        gateway: finds places while this process is the owner.
        limits: how many may wait, and what waiting is worth.
        freed: how many places were given back on this host, ever.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        path: Path,
        process: int,
        board: Board,
        gateway: Gateway,
        limits: tuple[int, float],
        *,
        freed: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._process = process
        self._board = board
        self._places = GatewayPlaces(gateway)
        self._pools = Pools(gateway.table)
        self._limits = limits
        self._freed = freed
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._office: Office | None = None
        # The way to another process's office, and whose.
        self._wire: Wire | None = None
        self._follows = 0
        self._connecting: asyncio.Task[None] | None = None
        self._tried_s = -_RETRY_SECONDS
        self._replies: list[Reply] = []
        self._requests: list[Request] = []
        self._turn: asyncio.Handle | None = None
        self._freed_here = False
        self._timer: asyncio.TimerHandle | None = None
        self._answered: Callable[[Reply, float], None] = lambda _reply, _now: None
        self._waiting: Callable[[], list[Enter]] = list

    def attach(self, answered: Callable[[Reply, float], None], waiting: Callable[[], list[Enter]]) -> None:
        """Who gets the replies, and says who waits; before `running`."""
        self._answered = answered
        self._waiting = waiting

    # --- `Line` ---

    def waited_for(self, need: Need) -> bool:
        """See `Line`."""
        if self._board.quiet():
            return False
        return self._board.waited_for(self._pools.columns((need.family, need.model, need.exclusive)))

    def send(self, message: Request) -> None:
        """See `Line`."""
        if self._office is not None:
            self._requests.append(message)
            self._soon()
        elif self._wire is not None:
            self._wire.send(message)

    def freed(self) -> None:
        """See `Line`."""
        if not self._freed_here and not self._board.quiet():
            self._freed_here = True
            self._soon()

    def reported(self) -> None:
        """See `Line`."""
        if self._office is not None:
            self._office.reported()

    def set_limits(self, capacity: int, ageing_s: float) -> None:
        """See `Line`."""
        self._limits = (capacity, ageing_s)
        if self._office is not None:
            self._office.set_limits(capacity, ageing_s)

    # --- its life ---

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Find the owner, or be it, until the end; then leave nothing behind.

        Raises:
            SharedFileError: the socket cannot be made.
        """
        name = self._socket_name(self._process)
        # The path of a folder may be too long for a socket in it; a number for it is not.
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folder = f"/proc/self/fd/{folder}"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            (self._path.parent / name).unlink(missing_ok=True)
            with SocketUmask():
                listening.bind(f"{self._folder}/{name}")
            server = await self._loop.create_unix_server(self._accept, sock=listening, backlog=_BACKLOG)
        except OSError as error:
            listening.close()
            os.close(folder)
            raise SharedFileError(f"cannot listen on {self._path.parent / name}: {error.strerror}") from error
        try:
            self._tick()
            yield
        finally:
            for handle in (self._timer, self._turn):
                if handle is not None:
                    handle.cancel()
            if self._connecting is not None:
                self._connecting.cancel()
                await asyncio.gather(self._connecting, return_exceptions=True)
            if self._wire is not None:
                self._wire.close()
            # No longer the owner by the time that the others hear of it.
            self._board.resign()
            if self._office is not None:
                self._office.close()
            server.close()
            await server.wait_closed()
            (self._path.parent / name).unlink(missing_ok=True)
            os.close(folder)
            self._board.close()

    # --- `Listener`, of connections to our office and of ours to another ---

    def received(self, wire: Wire, message: Request | Reply) -> None:
        """See `Listener`."""
        if wire is self._wire:
            self._answered(message, self._clock())  # type: ignore[arg-type]
        elif self._still_owner() and self._office is not None:
            self._office.received(wire, message)
        else:
            wire.close()

    def lost(self, wire: Wire) -> None:
        """See `Listener`."""
        if wire is self._wire:
            self._wire = None
            self._follow()
        elif self._still_owner() and self._office is not None:
            self._office.lost(wire)

    # --- inside ---

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)
        self._board.touch(self._clock())
        self._follow()
        if self._office is not None:
            # Whatever nobody told of: a process that hangs no more, a place that was granted in vain.
            self._office.look()

    def _follow(self) -> None:
        """Be where the owner is."""
        self._still_owner()
        left = self._board.waiting()
        owner = self._board.settle(self._clock())
        if owner == self._process:
            if self._office is None:
                self._become_owner(gather=left > 0)
        elif self._wire is None or self._follows != owner:
            if self._wire is not None:
                self._wire.close()
                self._wire = None
            now = self._clock()
            if self._connecting is None and now - self._tried_s >= _RETRY_SECONDS:
                self._tried_s = now
                self._connecting = self._loop.create_task(self._connect(owner))

    def _become_owner(self, *, gather: bool) -> None:
        _log.info("this process owns the queue")
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._office = Office(
            self._process,
            self._board,
            self._places,
            self._pools,
            HoldQueue(*self._limits),
            freed=self._freed,
            clock=self._clock,
            answer=self._answer,
            gather=gather,
        )
        for enter in self._waiting():
            self.send(enter)

    def _still_owner(self) -> bool:
        """Whether we are; another process is after we hung for a while."""
        if self._office is not None and not self._board.owned:
            _log.warning("another process owns the queue: this one did not move for a while")
            office, self._office = self._office, None
            self._requests.clear()
            office.close()
        return self._office is not None

    async def _connect(self, owner: int) -> None:
        try:
            path = f"{self._folder}/{self._socket_name(owner)}"
            await self._loop.create_unix_connection(lambda: Wire(self, self._opened), path)
            self._follows = owner
        except OSError as error:
            # It may be starting, or ending; the next tick tries again, wherever the owner is then.
            _log.debug("process %d does not take our requests: %s", owner, error)
        finally:
            self._connecting = None

    def _opened(self, wire: Wire) -> None:
        if self._office is not None:
            # It took so long that we are the owner now.
            wire.close()
            return
        self._wire = wire
        wire.send(Hello(self._process))
        for enter in self._waiting():
            wire.send(enter)

    def _accept(self) -> Wire:
        return Wire(self)

    def _answer(self, reply: Reply) -> None:
        self._replies.append(reply)
        self._soon()

    def _soon(self) -> None:
        if self._turn is None:
            self._turn = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        """Carry what this process says to itself, and the news that it gave places back."""
        self._turn = None
        if self._freed_here:
            self._freed_here = False
            self.send(Freed())
        requests, self._requests = self._requests, []
        for request in requests:
            if self._still_owner() and self._office is not None:
                self._office.own(request)
        replies, self._replies = self._replies, []
        now = self._clock()
        for reply in replies:
            self._answered(reply, now)

    def _socket_name(self, process: int) -> str:
        return f"{self._path.name}-{process}"
