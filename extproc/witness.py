"""What one request shows about the workers that it met (SPEC F1). No sockets, no clock of its own.

Only what speaks about the worker is reported. A client's own mistakes (4xx), its hanging up in time and a full queue
are not.
"""

from collections.abc import Mapping
from typing import Final

from extproc.gateway import Gateway
from recursant.fleet.engine_errors import MAX_BODY_BYTES, classify
from recursant.fleet.evidence import Evidence

EVENT_STREAM: Final = b"text/event-stream"

# Bad Gateway, said by Envoy itself.
_BROKEN_ANSWER: Final = 502
_SERVER_ERROR: Final = 500
_MOST_DIGITS: Final = len(str(MAX_BODY_BYTES))


class Witness:
    """Follows one request from the moment that it was sent to a worker.

    Args:
        gateway: knows the workers, and takes the evidence.
        rows: the candidates, in the order in which Envoy tries them.
        deadline_s: when the first byte was due, in the gateway's time.
    """

    __slots__ = ("_answered", "_deadline_s", "_failed", "_gateway", "_row", "_rows", "_sent_s", "_status", "_streams")

    def __init__(self, gateway: Gateway, rows: tuple[int, ...], deadline_s: float) -> None:
        self._gateway = gateway
        self._rows = rows
        self._deadline_s = deadline_s
        self._sent_s = gateway.clock()
        self._answered = False
        # Whose 500 was tried again elsewhere: it answered, so it was not passed over.
        self._failed: int | None = None
        # Who answered; None where Envoy did, or the worker has left.
        self._row: int | None = None
        # Of an error whose body is still to come.
        self._status = 0
        self._streams = False

    def failed(self, row: int, body: bytes) -> None:
        """An attempt before the answer was a 500, of this worker; `body` as far as it was kept."""
        self._failed = row
        evidence, text = classify(_SERVER_ERROR, body)
        if evidence is not None:
            self._report(row, evidence, text)

    def answered(self, row: int | None, status: int, headers: Mapping[str, bytes], *, has_body: bool) -> bool:
        """The response has begun; should its body be looked at?

        Args:
            row: the worker that Envoy used last; None where it used none that we know.
            status: of the response.
            headers: of the response.
            has_body: more follows.
        """
        self._answered = True
        self._row = row
        if row is None:
            if status == _BROKEN_ANSWER:
                # Envoy's own word for an answer that broke off, or was none; it does not say whose. Ours went to the
                # first of the list.
                self._report(self._rows[0], Evidence.SERVER_ERROR, "its answer broke off")
            return False
        if row in self._rows:
            for earlier in self._rows[: self._rows.index(row)]:
                if earlier != self._failed:
                    self._report(earlier, Evidence.PASSED_OVER, "Envoy had to turn to another worker")
        if status >= 500:
            length = headers.get("content-length", b"0")
            self._status = status
            # What has more digits is longer, or nonsense that Python does not read.
            if has_body and len(length) <= _MOST_DIGITS and length.isdigit() and int(length) <= MAX_BODY_BYTES:
                return True
            self.body(b"")
        elif 200 <= status < 300:
            self._streams = headers.get("content-type", b"").startswith(EVENT_STREAM)
            if not self._streams:
                self._report(row, Evidence.ANSWERED)
        return False

    def body(self, body: bytes) -> None:
        """The body of an error has come, as far as Envoy kept it."""
        if self._row is None or not self._status:
            return
        evidence, text = classify(self._status, body)
        self._status = 0
        if evidence is not None:
            self._report(self._row, evidence, text)

    def closed(self, row: int | None) -> None:
        """The request is over; `row` is where it counted."""
        if not self._answered:
            # A client that gives up before its time says nothing about the worker.
            if row is not None and self._gateway.clock() >= self._deadline_s:
                self._report(row, Evidence.NO_ANSWER, "no first byte in time")
        elif self._streams and self._row is not None:
            self._report(self._row, Evidence.STREAM_ENDED)
        # An error whose body never came.
        self.body(b"")

    def _report(self, row: int, evidence: Evidence, text: str = "") -> None:
        record = self._gateway.table.record(row)
        if record is not None:
            self._gateway.evidence(record.worker_id, evidence, text=text, since=self._sent_s)
