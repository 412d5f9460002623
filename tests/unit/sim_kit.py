"""A running simulated worker, and what tests ask it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from recursant.sim.options import SimOptions
from recursant.sim.service import SimService

MODEL = "tiny-qwen"
# Nothing here is about speed: a bound against hanging.
PATIENCE_S = 30.0


class Sim:
    """One worker and a client to it."""

    def __init__(self, service: SimService, client: httpx.AsyncClient) -> None:
        self.service = service
        self.worker = service.worker
        self.client = client

    async def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, **fields})

    async def chat(self, *contents: str, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content} for content in contents or ("hello",)]
        return await self.client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages, **fields})

    async def state(self) -> dict[str, Any]:
        return (await self.client.get("/sim/state")).json()

    async def fault(self, kind: str, **fields: Any) -> None:
        response = await self.client.post("/sim/faults", json={"kind": kind, **fields})
        assert response.status_code == 202, response.text

    async def metric(self, line_start: str) -> float:
        """The value of the only metric line that starts so."""
        page = (await self.client.get("/metrics")).text
        (line,) = [line for line in page.splitlines() if line.startswith(line_start)]
        return float(line.rsplit(" ", 1)[1])

    async def until(self, field: str, value: Any) -> None:
        """Waits until a figure of the engine has a value."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.state())["engine"][field] != value:  # noqa: ASYNC110 - asked over HTTP
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Sim]:
    """A worker with the tiny profile on a free port."""
    given = {"port": 0, "models": (MODEL,), "profile": "tiny", "drain_timeout_s": 0.2, **options}
    async with (
        SimService(SimOptions(**given)) as service,
        httpx.AsyncClient(base_url=service.url, timeout=PATIENCE_S) as client,
    ):
        yield Sim(service, client)


def events(body: str) -> list[Any]:
    """The data of a stream's events, parsed; the end mark stays as it is."""
    blocks = body.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    data = [block.removeprefix("data: ") for block in blocks]
    return [item if item == "[DONE]" else json.loads(item) for item in data]
