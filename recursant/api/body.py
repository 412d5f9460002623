"""Reading a JSON body: bounded in size and time, and only from clients that say it is JSON."""

import asyncio
import json
from typing import Any, Final

from fastapi import Request
from starlette.requests import ClientDisconnect

from recursant.api.errors import ProblemError
from recursant.problems import ApiProblem, bad_request, too_large

# A worker's report has 1 KB, one with a hundred adapters 10 KB.
MAX_BODY_BYTES: Final = 256 * 1024
BODY_TIMEOUT_S: Final = 5.0


async def read_json(request: Request) -> Any:
    """The value of the request's JSON body.

    Raises:
        ProblemError: 415, 413, 408 or 400.
    """
    # A web page can make a browser send any other type to this API without asking it first.
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        message = "send the body as content-type: application/json"
        raise ProblemError(ApiProblem(415, message, "invalid_request_error", "content-type", "unsupported_media_type"))
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            raw = await _read(request)
    except TimeoutError:
        message = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
        raise ProblemError(ApiProblem(408, message, "invalid_request_error", "body", "request_timeout")) from None
    try:
        return json.loads(raw)
    except RecursionError:
        raise ProblemError(bad_request("the body is nested too deeply", param="body", code="invalid_json")) from None
    except ValueError as error:
        # The error names the position and quotes nothing.
        raise ProblemError(bad_request(f"the body is not JSON: {error}", param="body", code="invalid_json")) from None


async def _read(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > MAX_BODY_BYTES:
        raise ProblemError(too_large(int(declared[:20]), MAX_BODY_BYTES))
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise ProblemError(too_large(len(body), MAX_BODY_BYTES))
    except ClientDisconnect:
        # Nobody hears the answer.
        raise ProblemError(bad_request("the client hung up", param="body")) from None
    return bytes(body)
