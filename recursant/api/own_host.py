"""Requests must mean this machine, where only this machine can reach the API.

A web page can let its own name point to 127.0.0.1 and then talk to us as to itself, past every rule that browsers
have. The name is in the `Host` header of its requests, and it is not ours.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from recursant.api.errors import respond
from recursant.config.checks import is_loopback
from recursant.fleet.address import bare_host
from recursant.problems import forbidden


class OwnHost:
    """An application that answers 403 where `Host` is no loopback address and not `localhost`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and not _is_own(Headers(scope=scope).get("host", "")):
            problem = forbidden(
                "the Host header names another machine; reach this API as localhost", param="host", code="foreign_host"
            )
            await respond(problem)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_own(header: str) -> bool:
    host, colon, port = header.rpartition(":")
    # "[::1]" has colons and no port; a client without the header is none of the browsers that this is about.
    named = host if colon and port.isdigit() else header
    return not header or is_loopback(bare_host(named))
