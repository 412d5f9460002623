"""vLLM's sleep mode (`/sleep`, `/wake_up`, `/is_sleeping`): asleep it looks healthy, and lets requests hang.

As seen on vLLM 0.32 with VLLM_SERVER_DEV_MODE=1: `/health` stays 200, new requests are accepted and wait until it is
woken up, and only `/is_sleeping` and a gauge tell.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from recursant.sim.errors import bad_request
from recursant.sim.http import Request
from recursant.sim.worker import SimWorker

# 1: the weights are kept in the host's memory; 2: they are thrown away.
LEVELS: Final = (1, 2)


class SleepRoutes:
    """The routes of one worker."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker

    def routes(self) -> dict[str, dict[str, Callable[[Request], Awaitable[None]]]]:
        """Paths, methods and who handles them."""
        return {
            "/sleep": {"POST": self._sleep},
            "/wake_up": {"POST": self._wake_up},
            "/is_sleeping": {"GET": self._is_sleeping},
        }

    async def _sleep(self, request: Request) -> None:
        given = request.query("level") or "1"
        if given not in map(str, LEVELS):
            raise bad_request("level must be 1 or 2", "level")
        self._worker.ordered_sleep_level = int(given)
        await request.respond(200, b"")

    async def _wake_up(self, request: Request) -> None:
        self._worker.ordered_sleep_level = 0
        await request.respond(200, b"")

    async def _is_sleeping(self, request: Request) -> None:
        await request.respond_json(200, {"is_sleeping": self._worker.sleep_level > 0})
