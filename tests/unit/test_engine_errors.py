"""What error answers say about a worker; the messages are vLLM's and PyTorch's."""

import json

import pytest

from recursant.fleet.engine_errors import MAX_BODY_BYTES, MAX_MESSAGE_CHARS, classify
from recursant.fleet.evidence import Evidence
from recursant.problems import unavailable
from recursant.sim import errors


def answer(message: str, status: int = 500) -> bytes:
    kind = "InternalServerError"
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "evidence"),
    [
        (500, errors.out_of_memory().encoded(), Evidence.OUT_OF_MEMORY),
        (500, answer("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"), Evidence.OUT_OF_MEMORY),
        (500, errors.cuda_error().encoded(), Evidence.CUDA_ERROR),
        (500, answer("CUDA error: device-side assert triggered"), Evidence.CUDA_ERROR),
        (500, answer("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"), Evidence.CUDA_ERROR),
        (500, answer("HIP error: invalid device function"), Evidence.CUDA_ERROR),
        (500, b"CUDA error: an illegal memory access was encountered", Evidence.CUDA_ERROR),
        (500, errors.engine_dead().encoded(), Evidence.SERVER_ERROR),
        (500, errors.shutting_down().encoded(), Evidence.SERVER_ERROR),
        (500, b"Internal Server Error", Evidence.SERVER_ERROR),
        (502, b"", Evidence.SERVER_ERROR),
        (503, b"", Evidence.SERVER_ERROR),
        (500, b"[" * 10_000, Evidence.SERVER_ERROR),
        (500, b'{"error": "no object"}', Evidence.SERVER_ERROR),
        # A full queue is no fault, and neither is a request for something that does not exist.
        (503, errors.queue_full().encoded(), None),
        (501, b"", None),
        # Envoy's own words: nobody could be reached.
        (503, unavailable("upstream connect error").body(), Evidence.PASSED_OVER),
    ],
)
def test_what_an_answer_is_evidence_of(status: int, body: bytes, evidence: Evidence | None) -> None:
    assert classify(status, body)[0] is evidence


def test_the_words_are_kept_short_and_on_one_line() -> None:
    assert classify(500, errors.cuda_error().encoded())[1] == "CUDA error: an illegal memory access was encountered"
    assert classify(500, answer("a\n  b\tc"))[1] == "a b c"
    assert len(classify(500, answer("x" * 1_000))[1]) == MAX_MESSAGE_CHARS
    assert classify(500, b"")[1] == "status 500"


def test_only_the_beginning_of_a_long_body_is_read() -> None:
    body = b"x" * MAX_BODY_BYTES + b" CUDA error"
    assert classify(500, body)[0] is Evidence.SERVER_ERROR
