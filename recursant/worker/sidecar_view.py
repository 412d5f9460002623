"""What a sidecar says of the engine beside it, from what its scrapes found. Pure: the time is an argument."""

from enum import Enum, auto
from typing import Final

from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState

# A server that takes connections and does not answer is busy for this long, and broken after. Seconds.
PATIENCE_S: Final = 5.0
# When draining, the engine has to be idle for this long: what was on its way when routing stopped has arrived by then.
SETTLE_S: Final = 1.0


class Trouble(Enum):
    """Why a scrape found nothing."""

    # Nobody listens: the server has gone, or is not there yet.
    REFUSED = auto()
    # It takes the connection and does not answer in time.
    LATE = auto()
    # It answers otherwise than a healthy vLLM; one whose engine is dead says 503.
    WRONG = auto()


class SidecarView:
    """The engine as of the newest scrape.

    Args:
        bare: what is known of the worker before the first answer.
    """

    def __init__(self, bare: WorkerState) -> None:
        self._bare = bare
        self._last: WorkerState | None = None
        self._answered_at = 0.0
        self._trouble: Trouble | None = None
        self._broken = False
        self._deaths = 0
        self._drained_since: float | None = None
        self._drain_began: float | None = None

    # --- what happens ---

    def answered(self, state: WorkerState, now: float) -> None:
        """A scrape succeeded."""
        self._last = state
        self._answered_at = now
        self._trouble = None
        self._broken = False
        self._note_idle(now, idle=state.running_requests + state.waiting_requests == 0)

    def failed(self, trouble: Trouble, now: float) -> None:
        """A scrape failed."""
        self._trouble = trouble
        if trouble is Trouble.WRONG and self._last is not None and not self._broken:
            self._broken = True
            self._deaths += 1
        if trouble is not Trouble.LATE:
            self._note_idle(now, idle=trouble is Trouble.REFUSED)

    def drain(self, now: float) -> None:
        """Nothing new is to come here."""
        if self._drain_began is None:
            self._drain_began = now

    # --- what follows ---

    @property
    def in_flight(self) -> int:
        """Requests that the engine had at the newest answer."""
        return 0 if self._last is None else self._last.running_requests + self._last.waiting_requests

    def is_drained(self, now: float) -> bool:
        """Has everything ended since `drain`?"""
        return self._drained_since is not None and now - self._drained_since >= SETTLE_S

    def state(self, now: float) -> WorkerState:
        """The report at `now`, in seconds of the same clock."""
        state = WorkerState()
        state.CopyFrom(self._bare if self._last is None else self._last)
        if self._last is None or self._is_away(now):
            state.phase = WorkerPhase.WORKER_PHASE_WARMING
        if self._trouble is Trouble.REFUSED:
            # Whatever ran there runs no longer.
            state.running_requests = state.waiting_requests = 0
        if self._deaths:
            state.errors.other += self._deaths
            if self._broken:
                state.errors.last = "it answers /health or /metrics with an error"
        if self._drain_began is not None:
            state.phase = WorkerPhase.WORKER_PHASE_DRAINING
        return state

    def _is_away(self, now: float) -> bool:
        match self._trouble:
            case None:
                return False
            case Trouble.LATE:
                return now - self._answered_at > PATIENCE_S
            case _:
                return True

    def _note_idle(self, now: float, *, idle: bool) -> None:
        if self._drain_began is None or not idle:
            self._drained_since = None
        elif self._drained_since is None:
            self._drained_since = now
