import json
import random
from itertools import count
from typing import Any

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from fleet_kit import PHI, QWEN, Recorded, record, table_of

from extproc.desk import Desk, Ticket
from extproc.gateway import Gateway
from extproc.session import RequestSession
from extproc.stream import StreamError, Unready
from recursant.admission.queue import HoldQueue
from recursant.config.model import Config
from recursant.fleet.facts import Fact
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import Model, WorkerStatus

AGENTS: list[dict[str, Any]] = [
    {"agent_id": "chat-web", "model_family": "qwen", "latency_sla_ms": 800, "priority": 10},
    {"agent_id": "batch-summary", "model_family": "phi", "priority": 1},
    {"agent_id": "anything", "priority": 5},
    {"agent_id": "dropped", "model_family": "phi", "fallback_strategy": "drop"},
    {"agent_id": "stand-in", "model_family": "phi", "fallback_strategy": "degrade_to_qwen"},
]


class Bench:
    """A gateway over a small fleet, and one session driven by hand."""

    def __init__(self, *records: Any, config: dict[str, Any] | None = None, settled: bool = True) -> None:
        self.table: FleetTable = table_of(*records)
        self.recorded = Recorded()
        self.settled = settled
        ticks = count()
        self.gateway = Gateway(
            config=Config.model_validate({"agents": AGENTS} | (config or {})),
            table=self.table,
            recorder=self.recorded,
            clock=lambda: float(next(ticks)),
            rng=random.Random(7),
            settled=lambda: self.settled,
        )
        self.woken = 0
        self.queue: HoldQueue[Ticket] = HoldQueue(8)
        self.desk = Desk(self.gateway, self.queue, self._wake)
        self.session = self.new_session()

    def _wake(self) -> None:
        self.woken += 1

    def new_session(self) -> RequestSession:
        session = RequestSession(self.gateway, self.desk, self._deliver)
        self.late: list[ProcessingResponse] = []
        return session

    def _deliver(self, message: bytes) -> None:
        self.late.append(ProcessingResponse.FromString(message))

    def send(self, message: ProcessingRequest) -> ProcessingResponse:
        answer = self.session.receive(message.SerializeToString())
        assert answer is not None
        return ProcessingResponse.FromString(answer)

    def request(self, *, body: bool = True, **headers: str) -> ProcessingResponse:
        message = ProcessingRequest()
        message.request_headers.end_of_stream = not body
        base = {":method": "POST", ":path": "/v1/chat/completions", "x-request-id": "req-1", "traceparent": "00-1-2-00"}
        if body:
            base["content-type"] = "application/json"
            base["content-length"] = "120"
        fill(message.request_headers, base | {k.replace("_", "-"): v for k, v in headers.items()})
        return self.send(message)

    def body(self, content: bytes) -> ProcessingResponse:
        message = ProcessingRequest()
        message.request_body.body = content
        message.request_body.end_of_stream = True
        return self.send(message)

    def response(
        self, status: str = "200", upstream: str | None = None, clamped: str | None = None, **headers: str
    ) -> ProcessingResponse:
        message = ProcessingRequest()
        if clamped is not None:
            message.metadata_context.filter_metadata["recursant"].fields["clamped"].string_value = clamped
        fill(message.response_headers, {":status": status} | {k.replace("_", "-"): v for k, v in headers.items()})
        if upstream is not None:
            fields = message.attributes["envoy.filters.http.ext_proc"].fields
            fields["upstream.address"].string_value = upstream
        return self.send(message)

    def in_flight(self) -> int:
        return self.table.in_flight_total()


def fill(target: Any, headers: dict[str, str]) -> None:
    for key, value in headers.items():
        header = target.headers.headers.add()
        header.key = key
        header.raw_value = value.encode()


def mutations(answer: ProcessingResponse) -> dict[str, str]:
    common = getattr(answer, answer.WhichOneof("response")).response
    assert all(
        option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD for option in common.header_mutation.set_headers
    )
    return {option.header.key: option.header.raw_value.decode() for option in common.header_mutation.set_headers}


def metadata(answer: ProcessingResponse) -> dict[str, Any]:
    fields = answer.dynamic_metadata.fields["recursant"].struct_value.fields
    return {key: getattr(value, value.WhichOneof("kind")) for key, value in fields.items()}


def error(answer: ProcessingResponse) -> tuple[int, str]:
    immediate = answer.immediate_response
    return immediate.status.code, json.loads(immediate.body)["error"]["code"]


def immediate_headers(answer: ProcessingResponse) -> dict[str, str]:
    options = answer.immediate_response.headers.set_headers
    return {option.header.key: option.header.raw_value.decode() for option in options}


# --- the request ---


def test_an_agents_request_is_decided_on_its_headers() -> None:
    bench = Bench(record("w1"), record("w2", running_requests=3), record("w3", models=[PHI]))
    answer = bench.request(x_agent_id="chat-web")
    assert answer.WhichOneof("response") == "request_headers"
    assert not answer.HasField("mode_override")
    assert mutations(answer) == {
        "x-recursant-agent": "chat-web",
        "x-recursant-class": "high",
        "x-recursant-priority": "10",
        "x-envoy-max-retries": "1",
    }
    assert metadata(answer) == {
        "endpoints": "10.0.0.1:8000,10.0.0.2:8000",
        "model": QWEN.name,
        "allowed_models": f",{QWEN.name},",
    }
    assert bench.table.in_flight() == {"w1": 1, "w2": 0, "w3": 0}
    assert len(bench.recorded.decisions) == 1


def test_the_description_ends_at_the_gateway() -> None:
    removed = Bench(record("w1")).request(x_agent_id="chat-web").request_headers.response.header_mutation.remove_headers
    assert set(removed) == {
        "x-agent-meta",
        "x-agent-priority",
        "x-agent-latency-sla-ms",
        "x-agent-max-new-tokens",
        "x-agent-context-length",
        "x-agent-model-family",
    }


def test_engine_priority_goes_to_workers_that_schedule_by_it() -> None:
    bench = Bench(record("w1", priority_scheduling=True))
    # vLLM: smaller = sooner, so the High class is below Normal's number.
    high = metadata(bench.request(x_agent_id="chat-web"))["priority"]
    other = Bench(record("w1", models=[PHI], priority_scheduling=True))
    low = metadata(other.request(x_agent_id="batch-summary"))["priority"]
    assert high < low
    assert "priority" not in metadata(Bench(record("w1")).request(x_agent_id="chat-web"))


@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "ключ", "\x01"])
def test_a_bad_request_id_is_replaced(bad: str) -> None:
    replaced = mutations(Bench(record("w1")).request(x_agent_id="chat-web", x_request_id=bad))["x-request-id"]
    assert len(replaced) == 32
    assert "x-request-id" not in mutations(Bench(record("w1")).request(x_agent_id="chat-web", x_request_id="my-id.1"))


def test_a_trace_begins_here_where_the_client_has_none() -> None:
    bench = Bench(record("w1"))
    message = ProcessingRequest()
    fill(message.request_headers, {":path": "/", "x-agent-id": "chat-web", "x-request-id": "r"})
    version, trace, parent, flags = mutations(bench.send(message))["traceparent"].split("-")
    assert (version, len(trace), len(parent), flags) == ("00", 32, 16, "00")
    assert "traceparent" not in mutations(Bench(record("w1")).request(x_agent_id="chat-web"))


def test_envoy_may_send_value_or_raw_value() -> None:
    bench = Bench(record("w1"))
    message = ProcessingRequest()
    header = message.request_headers.headers.headers.add()
    header.key, header.value = "x-agent-id", "chat-web"
    message.request_headers.end_of_stream = True
    assert mutations(bench.send(message))["x-recursant-agent"] == "chat-web"


def test_a_body_over_the_limit_is_refused_at_the_headers() -> None:
    bench = Bench(record("w1"), config={"limits": {"body_bytes": 1_024}})
    assert error(bench.request(x_agent_id="chat-web", content_length="1025")) == (413, "request_too_large")
    # More digits than Python reads.
    bench.session = bench.new_session()
    assert error(bench.request(x_agent_id="chat-web", content_length="9" * 5_000)) == (413, "request_too_large")
    assert bench.in_flight() == 0


def test_a_session_id_is_bounded() -> None:
    answer = Bench(record("w1")).request(x_agent_id="chat-web", x_session_id="s" * 257)
    assert error(answer) == (400, "invalid_request")


# --- the body ---


@pytest.mark.parametrize("content", [b'{"model":"auto"}', b"{}", b'{"model":null}', b'{"model":""}'])
def test_without_an_agent_the_body_is_asked_for(content: bytes) -> None:
    bench = Bench(record("w1"))
    asked = bench.request()
    assert asked.mode_override.request_body_mode == asked.mode_override.BUFFERED
    assert bench.in_flight() == 0
    answer = bench.body(content)
    assert answer.WhichOneof("response") == "request_body"
    assert metadata(answer) == {"endpoints": "10.0.0.1:8000", "model": QWEN.name}
    assert mutations(answer)["x-recursant-agent"] == "default"
    assert bench.recorded.fallbacks == [("default", "round_robin")]
    assert bench.in_flight() == 1


def test_a_body_that_only_looks_longer_than_any_context_goes_to_the_engine() -> None:
    """Its length is an estimate from bytes, which may be no text: the engine's tokenizer has the word."""
    bench = Bench(record("w1"))
    bench.request(content_length="400000")
    assert metadata(bench.body(b'{"model":"auto","prompt":"hi"}'))["endpoints"] == "10.0.0.1:8000"
    assert bench.recorded.fallbacks == [("default", "context")]


def test_an_explicit_model_goes_where_it_is_served() -> None:
    bench = Bench(record("w1"), record("w2", models=[PHI]))
    bench.request()
    assert metadata(bench.body(json.dumps({"model": PHI.name}).encode()))["endpoints"] == "10.0.0.2:8000"


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "invalid_request"),
        (b"{", 400, "invalid_request"),
        (b"[]", 400, "invalid_request"),
        (b'"text"', 400, "invalid_request"),
        (b"\xff\xfe", 400, "invalid_request"),
        (b'{"model": 7}', 400, "invalid_request"),
        (b'{"a":' * 100_000, 400, "invalid_request"),
        (b'{"model":"gpt-x"}', 404, "model_not_found"),
    ],
)
def test_a_bad_body_is_answered_before_any_worker(content: bytes, status: int, code: str) -> None:
    bench = Bench(record("w1"))
    bench.request()
    assert error(bench.body(content)) == (status, code)
    assert bench.in_flight() == 0


@pytest.mark.parametrize(
    ("agent", "records"),
    [
        ("batch-summary", []),
        ("anything", []),
        # Its fallback would shed it.
        ("dropped", []),
        # Of whom something was heard, but nobody who may serve it.
        ("batch-summary", [record("w2", models=[PHI], exclusive=True)]),
        ("batch-summary", [record("w2", models=[PHI], status=WorkerStatus.WARMING)]),
    ],
)
def test_before_the_fleet_is_known_nobody_is_refused_for_want_of_workers(agent: str, records: list[Any]) -> None:
    bench = Bench(*records, settled=False)
    with pytest.raises(Unready):
        bench.request(x_agent_id=agent) if agent != "anything" else bench.request(body=False, x_agent_id=agent)
    bench.session.close()
    assert bench.recorded.finished == [(agent, "", "unready")]
    assert bench.in_flight() == 0


def test_before_the_fleet_is_known_fallbacks_serve_from_who_is() -> None:
    bench = Bench(record("w1"), settled=False)
    assert metadata(bench.request(x_agent_id="stand-in"))["endpoints"] == "10.0.0.1:8000"


def test_what_the_request_itself_does_wrong_is_said_at_once() -> None:
    bench = Bench(settled=False)
    assert error(bench.request(x_agent_id="chat-web", x_agent_meta="{")) == (400, "invalid_request")


def test_a_model_that_nobody_has_yet_is_not_called_missing_until_the_fleet_is_known() -> None:
    bench = Bench(record("w1"), settled=False)
    unknown = b'{"model":"gpt-x"}'
    bench.request()
    with pytest.raises(Unready):
        bench.body(unknown)
    # What is known already is served.
    bench.session = bench.new_session()
    assert bench.request(x_agent_id="chat-web").HasField("request_headers")
    bench.settled = True
    bench.session = bench.new_session()
    bench.request()
    assert error(bench.body(unknown)) == (404, "model_not_found")


def test_a_family_of_several_models_needs_the_body() -> None:
    big = Model("Qwen/Qwen2.5-72B-Instruct", "qwen", 32_768)
    bench = Bench(record("w1"), record("w2", models=[big]), record("w3", models=[PHI]))
    assert bench.request(x_agent_id="chat-web").HasField("mode_override")
    assert metadata(bench.body(json.dumps({"model": big.name}).encode()))["endpoints"] == "10.0.0.2:8000"


def test_another_familys_model_is_forbidden_to_an_agent() -> None:
    config = {"agents": [{"agent_id": "a", "model_family": "qwen", "inspect_body": "always"}]}
    bench = Bench(record("w1", models=[QWEN, PHI]), config=config)
    bench.request(x_agent_id="a")
    assert error(bench.body(json.dumps({"model": PHI.name}).encode())) == (403, "model_not_allowed")


def test_an_agent_may_be_allowed_other_models() -> None:
    config = {"agents": [{"agent_id": "a", "model_family": "qwen", "allow_other_models": True}]}
    bench = Bench(record("w1", models=[PHI]), config=config)
    bench.request(x_agent_id="a")
    assert metadata(bench.body(json.dumps({"model": PHI.name}).encode()))["endpoints"] == "10.0.0.1:8000"


def test_the_body_is_never_asked_for_where_the_policy_says_so() -> None:
    config = {"agents": [{"agent_id": "a", "model_family": "qwen", "inspect_body": "never"}]}
    bench = Bench(record("w1"), record("w2", models=[Model("qwen-b", "qwen")]), config=config)
    assert not bench.request(x_agent_id="a").HasField("mode_override")


@pytest.mark.parametrize("content_type", ["multipart/form-data; boundary=x", "audio/wav"])
def test_bodies_that_are_not_json_are_not_looked_at(content_type: str) -> None:
    answer = Bench(record("w1")).request(content_type=content_type)
    assert metadata(answer)["endpoints"] == "10.0.0.1:8000"


def test_a_bodiless_get_needs_no_body() -> None:
    bench = Bench(record("w1"))
    answer = bench.request(body=False, **{":method": "GET", ":path": "/version"})
    assert metadata(answer)["endpoints"] == "10.0.0.1:8000"


def test_the_policys_model_is_what_auto_becomes() -> None:
    config = {"agents": [{"agent_id": "a", "model_family": "qwen", "model": "qwen-b", "inspect_body": "never"}]}
    bench = Bench(record("w1"), record("w2", models=[Model("qwen-b", "qwen")]), config=config)
    assert metadata(bench.request(x_agent_id="a")) == {
        "endpoints": "10.0.0.2:8000",
        "model": "qwen-b",
        "allowed_models": ",qwen-b,",
    }


def test_an_empty_end_of_the_body_changes_nothing() -> None:
    bench = Bench(record("w1"))
    bench.request()
    bench.body(b"{}")
    again = bench.body(b"")
    assert again.WhichOneof("response") == "request_body"
    assert not again.HasField("dynamic_metadata")
    assert bench.in_flight() == 1


# --- nobody can serve ---


def test_a_family_without_a_ready_worker_is_unavailable() -> None:
    bench = Bench(record("w1", status=WorkerStatus.MISSING))
    answer = bench.request(x_agent_id="chat-web")
    assert error(answer) == (503, "no_worker")
    assert immediate_headers(answer)["retry-after"] == "1"
    assert bench.recorded.finished == []
    bench.session.close()
    assert bench.recorded.finished == [("chat-web", "", "refused")]


def test_unknown_agents_may_be_rejected_by_configuration() -> None:
    bench = Bench(record("w1"), config={"routing": {"default_fallback": "reject"}})
    bench.request()
    assert error(bench.body(b"{}")) == (403, "agent_required")


def test_readiness() -> None:
    assert Bench(record("w1")).request(body=False, **{":path": "/readyz?x=1"}).immediate_response.status.code == 200
    assert error(Bench().request(body=False, **{":path": "/readyz"})) == (503, "no_worker")


# --- the response, and the end ---


def test_the_response_says_who_served() -> None:
    bench = Bench(record("w1"))
    bench.request(x_agent_id="chat-web")
    answer = bench.response(upstream="10.0.0.1:8000")
    assert mutations(answer) == {"x-recursant-agent": "chat-web", "x-recursant-worker": "w1"}
    bench.session.close()
    assert bench.recorded.finished == [("chat-web", "w1", "ok")]
    assert bench.in_flight() == 0


def test_after_a_retry_the_count_moves_to_the_host_that_served() -> None:
    bench = Bench(record("w1"), record("w2", running_requests=5))
    bench.request(x_agent_id="chat-web")
    assert bench.table.in_flight() == {"w1": 1, "w2": 0}
    assert mutations(bench.response(upstream="10.0.0.2:8000"))["x-recursant-worker"] == "w2"
    assert bench.table.in_flight() == {"w1": 0, "w2": 1}
    bench.session.close()
    assert bench.in_flight() == 0
    assert bench.recorded.finished == [("chat-web", "w2", "ok")]


@pytest.mark.parametrize(("content_type", "read"), [("application/json", True), ("text/event-stream", False)])
def test_the_head_of_a_stream_does_not_tell_that_its_prompt_is_read(content_type: str, read: bool) -> None:
    bench = Bench(record("w1"))
    bench.request(x_agent_id="chat-web")
    before = bench.table.facts_of_one(0)[Fact.UNREAD_WORK]
    assert before > 0
    bench.response(upstream="10.0.0.1:8000", content_type=content_type)
    assert bench.table.facts_of_one(0)[Fact.UNREAD_WORK] == (0 if read else before)
    bench.session.close()
    assert bench.table.facts_of_one(0)[Fact.UNREAD_WORK] == 0


def test_an_answer_of_envoys_own_names_no_worker() -> None:
    bench = Bench(record("w1"))
    bench.request(x_agent_id="chat-web")
    answer = mutations(bench.response("503"))
    assert "x-recursant-worker" not in answer
    assert answer["retry-after"] == "1"
    assert bench.in_flight() == 0


@pytest.mark.parametrize(
    ("status", "own", "added"),
    [("429", None, "1"), ("503", None, "1"), ("503", "7", None), ("500", None, None), ("200", None, None)],
)
def test_retry_after_is_added_where_it_lacks(status: str, own: str | None, added: str | None) -> None:
    bench = Bench(record("w1"))
    bench.request(x_agent_id="chat-web")
    headers = {} if own is None else {"retry_after": own}
    assert mutations(bench.response(status, upstream="10.0.0.1:8000", **headers)).get("retry-after") == added


@pytest.mark.parametrize(("how", "said"), [("lowered", "max_tokens"), ("added", None), (None, None)])
def test_a_bound_in_the_body_that_lua_lowered_is_said(how: str | None, said: str | None) -> None:
    bounded = {"agent_id": "brief", "model_family": "qwen", "max_new_tokens": 20}
    bench = Bench(record("w1"), config={"agents": [bounded]})
    answer = bench.request(x_agent_id="brief")
    assert metadata(answer)["max_tokens"] == 20
    assert mutations(bench.response(clamped=how)).get("x-recursant-clamped") == said


def test_what_was_clamped_and_every_fallback_is_said() -> None:
    bench = Bench(record("w1", running_requests=9, queue_wait_ms=5_000.0))
    bench.request(x_agent_id="chat-web", x_agent_priority="99", x_agent_latency_sla_ms="9000")
    answer = mutations(bench.response(upstream="10.0.0.1:8000"))
    assert answer["x-recursant-clamped"] == "priority,latency_sla_ms"
    assert answer["x-recursant-fallback"] == "sla"
    assert bench.recorded.fallbacks == [("chat-web", "sla")]


@pytest.mark.parametrize(
    ("status", "outcome"), [("200", "ok"), ("404", "client_error"), ("429", "client_error"), ("500", "server_error")]
)
def test_outcomes(status: str, outcome: str) -> None:
    bench = Bench(record("w1"))
    bench.request(x_agent_id="chat-web")
    bench.response(status, upstream="10.0.0.1:8000")
    bench.session.close()
    assert bench.recorded.finished == [("chat-web", "w1", outcome)]


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_hang_up_at_any_moment_releases_exactly_once(steps: int) -> None:
    bench = Bench(record("w1"))
    drive = [bench.request, lambda: bench.body(b"{}"), lambda: bench.response(upstream="10.0.0.1:8000")]
    for step in drive[:steps]:
        step()
    bench.session.close()
    bench.session.close()
    assert bench.in_flight() == 0
    assert len(bench.recorded.finished) == (1 if steps else 0)


def test_a_place_is_given_back_whatever_goes_wrong_after_it_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: float) -> None:
        raise OverflowError

    bench = Bench(record("w1"))
    monkeypatch.setattr(bench.recorded, "decided", fails)
    with pytest.raises(OverflowError):
        bench.request(body=False, x_agent_id="chat-web")
    assert bench.in_flight() == 1
    bench.session.close()
    assert bench.in_flight() == 0


def test_an_answer_to_a_request_that_never_came_passes() -> None:
    bench = Bench(record("w1"))
    answer = bench.response("413")
    assert answer.WhichOneof("response") == "response_headers"
    assert answer.response_headers.HasField("response")
    assert mutations(answer) == {}
    bench.session.close()
    assert bench.recorded.finished == []


@pytest.mark.parametrize("phase", ["request_trailers", "response_trailers", "response_body"])
def test_other_messages_are_let_through(phase: str) -> None:
    message = ProcessingRequest()
    getattr(message, phase).SetInParent()
    assert Bench(record("w1")).send(message).WhichOneof("response") == phase


@pytest.mark.parametrize("message", [b"", b"\xff\xff", b"hello"])
def test_a_broken_message_ends_the_stream(message: bytes) -> None:
    with pytest.raises(StreamError):
        Bench(record("w1")).session.receive(message)


def test_request_headers_come_once() -> None:
    bench = Bench(record("w1"))
    bench.request(x_agent_id="chat-web")
    with pytest.raises(StreamError):
        bench.request(x_agent_id="chat-web")
    bench.session.close()
    assert bench.in_flight() == 0


def test_the_worker_may_leave_while_it_serves() -> None:
    bench = Bench(record("w1"))
    bench.request(x_agent_id="chat-web")
    bench.table.remove("w1")
    bench.response(upstream="10.0.0.1:8000")
    bench.session.close()
    assert bench.in_flight() == 0
