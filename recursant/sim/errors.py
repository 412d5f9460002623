"""Errors in vLLM's form: `{"error": {"message", "type", "param", "code"}}`, code = HTTP status.

Types, params and statuses as vLLM 0.32 gives them; the wording is near enough for people and for the clients that
look for a phrase in it.
"""

import json
from typing import Any


class ApiError(Exception):
    """An answer other than success.

    Attributes:
        status: the HTTP status.
        type: vLLM's name of the kind.
        param: the field that is to blame, if one is.
    """

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = kind
        self.message = message
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}}

    def encoded(self) -> bytes:
        """The JSON body as bytes."""
        return json.dumps(self.body).encode()


def bad_request(message: str, param: str | None = None) -> ApiError:
    """A value that the engine refuses."""
    return ApiError(400, "BadRequestError", message, param)


def invalid_body(message: str, location: str | None) -> ApiError:
    """A body that is no JSON, or not of the expected form: FastAPI's validation in vLLM's wrapping."""
    return ApiError(400, "Bad Request", f"1 validation error:\n  {message}", location)


def unknown_model(model: str, served: tuple[str, ...]) -> ApiError:
    """A model that is not served here."""
    return ApiError(
        404,
        "NotFoundError",
        f"The model `{model}` does not exist. Valid aliases: {', '.join(served)}.",
        "model",
    )


def queue_full() -> ApiError:
    """The queue limit is reached. vLLM sends no Retry-After."""
    return ApiError(
        503, "Service Unavailable", "The engine is currently busy and cannot accept new requests. Please retry later."
    )


def shutting_down() -> ApiError:
    """What a vLLM says that got SIGTERM and finishes its streams."""
    return internal("cannot schedule new futures after shutdown")


def internal(message: str) -> ApiError:
    """The engine failed."""
    return ApiError(500, "InternalServerError", message)


def out_of_memory() -> ApiError:
    """A CUDA allocation failed."""
    return internal(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of which less than 1 GiB is free."
    )


def cuda_error() -> ApiError:
    """The device failed."""
    return internal("CUDA error: an illegal memory access was encountered")


def engine_dead() -> ApiError:
    """The engine process is gone."""
    return internal("EngineCore encountered an issue. See stack trace (above) for the root cause.")
