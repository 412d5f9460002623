"""The little of HTTP that the simulated worker needs, straight on ASGI: a token costs one call, not a framework's
stack of them, and a client that leaves is noticed at once."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import parse_qs

from recursant.sim.errors import ApiError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# A prompt of the longest model is far below.
MAX_BODY_BYTES: Final = 64 * 1024 * 1024


class ClientGone(Exception):  # noqa: N818 - not an error: an event
    """The client closed the connection before its request was complete."""


class Request:
    """One HTTP request and the way to answer it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[tuple[str, str]] = [
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        self._query: bytes = scope.get("query_string", b"")
        self._receive = receive
        self._send = send

    def header(self, name: str) -> str:
        """The first header of that lower-case name; empty if there is none."""
        return next((value for key, value in self.headers if key == name), "")

    def query(self, name: str) -> str | None:
        """The first query parameter of that name."""
        values = parse_qs(self._query.decode("latin-1")).get(name)
        return values[0] if values else None

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            ClientGone: it will not come.
            ApiError: 413, it is longer than anything sensible.
        """
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY_BYTES:
                raise ApiError(413, "Request Entity Too Large", f"the body is longer than {MAX_BODY_BYTES} bytes")
            if not message.get("more_body", False):
                return b"".join(parts)

    async def gone(self) -> None:
        """Returns when the client has left. To be awaited after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def respond(
        self, status: int, body: bytes, content_type: str = "application/json", headers: dict[str, str] | None = None
    ) -> None:
        """A whole response."""
        pairs = [(b"content-length", str(len(body)).encode())]
        if body or content_type != "application/json":
            pairs.append((b"content-type", content_type.encode()))
        for name, value in (headers or {}).items():
            pairs.append((name.encode("latin-1"), value.encode("latin-1")))
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})
        await self._send({"type": "http.response.body", "body": body})

    async def respond_json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        """A whole response with a JSON body."""
        await self.respond(status, json.dumps(value, separators=(",", ":")).encode(), headers=headers)

    async def respond_error(self, error: ApiError) -> None:
        """An error in vLLM's form."""
        await self.respond(error.status, error.encoded())

    async def start_events(self) -> None:
        """The head of a stream of server-sent events."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """A piece of the stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


async def until_gone(request: Request, on_gone: Callable[[], None]) -> None:
    """Calls `on_gone` when the client leaves; for a task beside the one that answers."""
    await request.gone()
    on_gone()


async def stop_task(task: "asyncio.Task[None]") -> None:
    """Cancels a task and waits until it has ended."""
    task.cancel()
    await asyncio.wait([task])
