"""Errors as the OpenAI clients expect them, in one place: `{"error": {message, type, param, code}}` (DESIGN §7).

429 = you sent too much or were shed, 503 = nobody can serve now, 504 = the deadline passed, 400/403/404/413 = your
request. 429 and 503 always carry `Retry-After`.
"""

import json
from dataclasses import dataclass
from typing import Final

DEFAULT_RETRY_AFTER_S: Final = 1
_RETRYABLE: Final = (429, 503)


@dataclass(frozen=True, slots=True)
class ApiProblem:
    """An error answer as a value: pure code returns it, the edge sends it.

    Attributes:
        status: the HTTP status.
        message: for people; names the field, the value and what is allowed.
        type: the class of error in OpenAI's words.
        param: the header or field at fault.
        code: one word for programs.
        retry_after_s: seconds until a retry makes sense; always set with 429 and 503.
    """

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None

    def __post_init__(self) -> None:
        if self.status in _RETRYABLE and self.retry_after_s is None:
            object.__setattr__(self, "retry_after_s", DEFAULT_RETRY_AFTER_S)

    def body(self) -> bytes:
        """The JSON body."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}, separators=(",", ":")).encode()


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_request") -> ApiProblem:
    """400: the request is malformed."""
    return ApiProblem(400, message, "invalid_request_error", param, code)


def forbidden(message: str, *, param: str | None = None, code: str = "agent_not_allowed") -> ApiProblem:
    """403: the agent may not do this."""
    return ApiProblem(403, message, "permission_error", param, code)


def model_not_found(model: str) -> ApiProblem:
    """404: no worker of the fleet has the model."""
    message = f"The model {model[:128]!r} does not exist in this fleet; GET /v1/models lists those that do"
    return ApiProblem(404, message, "not_found_error", "model", "model_not_found")


def too_large(length: int, limit: int) -> ApiProblem:
    """413: the body is over the limit, both in bytes."""
    message = f"the request body has {length} bytes, allowed are {limit}"
    return ApiProblem(413, message, "invalid_request_error", "body", "request_too_large")


def shed(message: str, *, code: str) -> ApiProblem:
    """429: the request was shed, or asked for more than there is."""
    return ApiProblem(429, message, "rate_limit_error", None, code)


def deadline_exceeded(timeout_ms: int) -> ApiProblem:
    """504: the request would be served later than its policy allows."""
    message = f"no worker had room within the {timeout_ms} ms that this request may take to its first byte"
    return ApiProblem(504, message, "timeout_error", None, "deadline_exceeded")


def unavailable(message: str, *, code: str = "unavailable") -> ApiProblem:
    """503: nobody can serve this now."""
    return ApiProblem(503, message, "service_unavailable_error", None, code)
