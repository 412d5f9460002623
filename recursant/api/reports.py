"""Workers report here when they cannot reach Redis (SPEC B2): the same report, over HTTP."""

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel

from recursant.api.body import read_json
from recursant.api.errors import ProblemError
from recursant.api.schema import json_schema
from recursant.fleet.address import join_address
from recursant.problems import ApiProblem, bad_request, unavailable
from recursant.store.codec import state_from_dict
from recursant.store.workers import StoreError
from recursant.v1.worker_state_pb2 import WorkerState

# A worker waits a second for its answer. It should be this one, not its own timeout.
PUBLISH_TIMEOUT_S: Final = 0.5
# Reports on their way to Redis. More of them means that it does not keep up: say so at once.
MAX_PUBLISHING: Final = 512

_PORT_ALONE: Final = re.compile(r":([0-9]{1,5})")

Publish = Callable[[WorkerState], Awaitable[None]]


class Reported(BaseModel):
    """The answer to a report: what the fleet was told."""

    id: str
    # Where the worker is dialled, its own host filled in.
    address: str
    sequence: int


class ReportSink:
    """Passes reports on to Redis; never waits for it long, never for many at once.

    Attributes:
        counts: reports by what became of them: `accepted`, `refused` (not valid), `unavailable`.
    """

    def __init__(self, publish: Publish | None, *, timeout_s: float = PUBLISH_TIMEOUT_S) -> None:
        """Take the store's `publish`; None where no Redis is configured."""
        self._publish = publish
        self._timeout_s = timeout_s
        self._publishing = 0
        self.counts = {"accepted": 0, "refused": 0, "unavailable": 0}

    async def take(self, data: Any, peer: str | None) -> WorkerState:
        """Validate a report and publish it.

        Args:
            data: the JSON value.
            peer: the IP address that it came from.

        Raises:
            ProblemError: 400 with the field, or 503.
        """
        try:
            state = state_from_dict(with_host(data, peer))
        except ValueError as error:
            self.counts["refused"] += 1
            raise ProblemError(_refusal(str(error))) from None
        problem = await self._pass_on(state)
        if problem is not None:
            self.counts["unavailable"] += 1
            raise ProblemError(problem)
        self.counts["accepted"] += 1
        return state

    async def _pass_on(self, state: WorkerState) -> ApiProblem | None:
        if self._publish is None:
            return unavailable("no Redis is configured for the fleet's state", code="redis_unavailable")
        if self._publishing >= MAX_PUBLISHING:
            return unavailable("too many reports are waiting for Redis; send it again", code="redis_unavailable")
        self._publishing += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._publish(state)
        except (StoreError, TimeoutError):
            # The reason is in the log of the link; it may name addresses that are not the worker's business.
            return unavailable("the fleet's state cannot be written now; send it again", code="redis_unavailable")
        finally:
            self._publishing -= 1
        return None


def with_host(data: Any, peer: str | None) -> Any:
    """The report with the host of its address filled in where it is left out (`":8000"`): whoever sent it.

    For workers that do not know how others reach them, behind a container's network for instance.
    """
    if not isinstance(data, dict) or peer is None:
        return data
    address = data.get("address")
    port = _PORT_ALONE.fullmatch(address) if isinstance(address, str) else None
    return data if port is None else {**data, "address": join_address(peer, int(port[1]))}


def peer_of(request: Request) -> str | None:
    """The IP address at the other end of the connection; what proxies say of theirs is not believed."""
    if request.client is None:
        return None
    try:
        ip = ipaddress.ip_address(request.client.host)
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)


def router(sink: ReportSink) -> APIRouter:
    """`POST /v1/worker/register` and `/v1/worker/heartbeat`.

    Both take the whole report and do the same: a worker that the control plane has not heard of, or has forgotten,
    is known with its next heartbeat.
    """
    routes = APIRouter(tags=["workers"])
    body = {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": json_schema(WorkerState)}},
        }
    }

    async def report(request: Request) -> Reported:
        state = await sink.take(await read_json(request), peer_of(request))
        return Reported(id=state.id, address=state.address, sequence=state.sequence)

    @routes.post("/v1/worker/register", openapi_extra=body)
    async def register(request: Request) -> Reported:
        """Enter the fleet. The body is the worker's report; `"address": ":8000"` means the address it comes from."""
        return await report(request)

    @routes.post("/v1/worker/heartbeat", openapi_extra=body)
    async def heartbeat(request: Request) -> Reported:
        """Report again, every `report_interval_ms`. After three of these without a report the worker gets nothing."""
        return await report(request)

    return routes


def _refusal(message: str) -> ApiProblem:
    # The codec begins with the field: "models[0].name: expected …".
    field, colon, _ = message.partition(": ")
    return bad_request(message, param=field if colon and " " not in field else None, code="invalid_report")
