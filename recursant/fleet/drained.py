"""When a worker that drains may be stopped. Pure."""

from dataclasses import dataclass
from typing import Final

from recursant.fleet.isolation import LONGEST_DRAIN_S, Phase
from recursant.fleet.worker import WorkerRecord, WorkerStatus

# Every process has heard of a drain by then (they ask four times a second), and what was on its way has arrived.
# Seconds.
SETTLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a drain is.

    Attributes:
        draining: it gets nothing new.
        running: requests that run there, as it reports; None before its first report.
        waiting: requests that wait there, as it reports.
        in_flight: requests of ours that are there; None where no gateway could be asked.
        safe_to_stop: nothing is lost if it is stopped now.
        text: what is so, or is waited for, in words.
    """

    draining: bool
    running: int | None
    waiting: int | None
    in_flight: int | None
    safe_to_stop: bool
    text: str


def progress(record: WorkerRecord, in_flight: int | None) -> Progress:
    """How far the drain of a worker is.

    Args:
        record: with its standing.
        in_flight: requests that the gateways have there.
    """
    state = record.state
    running = state.running_requests if state.sequence else None
    waiting = state.waiting_requests if state.sequence else None
    said_so = record.status is WorkerStatus.DRAINING
    ordered = record.standing is not None and record.standing.phase is Phase.DRAINING
    draining = said_so or ordered
    left = (running or 0) + (waiting or 0) + (in_flight or 0)

    def found(text: str, *, safe: bool = False) -> Progress:
        return Progress(draining, running, waiting, in_flight, safe, text)

    if not draining:
        return found("it takes requests: it does not drain")
    if record.status is WorkerStatus.MISSING:
        return found("it reports no longer: nothing is known of what runs there")
    if left:
        return found(_counted(running or 0, waiting or 0, in_flight))
    if record.last_beat is None:
        return found("it has not reported yet")
    if record.standing is not None and ordered:
        began = record.standing.isolation.until_s - LONGEST_DRAIN_S
        # A report that came before routing stopped everywhere proves nothing.
        if record.last_beat - began < SETTLE_S:
            return found("nothing runs there; waiting for what may be on its way")
    return found("nothing runs there any more: it is safe to stop", safe=True)


def _counted(running: int, waiting: int, in_flight: int | None) -> str:
    ours = "" if in_flight is None else f", {in_flight} of the gateway's"
    return f"{running} running, {waiting} waiting{ours}"
