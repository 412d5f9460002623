"""Letting a worker finish what it has, so that it can be stopped without losing a request."""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recursant.api.body import read_json
from recursant.api.dependencies import Fleet, IsolationControl
from recursant.api.errors import ProblemError
from recursant.api.exposition import Part
from recursant.api.isolation import WorkerIdPath, redis_away, worker_not_found
from recursant.fleet.drained import progress
from recursant.fleet.evidence import MAX_TEXT_CHARS
from recursant.fleet.isolation import Phase
from recursant.fleet.worker import WorkerStatus
from recursant.problems import bad_request
from recursant.store.exchange import StoreError

_BY: Final = "operator"
# The gauge of the extproc services, of one worker.
_IN_FLIGHT: Final = re.compile(r'recursant_inflight_requests\{[^}]*worker="((?:[^"\\]|\\.)*)"[^}]*\} ([0-9.e+]+)')

_log = logging.getLogger(__name__)

ReadPeers = Callable[[], Awaitable[Sequence[Part]]]


class DrainOrder(BaseModel):
    """The body of a drain."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(max_length=MAX_TEXT_CHARS)] = ""


class DrainInfo(BaseModel):
    """How far a worker's drain is."""

    worker: str
    status: WorkerStatus
    draining: bool
    # As the worker reports; None before its first report.
    running_requests: int | None
    waiting_requests: int | None
    # As the gateway counts; None where it could not be asked.
    in_flight: int | None
    safe_to_stop: bool
    # What is so, or is waited for.
    text: str


def router(fleet: Fleet, control: IsolationControl, read_peers: ReadPeers) -> APIRouter:
    """`POST`, `GET` and `DELETE /v1/workers/{id}/drain`."""
    routes = APIRouter(tags=["drain"])
    body = {"requestBody": {"content": {"application/json": {"schema": DrainOrder.model_json_schema()}}}}

    async def info(worker_id: str) -> DrainInfo:
        in_flight = in_flight_at(worker_id, await read_peers())
        record = fleet.records.get(worker_id)
        if record is None:
            raise worker_not_found(worker_id)
        found = progress(record, in_flight)
        return DrainInfo(
            worker=worker_id,
            status=record.status,
            draining=found.draining,
            running_requests=found.running,
            waiting_requests=found.waiting,
            in_flight=found.in_flight,
            safe_to_stop=found.safe_to_stop,
            text=found.text,
        )

    @routes.post("/v1/workers/{worker_id:path}/drain", openapi_extra=body)
    async def drain(worker_id: WorkerIdPath, request: Request) -> DrainInfo:
        """Give a worker nothing new, for every replica. What it works on goes on. A restart of the worker ends it."""
        order = _order(await read_json(request))
        if worker_id not in fleet.records:
            raise worker_not_found(worker_id)
        try:
            await control.drain(worker_id, order.reason, by=_BY)
        except StoreError as error:
            raise ProblemError(redis_away(error)) from error
        _log.info("worker %s is to be drained: %s", worker_id, order.reason)
        return await info(worker_id)

    @routes.get("/v1/workers/{worker_id:path}/drain")
    async def show(worker_id: WorkerIdPath) -> DrainInfo:
        """How far the drain is, and whether the worker may be stopped."""
        return await info(worker_id)

    @routes.delete("/v1/workers/{worker_id:path}/drain")
    async def undrain(worker_id: WorkerIdPath) -> DrainInfo:
        """Let it take requests again. One that is isolated, or that drains by itself, stays so."""
        record = fleet.records.get(worker_id)
        if record is None:
            raise worker_not_found(worker_id)
        if record.standing is not None and record.standing.phase is Phase.DRAINING:
            try:
                await control.release(worker_id, by=_BY)
            except StoreError as error:
                raise ProblemError(redis_away(error)) from error
            _log.info("worker %s is to be drained no longer", worker_id)
        return await info(worker_id)

    return routes


def in_flight_at(worker_id: str, parts: Sequence[Part]) -> int | None:
    """Requests that the gateways have at a worker, by the services' metrics; None where none of them answered."""
    found: list[float] = []
    answered = False
    for part in parts:
        if part.service != "extproc" or part.text is None:
            continue
        answered = True
        found += [float(value) for name, value in _IN_FLIGHT.findall(part.text) if _unescaped(name) == worker_id]
    # Each process counts its own.
    return int(sum(found)) if answered else None


def _unescaped(label: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], label)


def _order(data: Any) -> DrainOrder:
    try:
        return DrainOrder.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"]) or "body"
        raise ProblemError(bad_request(f"{param}: {first['msg']}", param=param)) from None
