"""What a session tells about the workers: driven by ext_proc messages, as Envoy sends them."""

from base64 import b64encode
from dataclasses import replace

import pytest
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from fleet_kit import PHI, record
from test_session import Bench, fill

from recursant import names
from recursant.fleet.evidence import Evidence, Reason
from recursant.fleet.isolation import Isolation, Phase, Standing
from recursant.fleet.worker import WorkerStatus
from recursant.sim import errors

FIRST, SECOND = "10.0.0.1:8000", "10.0.0.2:8000"


class Scene(Bench):
    """A request of chat-web that was sent, and the evidence that it gives."""

    def __init__(self, *workers: str) -> None:
        super().__init__(*(record(worker) for worker in workers or ("w1",)))
        self.seen: list[tuple[str, Evidence, str]] = []
        self.gateway.evidence = self._take
        self.request(x_agent_id="chat-web")

    def _take(self, worker_id: str, evidence: Evidence, *, text: str = "", since: float | None = None) -> None:
        assert since is not None
        self.seen.append((worker_id, evidence, text))

    def response_body(self, body: bytes) -> ProcessingResponse:
        message = ProcessingRequest()
        message.response_body.body = body
        message.response_body.end_of_stream = True
        return self.send(message)

    def kinds(self) -> list[tuple[str, Evidence]]:
        return [(worker, evidence) for worker, evidence, _ in self.seen]


@pytest.mark.parametrize(
    ("body", "evidence"),
    [
        (errors.cuda_error().encoded(), Evidence.CUDA_ERROR),
        (errors.out_of_memory().encoded(), Evidence.OUT_OF_MEMORY),
        (b"", Evidence.SERVER_ERROR),
    ],
)
def test_the_body_of_an_error_is_asked_for_and_passes_untouched(body: bytes, evidence: Evidence) -> None:
    scene = Scene()
    answer = scene.response("500", FIRST)
    assert answer.mode_override.response_body_mode == ProcessingMode.BUFFERED_PARTIAL
    # Still told when the response ends: the request's count depends on it.
    assert answer.mode_override.response_trailer_mode == ProcessingMode.SEND
    passed_on = scene.response_body(body).response_body
    assert not passed_on.response.HasField("body_mutation")
    assert scene.kinds() == [("w1", evidence)]
    scene.session.close()
    assert scene.kinds() == [("w1", evidence)]


@pytest.mark.parametrize("status", ["200", "400", "404", "429"])
def test_no_other_body_is_asked_for(status: str) -> None:
    answer = Scene().response(status, FIRST, content_type="text/event-stream")
    assert not answer.HasField("mode_override")


def test_a_long_error_body_is_left_alone_and_counts_as_plain() -> None:
    scene = Scene()
    assert not scene.response("500", FIRST, content_length="16385").HasField("mode_override")
    assert scene.kinds() == [("w1", Evidence.SERVER_ERROR)]


def test_an_error_whose_body_never_comes_counts_as_plain() -> None:
    scene = Scene()
    scene.response("500", FIRST)
    scene.session.close()
    assert scene.kinds() == [("w1", Evidence.SERVER_ERROR)]


@pytest.mark.parametrize("status", ["400", "404", "413", "429"])
def test_what_the_request_did_to_itself_is_no_evidence(status: str) -> None:
    scene = Scene()
    scene.response(status, FIRST)
    scene.session.close()
    assert scene.seen == []


def test_a_full_queue_is_no_evidence() -> None:
    scene = Scene()
    scene.response("503", FIRST)
    scene.response_body(errors.queue_full().encoded())
    scene.session.close()
    assert scene.seen == []


def test_an_answer_counts_at_once_and_a_stream_when_it_ends() -> None:
    scene = Scene()
    scene.response("200", FIRST, content_type="application/json")
    assert scene.kinds() == [("w1", Evidence.ANSWERED)]
    scene = Scene()
    scene.response("200", FIRST, content_type="text/event-stream; charset=utf-8")
    assert scene.seen == []
    scene.session.close()
    assert scene.kinds() == [("w1", Evidence.STREAM_ENDED)]


def test_a_worker_that_envoy_had_to_leave_is_named() -> None:
    scene = Scene("w1", "w2")
    assert scene.table.in_flight()["w1"] + scene.table.in_flight()["w2"] == 1
    first = next(worker for worker, count in scene.table.in_flight().items() if count)
    other = {"w1": SECOND, "w2": FIRST}[first]
    scene.response("200", other, content_type="application/json")
    assert scene.kinds()[0] == (first, Evidence.PASSED_OVER)
    assert scene.kinds()[1][1] is Evidence.ANSWERED


def test_only_who_waits_longer_than_it_has_to_speaks_against_the_worker() -> None:
    scene = Scene()
    scene.session.close()
    assert scene.seen == []
    scene = Scene()
    now = scene.gateway.clock()
    scene.gateway.clock = lambda: now + 16.0  # `routing.timeout_ms` is 15 s
    scene.session.close()
    assert scene.kinds() == [("w1", Evidence.NO_ANSWER)]


def test_a_request_that_never_went_out_says_nothing() -> None:
    scene = Scene()
    scene.seen.clear()
    scene.session = scene.new_session()
    scene.request(x_agent_id="nobody", x_agent_priority="junk")
    scene.session.close()
    assert scene.seen == []


@pytest.mark.parametrize(("left_s", "retry_after"), [(10.0, 10), (600.0, 60), (0.2, 1)])
def test_who_finds_only_isolated_workers_is_told_when_to_come_back(left_s: float, retry_after: int) -> None:
    isolation = Isolation("w1", "first", Reason.OOM, "", 1, 1_000.0 + left_s, 9_999.0)
    out = replace(record("w1"), status=WorkerStatus.ISOLATED, standing=Standing(isolation, Phase.ISOLATED))
    bench = Bench(out, record("w2", models=[PHI]))
    bench.gateway.clock = lambda: 1_000.0
    answer = bench.request(x_agent_id="chat-web").immediate_response
    assert answer.status.code == 503
    headers = {header.header.key: header.header.raw_value for header in answer.headers.set_headers}
    assert headers["retry-after"] == str(retry_after).encode()


@pytest.mark.parametrize("agent", ["chat-web", ""])
def test_a_worker_on_trial_gets_one_request_at_a_time(agent: str) -> None:
    isolation = Isolation("w1", "first", Reason.OOM, "", 1, 0.0, 1e9)
    bench = Bench(replace(record("w1"), standing=Standing(isolation, Phase.TRIAL)))
    for _ in range(3):
        bench.session = bench.new_session()
        answer = bench.request(x_agent_id=agent)
        if not agent:
            # Whoever names no agent goes by turns.
            answer = bench.body(b'{"prompt": "x"}')
        assert bench.in_flight() == 1
    # The others wait.
    assert answer.HasField("override_message_timeout")
    bench.table.upsert(record("w1"))
    bench.desk.run(0.0)
    assert bench.in_flight() == 3


def test_an_answer_that_broke_off_counts_against_who_was_asked() -> None:
    scene = Scene("w1")
    scene.response("502")
    assert scene.kinds() == [("w1", Evidence.SERVER_ERROR)]
    other = Scene("w1")
    other.response("503")
    assert other.kinds() == []


def retried(scene: Scene, status: str, failed: str, upstream: str, body: str, **headers: str) -> ProcessingResponse:
    """The response headers of a request whose first attempt was a 500."""
    message = ProcessingRequest()
    fill(message.response_headers, {":status": status} | {k.replace("_", "-"): v for k, v in headers.items()})
    message.attributes["envoy.filters.http.ext_proc"].fields["upstream.address"].string_value = upstream
    fields = message.metadata_context.filter_metadata[names.METADATA_NAMESPACE].fields
    fields[names.METADATA_FAILED].string_value = failed
    fields[names.METADATA_FAILED_BODY].string_value = body
    return scene.send(message)


def first_and_other(scene: Scene) -> tuple[str, str]:
    first = next(worker for worker, count in scene.table.in_flight().items() if count)
    return first, "w2" if first == "w1" else "w1"


ADDRESS = {"w1": FIRST, "w2": SECOND}


@pytest.mark.parametrize(
    ("body", "evidence"),
    [
        (b64encode(errors.cuda_error().encoded()).decode(), Evidence.CUDA_ERROR),
        (b64encode(errors.out_of_memory().encoded()).decode(), Evidence.OUT_OF_MEMORY),
        ("", Evidence.SERVER_ERROR),
        ("no base64", Evidence.SERVER_ERROR),
    ],
)
def test_a_500_that_was_tried_again_speaks_about_its_worker(body: str, evidence: Evidence) -> None:
    scene = Scene("w1", "w2")
    first, other = first_and_other(scene)
    retried(scene, "200", ADDRESS[first], ADDRESS[other], body, content_type="application/json")
    assert scene.kinds() == [(first, evidence), (other, Evidence.ANSWERED)]


def test_both_workers_of_a_request_that_two_failed_are_named() -> None:
    scene = Scene("w1", "w2")
    first, other = first_and_other(scene)
    body = errors.cuda_error().encoded()
    retried(scene, "500", ADDRESS[first], ADDRESS[other], b64encode(body).decode(), content_length=str(len(body)))
    scene.response_body(body)
    assert scene.kinds() == [(first, Evidence.CUDA_ERROR), (other, Evidence.CUDA_ERROR)]


def test_a_500_that_nobody_else_could_take_counts_once() -> None:
    scene = Scene("w1")
    body = errors.cuda_error().encoded()
    retried(scene, "500", FIRST, FIRST, b64encode(body).decode(), content_length=str(len(body)))
    scene.response_body(body)
    assert scene.kinds() == [("w1", Evidence.CUDA_ERROR)]


def test_a_status_and_a_length_of_thousands_of_digits_are_none() -> None:
    scene = Scene()
    answer = scene.response("5" * 5_000, FIRST)
    assert answer.WhichOneof("response") == "response_headers"
    assert scene.kinds() == []
    scene = Scene()
    answer = scene.response("500", FIRST, content_length="9" * 5_000)
    assert not answer.HasField("mode_override")
    assert scene.kinds() == [("w1", Evidence.SERVER_ERROR)]
