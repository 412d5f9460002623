"""The bearer token of the control API."""

import hmac
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from recursant.api.errors import respond
from recursant.problems import ApiProblem

# Workers and probes have no token: reports are of their own kind, health and metrics are asked by machines.
_OPEN: Final = ("/v1/worker/", "/v1/health", "/metrics", "/openapi.json")
# Only with a token where others than this machine can reach the API.
_GUARDED: Final = "/v1/policies"


class TokenGate:
    """An application that answers 401 to whoever does not bring the token.

    Args:
        app: what is behind.
        token: the token; None lets everybody in, except to change policies where `exposed`.
        exposed: other machines can reach the API.
    """

    def __init__(self, app: ASGIApp, token: str | None, *, exposed: bool) -> None:
        self._app = app
        self._token = token
        self._exposed = exposed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and (problem := self._problem(scope)) is not None:
            response = respond(problem)
            response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> ApiProblem | None:
        path: str = scope["path"]
        if path.startswith(_OPEN):
            return None
        if self._token is None:
            if self._exposed and path.startswith(_GUARDED) and scope["method"] not in ("GET", "HEAD"):
                return _unauthorized("other machines can reach this API: set api.token to change policies through it")
            return None
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        # Of equal time for every wrong token.
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return None
        return _unauthorized("send the token as 'Authorization: Bearer …'")


def _unauthorized(message: str) -> ApiProblem:
    return ApiProblem(401, message, "authentication_error", "authorization", "unauthorized")
