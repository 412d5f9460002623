"""The owner's side of the queue in one process, for as long as it owns it: its clients, and what all can see."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from extproc.holding import REPORTS_TOGETHER_S
from extproc.queue.board import Board
from extproc.queue.messages import Hello, Reply, Request
from extproc.queue.owner import Entry, QueueOwner
from extproc.queue.place import Places
from extproc.queue.pools import Pools
from extproc.queue.wire import Wire
from recursant.admission.queue import HoldQueue

# How long those who waited at the last owner have to come to this one, before anybody gets a place.
GATHER_SECONDS: Final = 0.05

_log = logging.getLogger(__name__)


class Office:
    """Owns the queue, from construction until `close`.

    Args:
        process: the number of this one.
        board: where all see what is waited for.
        places: finds places.
        pools: tells which workers somebody waits for.
        queue: empty, with the limits that hold for the host.
        freed: how many places were given back on this host, ever.
        clock: monotonic seconds.
        answer: carries replies to requests of this process.
        gather: others waited at another owner.
    """

    def __init__(
        self,
        process: int,
        board: Board,
        places: Places,
        pools: Pools,
        queue: HoldQueue[Entry],
        *,
        freed: Callable[[], int],
        clock: Callable[[], float],
        answer: Callable[[Reply], None],
        gather: bool,
    ) -> None:
        self._process = process
        self._board = board
        self._pools = pools
        self._clock = clock
        self._answer = answer
        self._owner = QueueOwner(
            queue, places, self._send, freed=freed, hanging=lambda: board.hanging(clock()), changed=self._post
        )
        self._wires: dict[int, Wire] = {}
        self._process_of: dict[Wire, int] = {}
        self._early: list[tuple[int, Request]] | None = [] if gather else None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        if gather:
            # Newcomers shall not be faster than those who only come back.
            board.post(1, -1)
            self._opening: asyncio.TimerHandle | None = self._loop.call_later(GATHER_SECONDS, self._open)
        else:
            self._opening = None

    def own(self, message: Request) -> None:
        """This process says something."""
        self._take(self._process, message)

    def received(self, wire: Wire, message: Request | Reply) -> None:
        """See `Listener`."""
        if isinstance(message, Hello):
            if not self._board.knows(message.process):
                wire.close()
                return
            before = self._wires.get(message.process)
            if before is not None and before is not wire:
                self.lost(before)
                before.close()
            self._wires[message.process] = wire
            self._process_of[wire] = message.process
            return
        process = self._process_of.get(wire)
        if process is not None:
            self._take(process, message)  # type: ignore[arg-type]

    def lost(self, wire: Wire) -> None:
        """See `Listener`."""
        process = self._process_of.pop(wire, None)
        if process is None or self._wires.get(process) is not wire:
            return
        del self._wires[process]
        if self._early is not None:
            self._early = [(each, message) for each, message in self._early if each != process]
        self._owner.gone(process, self._clock())

    def reported(self) -> None:
        """Workers reported: look soon, together with what other reports bring."""
        if self._timer is None and self._owner.busy():
            self._timer = self._loop.call_later(REPORTS_TOGETHER_S, self.look)

    def look(self) -> None:
        """Somebody may be placed, or a worker may have come that is waited for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._early is None and self._owner.busy() and self._board.owned:
            self._owner.serve(self._clock())
            self._post()

    def set_limits(self, capacity: int, ageing_s: float) -> None:
        """See `HoldQueue.set_limits`."""
        self._owner.set_limits(capacity, ageing_s)

    def close(self) -> None:
        """Own the queue no more: everybody comes to the next owner."""
        for timer in (self._timer, self._opening):
            if timer is not None:
                timer.cancel()
        self._early = []
        self._owner.stop()
        for wire in self._wires.values():
            wire.close()
        self._board.post(0, 0)

    # --- inside ---

    def _take(self, process: int, message: Request) -> None:
        if self._early is not None:
            self._early.append((process, message))
        else:
            self._owner.receive(process, message, self._clock())

    def _open(self) -> None:
        """All that waited have come."""
        if not self._board.owned:
            # We hung just now: whoever came has gone on to another owner.
            return
        early, self._early = self._early or [], None
        _log.info("%d requests wait on here", self._owner.begin(early, self._clock()))
        self._post()

    def _send(self, process: int, reply: Reply) -> None:
        if process == self._process:
            self._answer(reply)
            return
        wire = self._wires.get(process)
        if wire is not None:
            wire.send(reply)

    def _post(self) -> None:
        if self._early is not None:
            return
        columns = 0
        for wanted in self._owner.wanted():
            columns |= self._pools.columns(wanted)
        self._board.post(len(self._owner), columns)
