"""A worker's heartbeats: its state, every 200 ms, for as long as it lives (SPEC B2)."""

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final

from recursant.store.backoff import Backoff
from recursant.store.quiet_log import QuietLog
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState
from recursant.worker.senders import HttpSender, RedisSender, Sender, SendError

DEFAULT_INTERVAL_MS: Final = 200
# After a failure the next try comes within this time, well inside the grace period of the readers. Seconds.
RETRY_LONGEST_S: Final = 0.5
# The last word of a worker takes no longer than this. Seconds.
FAREWELL_S: Final = 1.0

_log = logging.getLogger(__name__)


class Reporter:
    """Reports one worker's state until it is cancelled, whatever becomes of the control plane meanwhile."""

    def __init__(
        self,
        read_state: Callable[[], WorkerState],
        *,
        redis_url: str | None = None,
        api_url: str | None = None,
        interval_ms: int = DEFAULT_INTERVAL_MS,
    ) -> None:
        """Report to Redis, or to the control API where only its URL is given.

        Args:
            read_state: the state now; called once a beat. Sequence and interval are filled in here, and the
                incarnation: of this process, and of the engine's where the state names one.
            redis_url: of the fleet's Redis.
            api_url: of the control API, "http://host:port".
            interval_ms: between two reports.

        Raises:
            ValueError: neither URL is given, or the one to use is none.
        """
        if redis_url:
            self._sender: Sender = RedisSender(redis_url)
        elif api_url:
            self._sender = HttpSender(api_url)
        else:
            raise ValueError("give a redis_url or an api_url to report to")
        self._read_state = read_state
        self._interval_ms = interval_ms
        # New with every start of the process, so that readers count it afresh.
        self._incarnation = uuid.uuid4().hex
        self._sequence = 0
        self._announced = False
        self._failing = False
        self._invalid = QuietLog(_log)

    async def run(self) -> None:
        """Report until cancelled, then say STOPPED, if that can be done within a second."""
        interval = self._interval_ms / 1_000
        backoff = Backoff(interval, max(interval, RETRY_LONGEST_S))
        clock = asyncio.get_running_loop().time
        due = clock()
        state: WorkerState | None = None
        try:
            while True:
                state = self._read_state()
                if await self._send(state):
                    backoff.reset()
                    # Beats that were missed are not made up for.
                    due = max(due + interval, clock())
                else:
                    due = clock() + backoff.next()
                await asyncio.sleep(due - clock())
        except asyncio.CancelledError:
            if state is not None:
                await self._say_farewell(state)
            raise
        finally:
            await self._sender.close()

    async def _send(self, state: WorkerState) -> bool:
        """Send one report; False when it may not have arrived."""
        try:
            await self._sender.send(self._stamp(state))
        except SendError as error:
            if not self._failing:
                _log.warning("cannot report to the control plane, trying on: %s", error)
            self._failing = True
            return False
        except ValueError as error:
            self._invalid.warning("cannot report this state: %s", error)
            return False
        self._announced = True
        if self._failing:
            _log.info("reporting to the control plane again")
        self._failing = False
        return True

    async def _say_farewell(self, state: WorkerState) -> None:
        stopped = WorkerState()
        stopped.CopyFrom(state)
        stopped.phase = WorkerPhase.WORKER_PHASE_STOPPED
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._send(stopped)
        except TimeoutError:
            _log.debug("no time to say farewell")

    def _stamp(self, state: WorkerState) -> WorkerState:
        self._sequence += 1
        stamped = WorkerState()
        stamped.CopyFrom(state)
        stamped.incarnation = f"{self._incarnation}-{state.incarnation}" if state.incarnation else self._incarnation
        stamped.sequence = self._sequence
        stamped.report_interval_ms = self._interval_ms
        # The first report tells Envoy the address, the second sends requests there.
        if not self._announced and stamped.phase == WorkerPhase.WORKER_PHASE_READY:
            stamped.phase = WorkerPhase.WORKER_PHASE_WARMING
        return stamped
