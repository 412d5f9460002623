"""`GET /v1/status`: which client runs which version of what (SPEC A3)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
from fastapi import APIRouter

from recursant.config.model import Config
from recursant.fleet.address import join_address
from recursant.names import LOOPBACK

_TIMEOUT_S: Final = 1.0
_WILDCARDS: Final = {"0.0.0.0": LOOPBACK, "::": "::1"}

ReadClients = Callable[[], Awaitable[list[Any] | None]]


def clients_reader(config: Config, client: httpx.AsyncClient) -> ReadClients:
    """Asks the xDS server for its clients; gives None where it does not answer."""
    host = _WILDCARDS.get(config.xds.metrics_host, config.xds.metrics_host)
    url = f"http://{join_address(host, config.xds.metrics_port)}/clients"

    async def read() -> list[Any] | None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                response = await client.get(url)
                response.raise_for_status()
                return list(response.json()["clients"])
        except (httpx.HTTPError, TimeoutError, ValueError, KeyError, TypeError):
            return None

    return read


def router(read_clients: ReadClients) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["status"])

    @routes.get("/v1/status")
    async def status() -> dict[str, Any]:
        """Every xDS client, by type: version, SYNCED, PENDING, STALE or NACK with the reason, last seen."""
        clients = await read_clients()
        return {"xds": "away" if clients is None else "up", "clients": clients or []}

    return routes
