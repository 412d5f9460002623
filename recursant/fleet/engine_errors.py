"""What a worker's error answer says about the worker (SPEC F1). Pure.

vLLM answers `{"error": {"message", "type", "param", "code"}}` with its HTTP status, a number, as `code`; the
gateway's own answers have a word there.
"""

import json
import re
from typing import Any, Final

from recursant.fleet.evidence import Evidence

# More of a body is not looked at: error answers are short.
MAX_BODY_BYTES: Final = 16_384
MAX_MESSAGE_CHARS: Final = 300

_OUT_OF_MEMORY: Final = re.compile(r"out of memory|OutOfMemoryError|\bOOM\b", re.IGNORECASE)
# How CUDA, its libraries, ROCm and the driver name a device that failed.
_DEVICE_ERROR: Final = re.compile(
    r"CUDA (?:driver |runtime )?error|CUBLAS_STATUS|CUDNN_STATUS|NCCL error|HIP error|illegal memory access"
    r"|device-side assert|uncorrectable ECC|\bXid\b",
    re.IGNORECASE,
)
# A full queue is load, and the answer to one request; vLLM 0.32.
_BUSY: Final = re.compile(r"currently busy|cannot accept new requests|queue is full", re.IGNORECASE)
# The request asks for something that this engine does not have.
_NOT_IMPLEMENTED: Final = 501
_UNAVAILABLE: Final = 503


def classify(status: int, body: bytes) -> tuple[Evidence | None, str]:
    """What an answer with a status of 500 or more is evidence of, and its words.

    Args:
        status: of the answer.
        body: as far as it was seen; empty where it was not.

    Returns:
        None as evidence where it says nothing about the worker.
    """
    message, code = _message(body[:MAX_BODY_BYTES])
    text = " ".join(message.split())[:MAX_MESSAGE_CHARS]
    if isinstance(code, str):
        # Envoy answered, in the worker's place.
        return Evidence.PASSED_OVER, text
    if _OUT_OF_MEMORY.search(message):
        return Evidence.OUT_OF_MEMORY, text
    if _DEVICE_ERROR.search(message):
        return Evidence.CUDA_ERROR, text
    if status == _NOT_IMPLEMENTED or (status == _UNAVAILABLE and _BUSY.search(message)):
        return None, text
    return Evidence.SERVER_ERROR, text or f"status {status}"


def _message(body: bytes) -> tuple[str, Any]:
    """The message and the code of an error body; of any other body, its text."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace"), None
    error = content.get("error") if isinstance(content, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return error["message"], error.get("code")
    return body.decode(errors="replace"), None
