"""Why requests go where they go: a dry run, and the log of decisions (SPEC C5)."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from recursant.api.dependencies import Inspect

_Text = Annotated[str | None, Query(max_length=256)]
_Tokens = Annotated[int, Query(ge=0, le=1_000_000_000)]
_MaxTokens = Annotated[int | None, Query(ge=1, le=1_000_000_000)]
# A place in the log of each process.
_Cursor = Annotated[str | None, Query(max_length=2_048)]
_Headers = Annotated[list[str] | None, Query(max_length=16)]
_Limit = Annotated[int, Query(ge=1, le=1_000)]


def router(inspect: Inspect) -> APIRouter:
    """`GET /v1/explain` and `/v1/decisions`."""
    routes = APIRouter(tags=["decisions"])

    @routes.get("/v1/explain")
    async def explain(
        agent: _Text = None,
        tokens: _Tokens = 0,
        max_tokens: _MaxTokens = None,
        model: _Text = None,
        session: _Text = None,
        header: _Headers = None,
    ) -> dict[str, Any]:
        """What would happen to a request now, and why. Nothing is sent, counted or held.

        `header` is `NAME=VALUE`, for the headers by which clients describe themselves, and may be repeated.
        """
        asked = {"agent": agent, "model": model, "session": session, "max_tokens": max_tokens, "tokens": tokens}
        parameters = [(name, str(value)) for name, value in asked.items() if value is not None]
        return await inspect("/explain", [*parameters, *(("header", each) for each in header or ())])

    @routes.get("/v1/decisions")
    async def decisions(limit: _Limit = 100, agent: _Text = None, after: _Cursor = None) -> dict[str, Any]:
        """Kept decisions: the newest `limit`, in order of time.

        With `after`, the `cursor` of an earlier answer: those that ended since then, in order of end. So whoever
        follows asks again and again with the newest cursor, and misses none unless more end meanwhile than are kept.
        """
        asked = {"limit": limit, "agent": agent, "after": after}
        return await inspect("/decisions", [(name, str(value)) for name, value in asked.items() if value is not None])

    return routes
