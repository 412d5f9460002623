"""One worker in the registry: its last report and the marks of its liveness."""

from enum import Enum
from typing import Final

from recursant.fleet.families import FamilyResolver
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from recursant.v1.worker_state_pb2 import LoadedModel, WorkerPhase, WorkerState

_STATUS_OF_PHASE: Final = {
    WorkerPhase.WORKER_PHASE_WARMING: WorkerStatus.WARMING,
    WorkerPhase.WORKER_PHASE_READY: WorkerStatus.READY,
    WorkerPhase.WORKER_PHASE_DRAINING: WorkerStatus.DRAINING,
    WorkerPhase.WORKER_PHASE_ISOLATED: WorkerStatus.ISOLATED,
    WorkerPhase.WORKER_PHASE_UNREACHABLE: WorkerStatus.MISSING,
}


class Link(Enum):
    """The reader's link to Redis."""

    # Not tried yet.
    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"


class Entry:
    """What the registry keeps of one worker. Times are the reader's monotonic clock, durations too, in seconds.

    Attributes:
        state: its last report; of a configured worker before the first, what the configuration says.
        reported: a report was seen, if only in a load.
        assumed: it never reported, and is taken to be ready all the same.
        window: the silence after which it is missing.
        heard_at: when its last report was seen.
        last_beat: the same, unless that report was in the first load, which may be old.
        missing_since: when it was found missing; None while it is not.
        superseded: the incarnation before this one.
        endpoint: where Envoy dials it; None while its name has no address.
    """

    __slots__ = (
        "_models",
        "_models_said",
        "assumed",
        "endpoint",
        "heard_at",
        "last_beat",
        "missing_since",
        "reported",
        "state",
        "static",
        "superseded",
        "window",
        "worker_id",
    )

    def __init__(self, state: WorkerState, *, static: bool, window: float) -> None:
        self.worker_id = state.id
        self.static = static
        self.state = state
        self.reported = False
        self.assumed = False
        self.window = window
        self.heard_at = 0.0
        self.last_beat: float | None = None
        self.missing_since: float | None = None
        self.superseded = ""
        self.endpoint: str | None = None
        self._models: tuple[Model, ...] = ()
        self._models_said: list[LoadedModel] | None = None

    def take(self, state: WorkerState, window: float, now: float) -> None:
        """Take a report: it replaces everything that was known."""
        if self.reported and state.incarnation != self.state.incarnation:
            self.superseded = self.state.incarnation
        self.state = state
        self.reported = True
        self.assumed = False
        self.window = window
        self.heard_at = now
        self.missing_since = None

    def forget_families(self) -> None:
        """Find the families of its models again, for the next record."""
        self._models_said = None

    def record(self, families: FamilyResolver) -> WorkerRecord:
        """How the rest of the product sees it."""
        return WorkerRecord(
            worker_id=self.worker_id,
            status=self._status(),
            endpoint=self.endpoint,
            models=self._resolved_models(families),
            state=self.state,
            last_beat=self.last_beat,
            static=self.static,
        )

    def _status(self) -> WorkerStatus:
        if self.missing_since is not None:
            return WorkerStatus.MISSING
        if self.endpoint is None:
            return WorkerStatus.UNRESOLVED
        if not self.reported:
            return WorkerStatus.READY if self.assumed else WorkerStatus.WARMING
        return _STATUS_OF_PHASE[self.state.phase]

    def _resolved_models(self, families: FamilyResolver) -> tuple[Model, ...]:
        said = list(self.state.models)
        # Reports repeat them five times a second; the patterns are only asked when they change.
        if said != self._models_said:
            self._models_said = said
            self._models = tuple(
                Model(
                    model.name,
                    model.family or families.family_of(model.name) or "",
                    model.max_model_len if model.HasField("max_model_len") else None,
                )
                for model in said
            )
        return self._models
