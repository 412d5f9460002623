"""The simulator's own routes, `/sim/...`: faults on command, and what the worker saw."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Final
from urllib.parse import unquote

from recursant.sim.errors import ApiError, bad_request
from recursant.sim.faults import FaultKind, FaultSpec
from recursant.sim.http import Request
from recursant.sim.protocol import parse_json
from recursant.sim.worker import SimWorker
from recursant.v1.worker_state_pb2 import WorkerPhase

log = logging.getLogger(__name__)

Routes = dict[str, dict[str, Callable[[Request], Awaitable[None]]]]

DEFAULT_LISTED: Final = 50
# The answer to the request that asks for a crash gets out first.
CRASH_DELAY_S: Final = 0.05
_REQUESTS: Final = "/sim/state/requests"


def crash() -> None:
    """Ends the process hard: no clean-up, connections reset."""
    os._exit(1)


class Control:
    """`/sim/faults`, `/sim/state` and `/sim/prefix-cache`."""

    def __init__(self, worker: SimWorker, on_crash: Callable[[], None] = crash) -> None:
        self._worker = worker
        self._on_crash = on_crash

    def routes(self) -> Routes:
        """Paths, methods and who handles them."""
        return {
            "/sim/faults": {"GET": self._list_faults, "POST": self._add_fault, "DELETE": self._clear_faults},
            "/sim/prefix-cache": {"DELETE": self._forget_prefixes},
            "/sim/state": {"GET": self._state},
            _REQUESTS: {"GET": self._requests},
        }

    def dynamic_route(self, path: str) -> dict[str, Callable[[Request], Awaitable[None]]] | None:
        """The route of one recorded request's body, where the path is one."""
        prefix, suffix = f"{_REQUESTS}/", "/body"
        if path.startswith(prefix) and path.endswith(suffix) and len(path) > len(prefix) + len(suffix):
            return {"GET": partial(self._body, request_id=unquote(path[len(prefix) : -len(suffix)]))}
        return None

    async def _add_fault(self, request: Request) -> None:
        try:
            spec = FaultSpec.parse(parse_json(await request.body()))
        except ValueError as error:
            raise bad_request(str(error)) from None
        if spec.kind is FaultKind.CRASH:
            delay = CRASH_DELAY_S if spec.duration_ms is None else spec.duration_ms / 1_000
            log.warning("crashing in %.0f ms, as told", delay * 1_000)
            asyncio.get_running_loop().call_later(delay, self._on_crash)
        else:
            self._worker.faults.add(spec, self._worker.clock())
        await request.respond_json(202, {"faults": self._worker.faults.describe(self._worker.clock())})

    async def _list_faults(self, request: Request) -> None:
        await request.respond_json(200, {"faults": self._worker.faults.describe(self._worker.clock())})

    async def _clear_faults(self, request: Request) -> None:
        self._worker.faults.clear()
        await request.respond_json(200, {"faults": []})

    async def _forget_prefixes(self, request: Request) -> None:
        self._worker.engine.reset_prefix_cache()
        await request.respond_json(200, {})

    async def _state(self, request: Request) -> None:
        worker = self._worker
        stats = worker.engine.stats()
        await request.respond_json(
            200,
            {
                "worker_id": worker.id,
                "models": list(worker.options.models),
                "phase": WorkerPhase.Name(worker.state().phase).removeprefix("WORKER_PHASE_").lower(),
                "in_flight": worker.in_flight,
                "requests": worker.recorder.total,
                "engine": {**asdict(stats), "kv_usage": stats.kv_usage},
                "errors": asdict(worker.errors),
                "faults": worker.faults.describe(worker.clock()),
            },
        )

    async def _requests(self, request: Request) -> None:
        given = request.query("limit")
        if given is not None and not given.isdecimal():
            raise bad_request("limit must be a whole number", "limit")
        limit = DEFAULT_LISTED if given is None else int(given)
        await request.respond_json(200, {"requests": [one.describe() for one in self._worker.recorder.newest(limit)]})

    async def _body(self, request: Request, request_id: str) -> None:
        recorded = self._worker.recorder.find(request_id)
        if recorded is None or recorded.body is None:
            raise ApiError(404, "NotFoundError", f"no body is kept of request {request_id!r}", "id")
        await request.respond(200, recorded.body, "application/octet-stream")
