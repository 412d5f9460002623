"""Taking a worker out by hand, and letting it back (SPEC F1)."""

import logging
import math
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recursant.api.body import read_json
from recursant.api.dependencies import Fleet, IsolationControl
from recursant.api.errors import ProblemError
from recursant.fleet.evidence import MAX_TEXT_CHARS, Reason
from recursant.fleet.isolation import Phase, Standing
from recursant.problems import ApiProblem, bad_request, unavailable
from recursant.store.codec import MAX_ID_CHARS
from recursant.store.exchange import StoreError

DEFAULT_FOR_S: Final = 600.0
_DAY_S: Final = 86_400.0
_BY: Final = "operator"

_log = logging.getLogger(__name__)


class IsolationInfo(BaseModel):
    """A worker's isolation."""

    # "spared": it should be out, but too much of the fleet is already.
    phase: Phase
    reason: Reason
    # The evidence, with the last error's own words.
    text: str
    # Seconds until it is over; 0 on trial.
    left_s: float
    by: str


class Order(BaseModel):
    """The body of an isolation by hand."""

    model_config = ConfigDict(extra="forbid")

    for_s: Annotated[float, Field(gt=0, le=_DAY_S)] = DEFAULT_FOR_S
    reason: Annotated[str, Field(max_length=MAX_TEXT_CHARS)] = ""


WorkerIdPath = Annotated[str, Path(max_length=MAX_ID_CHARS)]


def isolation_info(standing: Standing | None, now: float) -> IsolationInfo | None:
    """How the API shows a worker's isolation."""
    if standing is None:
        return None
    isolation = standing.isolation
    return IsolationInfo(
        phase=standing.phase,
        reason=isolation.reason,
        text=isolation.text,
        left_s=math.ceil(max(0.0, isolation.until_s - now)),
        by=isolation.by,
    )


def worker_not_found(worker_id: str) -> ProblemError:
    """404, with where to look."""
    message = f"no worker {worker_id!r}; GET /v1/workers lists those that exist"
    return ProblemError(ApiProblem(404, message, "not_found_error", "worker_id", "worker_not_found"))


def router(fleet: Fleet, control: IsolationControl, clock: Callable[[], float]) -> APIRouter:
    """`POST` and `DELETE /v1/workers/{id}/isolation`."""
    routes = APIRouter(tags=["isolation"])
    body = {
        "requestBody": {"content": {"application/json": {"schema": Order.model_json_schema()}}},
    }

    def info(worker_id: str) -> IsolationInfo | None:
        record = fleet.records.get(worker_id)
        return isolation_info(None if record is None else record.standing, clock())

    @routes.post("/v1/workers/{worker_id:path}/isolation", openapi_extra=body)
    async def isolate(worker_id: WorkerIdPath, request: Request) -> IsolationInfo | None:
        """Take a worker out for a time. What it works on goes on; it gets nothing new, a restart changes nothing."""
        order = _order(await read_json(request))
        if worker_id not in fleet.records:
            raise worker_not_found(worker_id)
        try:
            await control.isolate(worker_id, order.for_s, order.reason, by=_BY)
        except StoreError as error:
            raise ProblemError(redis_away(error)) from error
        _log.info("worker %s was isolated by hand for %g s: %s", worker_id, order.for_s, order.reason)
        return info(worker_id)

    @routes.delete("/v1/workers/{worker_id:path}/isolation")
    async def release(worker_id: WorkerIdPath) -> IsolationInfo | None:
        """Let a worker back at once, whatever took it out. Releasing one that is not isolated changes nothing."""
        if worker_id not in fleet.records:
            raise worker_not_found(worker_id)
        try:
            await control.release(worker_id, by=_BY)
        except StoreError as error:
            raise ProblemError(redis_away(error)) from error
        _log.info("worker %s was released by hand", worker_id)
        return info(worker_id)

    return routes


def _order(data: Any) -> Order:
    try:
        return Order.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"]) or "body"
        raise ProblemError(bad_request(f"{param}: {first['msg']}", param=param)) from None


def redis_away(error: StoreError) -> ApiProblem:
    """503: an operator's word has to reach everybody."""
    return unavailable(f"Redis is away, so the others cannot be told; nothing was changed: {error}", code="redis_down")
