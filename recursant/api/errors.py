"""Every error of the API leaves as the same OpenAI-shaped JSON (DESIGN §7)."""

import logging
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from recursant.names import RETRY_AFTER
from recursant.problems import ApiProblem, bad_request

_log = logging.getLogger(__name__)
_INTERNAL: Final = ApiProblem(500, "an unexpected error; the log says more", "internal_server_error", None, "internal")


class ProblemError(Exception):
    """Ends a request with a problem.

    Attributes:
        problem: what to answer.
    """

    def __init__(self, problem: ApiProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def respond(problem: ApiProblem) -> Response:
    """The answer that says so."""
    headers = {} if problem.retry_after_s is None else {RETRY_AFTER: str(problem.retry_after_s)}
    return Response(problem.body(), problem.status, headers, media_type="application/json")


def install(app: FastAPI) -> None:
    """Let every error of `app` leave in this shape."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(Exception, _on_unexpected)


def _on_problem(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, ProblemError)  # noqa: S101 - for the type checker; starlette calls it with nothing else
    return respond(error.problem)


def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    if error.status_code == 404:
        message = f"no such path: {request.url.path[:200]}"
    elif error.status_code == 405:
        message = f"{request.method} is not allowed here"
    else:
        message = str(error.detail)
    response = respond(ApiProblem(error.status_code, message, "invalid_request_error", None, None))
    # "Allow" of a 405.
    response.headers.update(error.headers or {})
    return response


def _on_invalid(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, RequestValidationError)  # noqa: S101
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    return respond(bad_request(str(first["msg"]), param=param))


def _on_unexpected(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return respond(_INTERNAL)
