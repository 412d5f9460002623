"""Couples one session with its gRPC call, and says in logs and counters what happens on it."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, Generic

from grpc import aio

from xds_server.metrics import Recorder
from xds_server.session import Request, Response, Session
from xds_server.snapshot import Snapshot
from xds_server.status import Event, Overdue, Pushed, Refused
from xds_server.traits import traits_of

# Names in a log line.
_MAX_LOGGED: Final = 5

_log = logging.getLogger(__name__)


class Stream(Generic[Request, Response]):
    """Nothing is queued: the writer asks the session when the call can take more.

    Args:
        session: what to say.
        context: gRPC's view of the call.
        recorder: counts what happens.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, session: Session[Request, Response], context: Any, recorder: Recorder, clock: Callable[[], float]
    ) -> None:
        self.session = session
        self._context = context
        self._recorder = recorder
        self._clock = clock
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()

    @property
    def node_id(self) -> str:
        """As the client calls itself."""
        return self.session.status(self._clock()).node_id

    def offer(self, snapshot: Snapshot) -> None:
        """There is something new to serve."""
        self.session.offer(snapshot)
        self._wake.set()

    def end(self) -> None:
        """Let `write` return once what it is sending is sent: a call that ends under a write ends with an error."""
        self._ending.set()
        self._wake.set()

    async def read(self) -> None:
        """Take requests until the client ends the stream.

        Raises:
            XdsError: the client is to be sent away.
        """
        known = False
        while (request := await self._context.read()) is not aio.EOF:
            self.session.receive(request, self._clock())
            if not known:
                known = True
                _log.info("%s client %r has come", self.session.protocol, self.node_id)
            self._report()
            self._wake.set()

    async def write(self) -> None:
        """Send responses until told to end."""
        while not self._ending.is_set():
            self._wake.clear()
            while not self._ending.is_set() and (response := self.session.next_response(self._clock())) is not None:
                self._report()
                await self._context.write(response)
            self._report()
            if self._ending.is_set():
                return
            deadline = self.session.wake_at()
            timeout = None if deadline is None else max(0.0, deadline - self._clock())
            # Not wait_for(): before Python 3.12 it loses a cancellation that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._wake.wait()

    def _report(self) -> None:
        for event in self.session.take_events():
            _say(event, self.node_id)
            match event:
                case Pushed():
                    self._recorder.pushed(event.type_url)
                case Refused():
                    self._recorder.refused(event.type_url)
                case Overdue():
                    self._recorder.overdue(event.type_url)


def _say(event: Event, node_id: str) -> None:
    label = traits_of(event.type_url).label
    match event:
        case Pushed(_, version, resources, removed):
            _log.debug("pushed %s %s to %r: %d resources, %d removed", label, version, node_id, resources, removed)
        case Refused(_, version, names, reason):
            some = ", ".join(names[:_MAX_LOGGED]) + (", ..." if len(names) > _MAX_LOGGED else "")
            _log.warning("%r refused %s %s (%s): %s", node_id, label, version, some, reason)
        case Overdue(_, version, waited_s):
            _log.warning("%r has not answered %s %s for %.1f s", node_id, label, version, waited_s)
