"""One ext_proc stream as a state machine, sans-IO: messages in, messages out (DESIGN §4.3).

The stream lives as long as the request, so what a request holds in the fleet's counts is released when the stream
ends, however it ends, exactly once.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from google.protobuf.message import DecodeError

from extproc import answers, messages
from extproc.body import BodyFacts, read_json_body
from extproc.decision import Arrival, Decision, Demand
from extproc.decisions import DecisionLog, Note
from extproc.desk import Desk, Ticket
from extproc.gateway import Gateway
from extproc.stream import SessionFactory, StreamError, Unready
from extproc.witness import EVENT_STREAM, Witness
from recursant import names
from recursant.fleet.prompts import Prompt
from recursant.problems import ApiProblem, unavailable
from recursant.routing.affinity import KEPT, MOVED, RETRY

_READYZ: Final = b"/readyz"
# Seconds that a client should wait where an upstream's 429 or 503 does not say.
_DEFAULT_RETRY_AFTER: Final = "1"
# The answer of a held request comes no later than its deadline, and this much for the way.
_ANSWER_MARGIN_S: Final = 1.0
# What a refusal for want of workers may be: unknown, shed by the agent's fallback, unavailable.
_FOR_WANT_OF_WORKERS: Final = (404, 429, 503)
_RETRY_AFTER_STATUSES: Final = (b"429", b"503")
_STATUS_DIGITS: Final = 3


class _State(Enum):
    NEW = auto()
    AWAITING_BODY = auto()
    # Held until a worker has room.
    HELD = auto()
    # Decided, or let through: the upstream has it.
    SENT = auto()
    # The response has begun.
    ANSWERED = auto()
    # We answered the client ourselves.
    REFUSED = auto()
    CLOSED = auto()


class RequestSession:
    """Decides one request and keeps its count until its stream ends.

    Args:
        gateway: reads the request and knows the fleet.
        desk: places, holds or refuses it.
        send: carries an answer that comes later.
        log: keeps the decisions that are worth it.
    """

    __slots__ = (
        "_arrival",
        "_decision",
        "_deliver",
        "_demand",
        "_desk",
        "_gateway",
        "_log",
        "_note",
        "_outcome",
        "_phase",
        "_prompt",
        "_request_id",
        "_row",
        "_state",
        "_ticket",
        "_witness",
        "_worker",
    )

    def __init__(
        self, gateway: Gateway, desk: Desk, send: Callable[[bytes], None], log: DecisionLog | None = None
    ) -> None:
        self._gateway = gateway
        self._desk = desk
        self._deliver = send
        self._state = _State.NEW
        self._arrival: Arrival | None = None
        self._demand: Demand | None = None
        self._decision: Decision | None = None
        self._ticket: Ticket | None = None
        self._witness: Witness | None = None
        # The message that waits for its answer.
        self._phase: messages.Phase = "request_headers"
        # The row of the worker that the request counts at.
        self._row: int | None = None
        self._worker = ""
        # Under way until the answer begins; that of a stream until its time is over.
        self._prompt: Prompt | None = None
        self._outcome = "cancelled"
        self._log = log
        # In the log, if this decision is.
        self._note: Note | None = None
        self._request_id = b""

    def receive(self, message: bytes) -> bytes | None:
        """Take one serialised `ProcessingRequest`; give the serialised answer. See `extproc.stream.Session`."""
        try:
            request = messages.parse(message)
        except DecodeError as error:
            raise StreamError("not a ProcessingRequest") from error
        match request.WhichOneof("request"):
            case "request_headers":
                return self._request_headers(request)
            case "request_body":
                return self._request_body(request)
            case "response_headers":
                return self._response_headers(request, message)
            case "response_body" if self._witness is not None:
                self._witness.body(request.response_body.body)
                return messages.go_on(request)
            case None:
                raise StreamError("a ProcessingRequest without a request")
            case _:
                return messages.go_on(request)

    def close(self) -> None:
        """The stream is over: release what the request held, and count how it went."""
        if self._state is _State.CLOSED:
            return
        self._state = _State.CLOSED
        if self._ticket is not None:
            self._desk.leave(self._ticket)
        if self._witness is not None:
            self._witness.closed(self._row)
        self._release()
        if self._outcome == "ok":
            self._measure()
        if self._arrival is not None:
            self._gateway.recorder.request_finished(self._arrival.agent.agent, self._worker, self._outcome)
        if self._note is not None and self._log is not None:
            self._log.ended(self._note, self._worker, self._outcome)

    def resume(self, outcome: Decision | ApiProblem) -> None:
        """The desk has an answer for the request that it held."""
        self._ticket = None
        self._take(outcome)
        if self._log is not None and self._arrival is not None and self._demand is not None:
            self._note = self._log.resumed(self._note, self._request_id, self._arrival, self._demand, outcome)
        self._deliver(self._answer(outcome))

    # --- the request ---

    def _request_headers(self, request: ProcessingRequest) -> bytes:
        if self._state is not _State.NEW:
            raise StreamError("request headers twice")
        began = self._gateway.clock()
        headers = messages.headers_of(request.request_headers)
        if headers.get(":path", b"").split(b"?", 1)[0] == _READYZ:
            return self._readiness()
        self._request_id = headers.get(names.REQUEST_ID, b"")
        arrival = self._gateway.arrival(headers, has_body=not request.request_headers.end_of_stream)
        if isinstance(arrival, ApiProblem):
            return self._refuse(arrival)
        self._arrival = arrival
        if self._gateway.needs_body(arrival):
            self._state = _State.AWAITING_BODY
            return messages.ASK_FOR_BODY
        return self._decide(arrival, None, "request_headers", began)

    def _request_body(self, request: ProcessingRequest) -> bytes:
        # A body may come after it was decided on: an empty end of stream of its own, or a second one.
        if self._state is not _State.AWAITING_BODY or self._arrival is None:
            return messages.go_on(request)
        began = self._gateway.clock()
        facts = read_json_body(request.request_body.body, self._gateway.prefix_seed(self._arrival))
        if isinstance(facts, ApiProblem):
            return self._refuse(facts)
        return self._decide(self._arrival, facts, "request_body", began)

    def _decide(self, arrival: Arrival, body: BodyFacts | None, phase: messages.Phase, began: float) -> bytes:
        self._phase = phase
        model = "" if body is None else body.model or ""
        demand = self._gateway.demand(arrival, body)
        if isinstance(demand, ApiProblem):
            self._trust(demand, arrival, model)
            return self._refuse(demand)
        self._demand = demand
        outcome = self._desk.admit(self, demand, began)
        if isinstance(outcome, ApiProblem):
            self._trust(outcome, arrival, model)
        self._take(outcome)
        took = self._gateway.clock() - began
        self._gateway.recorder.decided(took)
        if self._log is not None:
            self._note = self._log.decided(self._request_id, arrival, demand, outcome, took)
        if isinstance(outcome, Ticket):
            self._ticket = outcome
            self._state = _State.HELD
            # Envoy takes one extension for each message: ask for the whole of it.
            return messages.more_time(demand.deadline_s - began + _ANSWER_MARGIN_S)
        return self._answer(outcome)

    def _trust(self, refusal: ApiProblem, arrival: Arrival, model: str) -> None:
        """Is a refusal the last word?

        Raises:
            Unready: it is for want of workers, and whoever could serve this may not have been heard yet.
        """
        if refusal.status in _FOR_WANT_OF_WORKERS and self._gateway.may_come(arrival.agent, model):
            self._outcome = "unready"
            raise Unready("not everybody of the fleet was heard yet")

    def _take(self, outcome: Decision | Ticket | ApiProblem) -> None:
        """Own the place that was given, before anything else can go wrong: from here on `close` gives it back."""
        if isinstance(outcome, Decision):
            self._decision = outcome
            self._row = outcome.rows[0]

    def _answer(self, outcome: Decision | ApiProblem) -> bytes:
        if isinstance(outcome, ApiProblem) or self._arrival is None or self._demand is None:
            return self._refuse(outcome if isinstance(outcome, ApiProblem) else unavailable("nothing was asked for"))
        self._state = _State.SENT
        self._worker = self._gateway.table.worker_id(outcome.rows[0])
        self._prompt = self._gateway.prompts.sent(
            outcome.rows[0], outcome.prompt_tokens, outcome.cached_tokens, self._gateway.clock()
        )
        self._witness = Witness(self._gateway, outcome.rows, self._demand.deadline_s)
        agent = self._arrival.agent
        return answers.to_worker(
            self._phase,
            outcome,
            agent.agent,
            self._demand.priority_class.label,
            agent.priority,
            self._arrival.request_headers,
        )

    def _refuse(self, problem: ApiProblem) -> bytes:
        self._state = _State.REFUSED
        self._outcome = "refused"
        if self._log is not None and self._note is None:
            self._note = self._log.refused(self._request_id, self._arrival, problem)
        agent = names.NO_AGENT if self._arrival is None else self._arrival.agent.agent
        return messages.immediate(problem, ((names.SERVED_AGENT, agent),))

    def _readiness(self) -> bytes:
        self._state = _State.REFUSED
        problem = self._gateway.ready()
        if problem is not None:
            return messages.immediate(problem)
        headers = (("content-type", "application/json"),)
        return messages.immediate_answer(200, headers, b'{"status":"ready"}', details="recursant_ready")

    # --- the response ---

    def _response_headers(self, request: ProcessingRequest, message: bytes) -> bytes:
        # Envoy's own answer to a request that never came to us (a CORS preflight, a body over the limit).
        arrival, decision, witness = self._arrival, self._decision, self._witness
        if self._state is not _State.SENT or arrival is None or decision is None or witness is None:
            return messages.go_on(request)
        self._state = _State.ANSWERED
        headers = messages.headers_of(request.response_headers)
        if not headers.get("content-type", b"").startswith(EVENT_STREAM):
            # The head of a stream goes out before its prompt is read.
            self._prompt_read()
        self._move_to(messages.upstream_address(request))
        status = headers.get(":status", b"")
        self._outcome = _outcome(status)
        if self._note is not None:
            self._note.answered(_number(status))
        agent = arrival.agent
        affinity = None
        if decision.affinity is not None and (self._worker or decision.affinity != KEPT):
            affinity = self._affinity(decision.affinity)
        clamped = agent.clamped
        if decision.max_tokens is not None and messages.clamped_by_lua(request, added_too=decision.shaped is not None):
            clamped = (*clamped, names.CLAMPED_MAX_TOKENS)
        retry_after = None
        if status in _RETRY_AFTER_STATUSES and names.RETRY_AFTER not in headers:
            retry_after = _DEFAULT_RETRY_AFTER
        answer = answers.to_client(agent.agent, self._worker, decision.fallback, affinity, clamped, retry_after)
        has_body = not request.response_headers.end_of_stream
        self._tell_of_retry(messages.failed_attempt(request, message), witness)
        if witness.answered(self._row, _number(status), headers, has_body=has_body):
            answer += messages.ASK_FOR_RESPONSE_BODY
        return answer

    def _affinity(self, outcome: str) -> str:
        """What became of affinity in the end: the worker that was chosen for it may have failed."""
        if outcome != KEPT or self._decision is None or self._row == self._decision.rows[0] or self._arrival is None:
            return outcome
        self._gateway.recorder.affinity_settled(self._arrival.agent.agent, MOVED + RETRY)
        return MOVED + RETRY

    def _tell_of_retry(self, failed: tuple[str, bytes] | None, witness: Witness) -> None:
        """A 500 that never came here, as Envoy tried again elsewhere, speaks about its worker all the same."""
        if failed is None:
            return
        endpoint, body = failed
        row = self._gateway.table.served.row_of_endpoint(endpoint)
        # Where it was the last attempt as well, its answer is the one that came.
        if row is not None and row != self._row:
            witness.failed(row, body)

    def _move_to(self, endpoint: str | None) -> None:
        """Move the count to the host that really served, after a retry; without one nobody did."""
        table = self._gateway.table
        row = None if endpoint is None else table.served.row_of_endpoint(endpoint)
        if row == self._row:
            return
        self._release()
        decision = self._decision
        if row is not None and decision is not None:
            table.acquire(row, decision.prompt_tokens, decision.answer_tokens)
            self._row = row
            self._worker = table.worker_id(row)
            if self._demand is not None:
                self._gateway.served_by(self._demand, row)
        else:
            self._worker = ""

    def _measure(self) -> None:
        """Let the length of this request's body count for the estimates of those to come."""
        arrival, decision, demand = self._arrival, self._decision, self._demand
        if arrival is None or decision is None or demand is None or not self._worker or not arrival.json_body:
            return
        gateway = self._gateway
        family = gateway.family_of(None, decision.model)
        expected = decision.need_of(demand).expected_tokens
        gateway.calibration.finished(self._worker, family, arrival.content_length or 0, expected)

    def _prompt_read(self) -> None:
        if self._prompt is not None:
            self._gateway.prompts.read(self._prompt)
            self._prompt = None

    def _release(self) -> None:
        self._prompt_read()
        if self._row is not None and self._decision is not None:
            self._gateway.table.release(self._row, self._decision.prompt_tokens, self._decision.answer_tokens)
            self._row = None
            self._desk.capacity_changed()


def _number(status: bytes) -> int:
    return int(status) if len(status) == _STATUS_DIGITS and status.isdigit() else 0


def _outcome(status: bytes) -> str:
    """The class of an answer, as the metric names it."""
    match status[:1]:
        case b"1" | b"2" | b"3":
            return "ok"
        case b"4":
            return "client_error"
        case _:
            return "server_error"


def sessions(gateway: Gateway, desk: Desk, log: DecisionLog | None = None) -> SessionFactory:
    """What a transport makes the sessions of its streams with."""

    def of_stream(send: Callable[[bytes], None]) -> RequestSession:
        return RequestSession(gateway, desk, send, log)

    return of_stream
