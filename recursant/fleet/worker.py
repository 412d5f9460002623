"""One worker as the control plane sees it: what it said last, and whether it may be used."""

from dataclasses import dataclass
from enum import StrEnum

from recursant.fleet.isolation import Phase, Standing
from recursant.v1.worker_state_pb2 import WorkerState


class WorkerStatus(StrEnum):
    """Whether a worker takes requests, judged by the reader."""

    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    ISOLATED = "isolated"
    # No heartbeat for three of its own intervals.
    MISSING = "missing"
    # Its host name has no address now.
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a worker serves."""

    name: str
    # Empty where neither the worker nor the patterns name one.
    family: str
    # Prompt and output together, in tokens.
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """The reader's view of one worker. A new record replaces the old one at every change.

    Attributes:
        worker_id: its stable name.
        status: whether it may be used.
        endpoint: `ip:port` as Envoy dials it (`[v6]:port` for IPv6); None while unresolved.
        models: what it serves, families filled in.
        state: its last report; for a static worker never heard of, what the configuration says.
        last_beat: the reader's monotonic clock, in seconds, when the last beat was seen; None before the first.
        static: named by the configuration.
        standing: its isolation or trial; None for most.
    """

    worker_id: str
    status: WorkerStatus
    endpoint: str | None
    models: tuple[Model, ...]
    state: WorkerState
    last_beat: float | None
    static: bool = False
    standing: Standing | None = None

    @property
    def on_trial(self) -> bool:
        """Was it isolated, and gets one request at a time until it has shown that it works?"""
        return self.standing is not None and self.standing.phase is Phase.TRIAL
