"""The last requests as they arrived, so that tests can see what the way to the worker did to them. Bounded."""

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

# Bodies are kept of the newest requests only, and not more than this in all.
MAX_BODIES: Final = 64
MAX_BODY_BYTES: Final = 32 * 1024 * 1024


@dataclass(slots=True)
class RecordedRequest:
    """One request.

    Attributes:
        id: the X-Request-Id it came with, or the one it was given.
        response_id: the id in its response; empty while it has none.
        headers: in their order, names in lower case, as they came.
        body: the raw bytes; None when they were forgotten.
        outcome: "running", "finished", "aborted", or "error STATUS".
    """

    id: str
    method: str
    path: str
    headers: Sequence[tuple[str, str]]
    received_at: float
    body_bytes: int
    body_sha256: str
    body: bytes | None
    response_id: str = ""
    model: str | None = None
    priority: int | None = None
    stream: bool = False
    prompt_tokens: int | None = None
    outcome: str = "running"

    def describe(self) -> dict[str, Any]:
        """Everything but the body."""
        return {
            "id": self.id,
            "response_id": self.response_id,
            "method": self.method,
            "path": self.path,
            "headers": [list(pair) for pair in self.headers],
            "received_at": self.received_at,
            "body_bytes": self.body_bytes,
            "body_sha256": self.body_sha256,
            "model": self.model,
            "priority": self.priority,
            "stream": self.stream,
            "prompt_tokens": self.prompt_tokens,
            "outcome": self.outcome,
        }


class Recorder:
    """Remembers the newest requests."""

    def __init__(self, limit: int) -> None:
        self._requests: deque[RecordedRequest] = deque(maxlen=limit) if limit else deque(maxlen=0)
        self._bodies: deque[RecordedRequest] = deque()
        self._body_bytes = 0
        self.total = 0

    def record(
        self,
        request_id: str,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        received_at: float,
    ) -> RecordedRequest:
        """Remembers a request; what comes to be known later is written into what is returned."""
        recorded = RecordedRequest(
            id=request_id,
            method=method,
            path=path,
            headers=headers,
            received_at=received_at,
            body_bytes=len(body),
            body_sha256=hashlib.sha256(body).hexdigest(),
            body=body,
        )
        self.total += 1
        self._requests.append(recorded)
        self._bodies.append(recorded)
        self._body_bytes += len(body)
        while self._bodies and (len(self._bodies) > MAX_BODIES or self._body_bytes > MAX_BODY_BYTES):
            oldest = self._bodies.popleft()
            self._body_bytes -= oldest.body_bytes
            oldest.body = None
        return recorded

    def newest(self, limit: int) -> list[RecordedRequest]:
        """The newest requests, newest first."""
        return list(reversed(self._requests))[:limit]

    def find(self, request_id: str) -> RecordedRequest | None:
        """The newest request with that id, its own or its response's."""
        for recorded in reversed(self._requests):
            if request_id in (recorded.id, recorded.response_id):
                return recorded
        return None
