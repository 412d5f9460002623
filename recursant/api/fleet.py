"""The fleet as the control plane sees it, for people and the command line."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel

from recursant.api.dependencies import Fleet
from recursant.api.isolation import IsolationInfo, isolation_info, worker_not_found
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.store.codec import MAX_ID_CHARS, state_to_dict
from recursant.v1.worker_state_pb2 import WorkerState


class ServedModel(BaseModel):
    """A model and the family that agents know it by; empty where none is known."""

    name: str
    family: str
    max_model_len: int | None


class Load(BaseModel):
    """What a worker said last about its load. None: it cannot know, or did not say."""

    running_requests: int
    waiting_requests: int
    queue_wait_ms: float | None
    token_rate: float | None
    kv_cache_usage: float | None
    free_vram_mb: int | None
    capacity_tokens: int | None


class Worker(BaseModel):
    """A worker in a list."""

    id: str
    status: WorkerStatus
    # Where Envoy dials it; None while its host name has no address.
    endpoint: str | None
    static: bool
    exclusive: bool
    engine: str
    models: list[ServedModel]
    # Why it is out, on trial, or should be; None for most.
    isolation: IsolationInfo | None
    # None before its first report.
    load: Load | None
    # Seconds, by this process's clock; None where no report was seen since it started.
    last_beat_age_s: float | None


class Workers(BaseModel):
    """All workers, by id."""

    workers: list[Worker]


class WorkerDetail(Worker):
    """A worker with its whole last report."""

    report: dict[str, Any]


def router(fleet: Fleet, clock: Callable[[], float]) -> APIRouter:
    """`GET /v1/workers` and `/v1/workers/{id}`."""
    routes = APIRouter(tags=["fleet"])

    @routes.get("/v1/workers")
    async def workers() -> Workers:
        """Every worker that the control plane knows."""
        now = clock()
        records = sorted(fleet.records.values(), key=lambda record: record.worker_id)
        return Workers(workers=[Worker(**_fields(record, now)) for record in records])

    # Ids may hold a slash.
    @routes.get("/v1/workers/{worker_id:path}")
    async def worker(worker_id: Annotated[str, Path(max_length=MAX_ID_CHARS)]) -> WorkerDetail:
        """One worker, with all that it said last."""
        record = fleet.records.get(worker_id)
        if record is None:
            raise worker_not_found(worker_id)
        return WorkerDetail(**_fields(record, clock()), report=state_to_dict(record.state))

    return routes


def _fields(record: WorkerRecord, now: float) -> dict[str, Any]:
    state = record.state
    return {
        "id": record.worker_id,
        "status": record.status,
        "endpoint": record.endpoint,
        "static": record.static,
        "exclusive": state.exclusive,
        "engine": state.engine,
        "models": [
            ServedModel(name=model.name, family=model.family, max_model_len=model.max_model_len)
            for model in record.models
        ],
        "isolation": isolation_info(record.standing, now),
        # Every report counts from 1; what the configuration says of a worker has no number.
        "load": _load(state) if state.sequence else None,
        "last_beat_age_s": None if record.last_beat is None else round(max(0.0, now - record.last_beat), 3),
    }


def _load(state: WorkerState) -> Load:
    def known(field: str) -> Any:
        return getattr(state, field) if state.HasField(field) else None

    return Load(
        running_requests=state.running_requests,
        waiting_requests=state.waiting_requests,
        queue_wait_ms=known("queue_wait_ms"),
        token_rate=known("token_rate"),
        kv_cache_usage=known("kv_cache_usage"),
        free_vram_mb=known("free_vram_mb"),
        capacity_tokens=known("capacity_tokens"),
    )
