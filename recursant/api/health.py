"""Is the control plane alive, and does it know the fleet?"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from recursant import __version__
from recursant.api.dependencies import Fleet
from recursant.api.errors import ProblemError
from recursant.problems import unavailable


class Health(BaseModel):
    """The state of the control plane as this process sees it."""

    status: Literal["ok"]
    version: str
    redis: Literal["up", "down"]
    # Seconds since the last message from Redis; None before the first.
    snapshot_age_s: float | None
    # Workers by status.
    workers: dict[str, int]


def router(fleet: Fleet, clock: Callable[[], float]) -> APIRouter:
    """`GET /v1/health` and `/readyz`."""
    routes = APIRouter(tags=["health"])

    def health_now() -> Health:
        age = fleet.snapshot_age_s(clock())
        return Health(
            status="ok",
            version=__version__,
            redis="up" if fleet.redis_up else "down",
            snapshot_age_s=round(age, 3) if math.isfinite(age) else None,
            workers=dict(sorted(Counter(record.status.value for record in fleet.records.values()).items())),
        )

    @routes.get("/v1/health")
    async def health() -> Health:
        """200 as long as this process lives, whatever it says about the rest: a worker retries, it does not die."""
        return health_now()

    @routes.get("/readyz")
    async def ready() -> Health:
        """200 once the fleet is known, from Redis or as far as it can be without; 503 before."""
        if not fleet.loaded:
            raise ProblemError(unavailable("the fleet is not known yet", code="not_ready"))
        return health_now()

    return routes
