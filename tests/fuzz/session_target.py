"""Messages of ext_proc in any order, over a small fleet: answers that Envoy can read, and counts back at zero."""

import json
import random
from collections.abc import Callable
from typing import Final

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from fleet_kit import PHI, QWEN, Recorded, record, table_of

from extproc.decisions import DecisionLog
from extproc.desk import Desk, Ticket
from extproc.gateway import Gateway
from extproc.session import RequestSession
from extproc.stream import StreamError, Unready
from fuzz.reader import Reader
from recursant import names
from recursant.admission.queue import HoldQueue
from recursant.config.model import Config

_CONFIG: Final = Config.model_validate(
    {
        "agents": [
            {"agent_id": "chat-web", "model_family": "qwen", "priority": 10, "affinity": "prefix"},
            {"agent_id": "queues", "model_family": "phi", "fallback_strategy": "queue_and_retry", "retry_max": 3},
            {"agent_id": "degrades", "model_family": "phi", "fallback_strategy": "degrade_to_qwen"},
            {"agent_id": "batch", "model_family": "qwen", "batch_window_ms": 500, "max_new_tokens": 64},
            {"agent_id": "anything", "priority": 1, "on_memory_pressure": "shape", "max_new_tokens": 64},
        ],
        "routing": {"timeout_ms": 3_000},
        "limits": {"held_requests": 2},
        "decisions": {"sample": 1.0, "keep": 8},
    }
)
_AGENTS: Final = (b"chat-web", b"queues", b"degrades", b"batch", b"anything", b"nobody")
_HEADERS: Final = (
    *names.AGENT_DESCRIPTION_HEADERS,
    names.AGENT_ID,
    names.SESSION_ID,
    names.REAL_TIME,
    names.REQUEST_ID,
    names.TRACEPARENT,
    "content-length",
    "content-type",
    ":path",
    ":status",
    names.RETRY_AFTER,
)
_LENGTHS: Final = (b"120", b"0", b"9000", b"100000", b"")
_STATUSES: Final = (b"200", b"404", b"429", b"500", b"502", b"503", b"", b"x")
_ADDRESSES: Final = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.9:8000", "", None)
_BODIES: Final = (
    b'{"model": "auto", "prompt": "hi"}',
    b'{"model": "Qwen/Qwen2.5-7B-Instruct", "max_tokens": 9}',
    b'{"prompt": "' + b"a" * 2_100 + b'"}',
    b"{}",
)
_OPEN: Final = 3
_MOST_STEPS: Final = 48


class _Fleet:
    """Two workers with few slots, and as many sessions as there are streams at a time."""

    def __init__(self, *, settled: bool) -> None:
        self.now = 0.0
        self.table = table_of(record("w1", max_num_seqs=1), record("w2", models=[PHI], max_num_seqs=1))
        rng = random.Random(7)
        self.gateway = Gateway(
            config=_CONFIG,
            table=self.table,
            recorder=Recorded(),
            clock=lambda: self.now,
            rng=rng,
            settled=lambda: settled,
            wall=lambda: self.now,
        )
        self.log = DecisionLog(
            _CONFIG.decisions,
            _CONFIG.routing,
            self.table,
            clock=lambda: self.now,
            rng=rng,
            wall_clock=lambda: self.now,
        )
        self.queue: HoldQueue[Ticket] = HoldQueue(_CONFIG.limits.held_requests)
        self.desk = Desk(self.gateway, self.queue, lambda: None)
        self.sessions = [self._new() for _ in range(_OPEN)]

    def _new(self) -> RequestSession:
        return RequestSession(self.gateway, self.desk, _readable, self.log)

    def receive(self, which: int, message: bytes) -> None:
        """As a transport does it: a session that raises what is documented ends."""
        try:
            answer = self.sessions[which].receive(message)
        except (StreamError, Unready):
            self.close(which)
        else:
            if answer is not None:
                _readable(answer)

    def close(self, which: int) -> None:
        """The stream ends, and another one begins."""
        self.sessions[which].close()
        self.sessions[which] = self._new()

    def change(self, how: int) -> None:
        """What workers do."""
        match how % 4:
            case 0:
                self.table.remove("w1")
            case 1:
                self.table.upsert(record("w1", max_num_seqs=1))
            case 2:
                self.table.upsert(record("w2", models=[PHI, QWEN], max_num_seqs=2, kv_cache_usage=0.99))
            case _:
                self.table.upsert(record("w2", models=[PHI], max_num_seqs=1, incarnation="second"))
        self.desk.capacity_changed()

    def over(self) -> None:
        """Every stream ends: nothing is left."""
        for session in self.sessions:
            session.close()
            session.close()
        assert self.table.in_flight_total() == 0
        assert len(self.queue) == 0
        assert not any(self.desk.depth().values())
        self.now += 1e6
        assert self.desk.run(self.now) is None
        notes = self.log.read(limit=100)["decisions"]
        assert len(notes) <= 2 * _CONFIG.decisions.keep
        # As the API writes it.
        json.dumps(notes, ensure_ascii=False, allow_nan=False).encode()


def _readable(answer: bytes) -> None:
    # More time is asked for without an answer.
    response = ProcessingResponse.FromString(answer)
    assert response.WhichOneof("response") is not None or response.HasField("override_message_timeout")


def check(data: bytes) -> None:
    """The first byte says whether the whole fleet was heard; steps follow."""
    reader = Reader(data)
    fleet = _Fleet(settled=reader.byte() % 4 != 3)
    for _ in range(_MOST_STEPS):
        if reader.over:
            break
        step = reader.byte()
        which = step % _OPEN
        match step // _OPEN % 8:
            case 0 | 1:
                fleet.receive(which, reader.pick(_MESSAGES)(reader).SerializeToString())
            case 2:
                fleet.receive(which, _request(reader).SerializeToString())
            case 3:
                fleet.receive(which, _response(reader).SerializeToString())
            case 4:
                fleet.receive(which, reader.piece())
            case 5:
                fleet.now += reader.byte() / 50
                fleet.desk.run(fleet.now)
            case 6:
                fleet.close(which)
            case _:
                fleet.change(reader.byte())
    fleet.over()


def _fill(message: ProcessingRequest, kind: str, headers: dict[str, bytes], *, ends: bool) -> ProcessingRequest:
    part = getattr(message, kind)
    part.end_of_stream = ends
    for key, value in headers.items():
        part.headers.headers.add(key=key, raw_value=value)
    return message


def _more(reader: Reader) -> dict[str, bytes]:
    return {reader.pick(_HEADERS): reader.piece() for _ in range(reader.byte() % 4)}


def _request(reader: Reader) -> ProcessingRequest:
    how = reader.byte()
    base = {
        ":method": b"POST",
        ":path": b"/readyz" if how % 16 == 15 else b"/v1/chat/completions",
        "content-type": b"application/json",
        "content-length": reader.pick(_LENGTHS),
        names.AGENT_ID: reader.pick(_AGENTS),
    }
    return _fill(ProcessingRequest(), "request_headers", base | _more(reader), ends=how % 4 == 3)


def _body(reader: Reader) -> ProcessingRequest:
    message = ProcessingRequest()
    body = reader.pick(_BODIES)
    message.request_body.body = body if reader.byte() % 2 else reader.piece()
    message.request_body.end_of_stream = True
    return message


def _response(reader: Reader) -> ProcessingRequest:
    message = ProcessingRequest()
    address = reader.pick(_ADDRESSES)
    if address is not None:
        message.attributes["envoy.filters.http.ext_proc"].fields["upstream.address"].string_value = address
    how = reader.byte()
    if how & 1:
        ours = message.metadata_context.filter_metadata[names.METADATA_NAMESPACE].fields
        ours[names.METADATA_CLAMPED].string_value = names.CLAMPED_LOWERED
        ours[names.METADATA_FAILED].string_value = _ADDRESSES[how >> 1 & 1] or ""
        ours[names.METADATA_FAILED_BODY].string_value = reader.piece().decode("latin-1")
    headers = {":status": reader.pick(_STATUSES)} | _more(reader)
    return _fill(message, "response_headers", headers, ends=how % 4 == 3)


def _rest(reader: Reader) -> ProcessingRequest:
    message = ProcessingRequest()
    match reader.byte() % 4:
        case 0:
            message.response_body.body = reader.piece()
        case 1:
            message.request_trailers.SetInParent()
        case 2:
            message.response_trailers.SetInParent()
    return message


_MESSAGES: Final[tuple[Callable[[Reader], ProcessingRequest], ...]] = (_body, _rest)


def _placed(agent: int, *rest: int) -> bytes:
    return bytes((0, 6, 0, 0, agent, 0, *rest))


SEEDS: Final = (
    # Placed on its headers, answered, closed.
    _placed(0, 9, 0, 0, 0, 0, 18),
    # With a body; a second one waits for the slot, and gets it.
    _placed(4, 0, 0, 1, 1) + bytes((7, 0, 0, 4, 0, 1, 0, 1, 1, 9, 0, 0, 0, 0, 18, 15, 1)),
    # Two for one slot, time passes, the worker goes.
    _placed(1) + bytes((7, 0, 0, 1, 0, 8, 0, 0, 1, 0, 21, 3, 15, 200, 15, 200)),
    # A batch, degraded, an error with its body.
    _placed(3) + bytes((7, 0, 0, 2, 0, 15, 100, 9, 1, 0, 3, 0, 0, 1, 0, 4)) + b"CUDA",
    # Described by X-Agent-Meta, with a session.
    bytes((0, 6, 0, 0, 5, 2, 0, 21)) + b'{"model_family":"qwen"}'[:21] + bytes((7, 3)) + b"abc",
    # A retry: served by the other worker, with what the first one said.
    _placed(4, 0, 0, 0, 0) + bytes((9, 1, 1, 8)) + b"aGVsbG8=" + bytes((0, 0)),
    bytes((3,)) + _placed(5)[1:],
    b"\x00\x0c\x05\x12\x03\x0a\x01a",
)
