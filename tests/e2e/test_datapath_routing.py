"""Where requests go: by extproc's list, by Envoy alone, by path; and what clients may not say."""

import base64
import dataclasses
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from datapath_rig import CHAT, PHI, QWEN, Rig, Verdict, eventually, free_port, record, running, standard_fleet

from recursant import names
from recursant.fleet.worker import WorkerStatus
from xds_server.resources import breakers

pytestmark = pytest.mark.e2e

FAMILY_OF = {"chat-web": {"w0", "w1"}, "batch-summary": {"w1", "w2"}}


@pytest.fixture(scope="module")
def module_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("routing")) as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    module_rig.reset()
    return module_rig


@pytest.fixture
def alone(rig: Rig) -> Iterator[Rig]:
    """With extproc away."""
    with rig.without_ext_proc():
        yield rig


def listed(*endpoints: str) -> Verdict:
    return Verdict(endpoints=",".join(endpoints), headers={"x-envoy-max-retries": str(len(endpoints) - 1)})


def nobody() -> str:
    return f"127.0.0.1:{free_port()}"


# --- extproc's list ---


def test_the_first_of_the_list_serves(rig: Rig) -> None:
    # Against the route's family, the weights and the session: the list wins.
    rig.ext_proc.decide = lambda _: listed(rig.workers[2].endpoint, rig.workers[0].endpoint)
    for session in range(10):
        assert rig.chat({**CHAT, "x-session-id": str(session)}).worker == "w2"


@pytest.mark.parametrize("trouble", ["unknown", "dies", "503"])
def test_envoy_walks_the_list(rig: Rig, trouble: str) -> None:
    first = rig.workers[0]
    first.do = {"dies": {"die": True}, "503": {"status": 503}, "unknown": {}}[trouble]
    endpoint = nobody() if trouble == "unknown" else first.endpoint
    rig.ext_proc.decide = lambda _: listed(endpoint, rig.workers[1].endpoint)
    answer = rig.chat(CHAT)
    assert (answer.status, answer.worker) == (200, "w1")


def test_a_dead_worker_costs_one_attempt(rig: Rig) -> None:
    dead = nobody()
    rig.push(fleet=[*standard_fleet(rig), record("dead", dead, QWEN)])
    try:
        eventually(
            lambda: rig.stats("cluster.fleet.membership_total")["cluster.fleet.membership_total"] == 4, "4 hosts"
        )
        before = rig.stats("cluster.fleet.upstream_rq_retry$")["cluster.fleet.upstream_rq_retry"]
        rig.ext_proc.decide = lambda _: listed(dead, rig.workers[1].endpoint)
        assert rig.chat(CHAT).worker == "w1"
        assert rig.stats("cluster.fleet.upstream_rq_retry$")["cluster.fleet.upstream_rq_retry"] == before + 1
    finally:
        rig.push(fleet=standard_fleet(rig))


def test_the_list_is_walked_to_its_end_and_no_further(rig: Rig) -> None:
    for worker in rig.workers:
        worker.do = {"status": 503, "body": f"mine, {worker.name}"}
    rig.ext_proc.decide = lambda _: listed(rig.workers[0].endpoint, rig.workers[2].endpoint)
    answer = rig.chat(CHAT)
    # The last one's own answer, untouched but for Retry-After; the third worker is never asked.
    assert (answer.status, answer.body) == (503, b"mine, w2")
    assert answer.headers["retry-after"] == "1"
    assert rig.by_worker() == {"w0": 1, "w2": 1}


def test_a_list_of_one_is_not_retried(rig: Rig) -> None:
    rig.workers[0].do = {"status": 503}
    rig.ext_proc.decide = lambda _: listed(rig.workers[0].endpoint)
    assert rig.chat(CHAT).status == 503
    assert rig.by_worker() == {"w0": 1}


def test_other_errors_are_not_retried(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: listed(rig.workers[0].endpoint, rig.workers[1].endpoint)
    for status in (400, 401, 404, 408, 409, 413, 422, 429, 501, 502, 504):
        rig.workers[0].do = {"status": status, "body": "mine"}
        answer = rig.chat(CHAT)
        assert (answer.status, answer.body) == (status, b"mine")
    assert rig.by_worker() == {"w0": 11}


def failed_attempt(rig: Rig) -> dict[str, str]:
    """What ext_proc heard about the attempt before the answer."""
    (answer,) = [seen for seen in rig.ext_proc.seen if seen.WhichOneof("request") == "response_headers"]
    fields = answer.metadata_context.filter_metadata[names.METADATA_NAMESPACE].fields
    return {
        name: fields[name].string_value
        for name in (names.METADATA_FAILED, names.METADATA_FAILED_BODY)
        if name in fields
    }


def test_a_500_is_tried_once_more_elsewhere(rig: Rig) -> None:
    rig.workers[0].do = {"status": 500, "body": "CUDA error: caf\u00e9"}
    rig.ext_proc.decide = lambda _: listed(*(worker.endpoint for worker in rig.workers[:3]))
    answer = rig.chat(CHAT, prompt="once")
    assert (answer.status, answer.worker) == (200, "w1")
    assert rig.by_worker() == {"w0": 1, "w1": 1}
    assert names.RETRY_MARK not in answer.headers
    # The same request, byte for byte.
    assert len({seen.body for seen in rig.seen}) == 1
    # And what the first one said is not lost.
    assert failed_attempt(rig) == {
        names.METADATA_FAILED: rig.workers[0].endpoint,
        names.METADATA_FAILED_BODY: base64.b64encode("CUDA error: caf\u00e9".encode()).decode(),
    }


def test_a_request_that_every_worker_fails_meets_two_of_them(rig: Rig) -> None:
    for worker in rig.workers:
        worker.do = {"status": 500, "body": f"poison, {worker.name}", "headers": {"x-its": "own"}}
    rig.ext_proc.decide = lambda _: listed(*(worker.endpoint for worker in rig.workers[:3]))
    answer = rig.chat(CHAT)
    assert (answer.status, answer.body, answer.headers["x-its"]) == (500, b"poison, w1", "own")
    assert names.RETRY_MARK not in answer.headers
    assert rig.by_worker() == {"w0": 1, "w1": 1}
    assert failed_attempt(rig)[names.METADATA_FAILED] == rig.workers[0].endpoint


def test_a_500_that_does_not_say_its_length_meets_two_of_them_too(rig: Rig) -> None:
    for worker in rig.workers:
        worker.do = {"status": 500, "chunks": 1}
    rig.ext_proc.decide = lambda _: listed(*(worker.endpoint for worker in rig.workers[:3]))
    assert (rig.chat(CHAT).status, rig.by_worker()) == (500, {"w0": 1, "w1": 1})
    assert failed_attempt(rig)[names.METADATA_FAILED] == rig.workers[0].endpoint


@pytest.mark.parametrize("first", [{"die": True}, {"status": 503}])
def test_a_500_after_another_failure_has_its_one_retry_within_the_list(rig: Rig, first: dict[str, Any]) -> None:
    rig.workers[0].do = first
    rig.workers[1].do = {"status": 500}
    rig.ext_proc.decide = lambda _: listed(*(worker.endpoint for worker in rig.workers[:3]))
    answer = rig.chat(CHAT)
    assert (answer.status, answer.worker) == (200, "w2")
    assert failed_attempt(rig)[names.METADATA_FAILED] == rig.workers[1].endpoint


def test_a_500_of_a_list_of_one_passes_as_it_is(rig: Rig) -> None:
    rig.workers[0].do = {"status": 500, "body": "mine"}
    rig.ext_proc.decide = lambda _: listed(rig.workers[0].endpoint)
    answer = rig.chat(CHAT)
    assert (answer.status, answer.body) == (500, b"mine")
    assert rig.by_worker() == {"w0": 1}


def test_a_long_500_passes_as_it_is_and_is_not_kept(rig: Rig) -> None:
    for worker in rig.workers:
        worker.do = {"status": 500, "body": worker.name * 500_000}
    rig.ext_proc.decide = lambda _: listed(rig.workers[0].endpoint, rig.workers[1].endpoint)
    answer = rig.chat(CHAT)
    assert (answer.status, answer.body) == (500, b"w1" * 500_000)
    assert failed_attempt(rig) == {names.METADATA_FAILED: rig.workers[0].endpoint}


def test_a_worker_cannot_ask_for_a_retry(rig: Rig) -> None:
    rig.workers[0].do = {"headers": {names.RETRY_MARK: "1"}}
    rig.ext_proc.decide = lambda _: listed(rig.workers[0].endpoint, rig.workers[1].endpoint)
    assert rig.chat(CHAT).worker == "w0"
    assert rig.by_worker() == {"w0": 1}


def test_a_500_is_tried_once_more_without_extproc(alone: Rig) -> None:
    for worker in alone.workers:
        worker.do = {"status": 500, "body": worker.name}
    # Two workers serve the family.
    assert alone.chat(CHAT).status == 500
    assert alone.by_worker() == {"w0": 1, "w1": 1}


def test_extproc_hears_which_host_really_served(rig: Rig) -> None:
    rig.workers[0].do = {"status": 503}
    rig.ext_proc.decide = lambda _: listed(rig.workers[0].endpoint, rig.workers[1].endpoint)
    rig.chat(CHAT)
    (answer,) = [seen for seen in rig.ext_proc.seen if seen.WhichOneof("request") == "response_headers"]
    attributes = answer.attributes["envoy.filters.http.ext_proc"].fields
    assert attributes["upstream.address"].string_value == rig.workers[1].endpoint
    forwarded = answer.metadata_context.filter_metadata[names.METADATA_NAMESPACE].fields
    assert forwarded[names.METADATA_SELECTED].string_value == rig.workers[1].endpoint


def test_an_exclusive_worker_is_reached_by_the_list_alone(rig: Rig) -> None:
    fleet = standard_fleet(rig)
    fleet[0].state.exclusive = True
    rig.push(fleet=fleet)
    try:
        rig.ext_proc.decide = lambda _: listed(rig.workers[0].endpoint)
        eventually(lambda: rig.chat(CHAT).worker == "w0", "w0 serves")
        rig.ext_proc.decide = lambda _: Verdict()
        eventually(lambda: {rig.chat(CHAT).worker for _ in range(20)} == {"w1"}, "only w1 serves")
    finally:
        fleet[0].state.exclusive = False
        rig.push(fleet=fleet)


def test_ipv6(tmp_path: Path) -> None:
    with running(tmp_path, hosts=("::1", "127.0.0.1")) as rig:
        rig.ext_proc.decide = lambda _: listed(nobody(), rig.workers[0].endpoint)
        assert rig.workers[0].endpoint.startswith("[::1]:")
        assert rig.chat(CHAT).worker == "w0"


# --- what clients may not say (PITFALLS, Security) ---


def test_routing_headers_of_clients_have_no_effect_and_go_nowhere(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: listed(rig.workers[0].endpoint)
    rig.workers[0].do = {"delay": 0.05}
    forged = {
        "X-Gateway-Destination-Endpoint": rig.workers[2].endpoint,
        "x-recursant-worker": "w2",
        "X-Recursant-Agent": "root",
        "x-recursant-anything": "1",
        "x-envoy-max-retries": "9",
        "x-envoy-retry-on": "5xx",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-upstream-rq-per-try-timeout-ms": "1",
        "x-envoy-original-dst-host": "192.0.2.9:1",
        "x-envoy-decorator-operation": "x",
    }
    answer = rig.chat({**CHAT, **forged})
    assert (answer.status, answer.worker) == (200, "w0")
    reached_worker = {name.lower() for name, _ in rig.only().headers}
    reached_ext_proc = {header.key for header in rig.ext_proc.seen[0].request_headers.headers.headers}
    for reached in (reached_worker, reached_ext_proc):
        assert not reached & {name.lower() for name in forged}
    assert not [name for name in reached_worker if name.startswith("x-envoy-")]


def test_what_extproc_says_to_the_worker_arrives_once(rig: Rig) -> None:
    verdict = listed(rig.workers[0].endpoint)
    verdict.headers = {**verdict.headers, names.WORKER_AGENT: "chat-web", names.WORKER_PRIORITY: "10"}
    verdict.remove = list(names.AGENT_DESCRIPTION_HEADERS)
    rig.ext_proc.decide = lambda _: verdict
    rig.chat({**CHAT, "x-agent-meta": '{"priority":1}', "X-Recursant-Agent": "forged", "x-agent-priority": "1"})
    seen = rig.only()
    assert seen.header("x-recursant-agent") == "chat-web"
    assert seen.header("x-recursant-priority") == "10"
    assert seen.header("x-agent-meta") is None
    assert seen.header("x-agent-priority") is None


def test_a_good_request_id_and_the_trace_pass(rig: Rig) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    rig.chat({**CHAT, "x-request-id": "req_1.2:3", "traceparent": trace})
    assert rig.only().header("x-request-id") == "req_1.2:3"
    assert rig.only().header("traceparent") == trace


def test_a_request_without_an_id_gets_one(rig: Rig) -> None:
    rig.chat(CHAT)
    assert len(rig.only().header("x-request-id") or "") == 36


@pytest.mark.parametrize("bad", ["x" * 129, "a b", '{"a":1}'])
def test_a_bad_request_id_reaches_no_worker(alone: Rig, bad: str) -> None:
    assert alone.chat({**CHAT, "x-request-id": bad}).status == 200
    assert alone.only().header("x-request-id") is None


# --- the path table (SPEC A6) ---


def test_a_path_names_the_agent_and_the_workers_path(rig: Rig) -> None:
    answer = rig.post("/api/chat?user=1", {"model": "auto"}, {"x-agent-id": "batch-summary"})
    assert answer.status == 200
    seen = rig.only()
    assert seen.target == "/v1/chat/completions?user=1"
    assert seen.header("x-agent-id") == "chat-web"
    headers = {h.key: h.raw_value for h in rig.ext_proc.seen[0].request_headers.headers.headers}
    assert headers["x-agent-id"] == b"chat-web"


def test_a_path_is_served_by_its_agents_family_without_extproc(alone: Rig) -> None:
    for path, agent in (("/api/chat", "chat-web"), ("/api/summary", "batch-summary")):
        served = {alone.post(path, {"model": "auto"}).worker for _ in range(20)}
        assert served == FAMILY_OF[agent]


# --- with extproc away ---


@pytest.mark.parametrize(("agent", "model"), [("chat-web", QWEN[0]), ("batch-summary", PHI[0])])
def test_a_family_is_served_by_workers_that_have_it(alone: Rig, agent: str, model: str) -> None:
    served = {alone.chat({"x-agent-id": agent}).worker for _ in range(30)}
    assert served == FAMILY_OF[agent]
    assert {json.loads(seen.body)["model"] for seen in alone.seen} == {model}


def test_a_family_without_a_worker_gets_503(alone: Rig) -> None:
    answer = alone.chat({"x-agent-id": "lonely"})
    assert answer.status == 503
    assert answer.json["error"]["type"] == "service_unavailable_error"
    assert answer.headers["retry-after"] == "1"
    assert alone.seen == []


def test_without_an_agent_every_open_worker_serves(alone: Rig) -> None:
    assert {alone.get("/v1/x").worker for _ in range(60)} == {"w0", "w1", "w2"}


def test_an_agent_that_fails_closed_is_refused(alone: Rig) -> None:
    answer = alone.chat({"x-agent-id": "strict"})
    assert answer.status == 503
    assert answer.json["error"]["code"] == "unavailable"
    assert alone.seen == []


def test_a_session_sticks(alone: Rig) -> None:
    homes = {}
    for session in range(12):
        served = {alone.chat({**CHAT, "x-session-id": f"s{session}"}).worker for _ in range(5)}
        assert len(served) == 1
        homes[session] = served.pop()
    assert set(homes.values()) == FAMILY_OF["chat-web"]


def test_a_dead_worker_fails_no_request(alone: Rig) -> None:
    """Maglev would send a session to the same host again; the retry goes to another."""
    alone.push(fleet=[*standard_fleet(alone), record("dead", nobody(), QWEN)])
    try:
        eventually(
            lambda: alone.stats("cluster.fleet.membership_total")["cluster.fleet.membership_total"] == 4, "4 hosts"
        )
        statuses = Counter(alone.chat({**CHAT, "x-session-id": f"s{session}"}).status for session in range(200))
        assert statuses == {200: 200}
        assert alone.stats("cluster.fleet.upstream_rq_retry$")["cluster.fleet.upstream_rq_retry"] > 0
    finally:
        alone.push(fleet=standard_fleet(alone))


def test_weights_share_the_load(alone: Rig) -> None:
    """Three to one by declared capacity. 400 sessions: the bound is more than five standard deviations."""
    fleet = standard_fleet(alone)
    fleet[0].state.capacity_tokens = 3 * 102_400
    fleet[1].state.capacity_tokens = 102_400
    alone.push(fleet=fleet)
    try:
        eventually(lambda: _weights(alone) >= {"100", "300"}, "the weights arrived")
        for session in range(400):
            alone.get("/v1/x", {**CHAT, "x-session-id": f"session-{session}"})
        assert 400 * 0.63 < alone.by_worker()["w0"] < 400 * 0.87
    finally:
        for worker in fleet[:2]:
            worker.state.ClearField("capacity_tokens")
        alone.push(fleet=fleet)


def _weights(rig: Rig) -> set[str]:
    text = urllib.request.urlopen(f"http://127.0.0.1:{rig.admin_port}/clusters").read().decode()
    return {
        line.rsplit("::", 1)[1] for line in text.splitlines() if line.startswith("fleet::") and "::weight::" in line
    }


def test_a_draining_worker_gets_nothing_new_but_what_extproc_sends(rig: Rig) -> None:
    rig.push(fleet=[*standard_fleet(rig)[:2], record("w2", rig.workers[2].endpoint, PHI, status=WorkerStatus.DRAINING)])
    try:
        eventually(lambda: {rig.chat({"x-agent-id": "batch-summary"}).worker for _ in range(20)} == {"w1"}, "only w1")
        rig.ext_proc.decide = lambda _: listed(rig.workers[2].endpoint)
        assert rig.chat(CHAT).worker == "w2"
    finally:
        rig.push(fleet=standard_fleet(rig))


def test_a_family_whose_workers_all_drain_gets_503(alone: Rig) -> None:
    """No panic: Envoy would rather send to hosts that it was told not to use than to none."""
    draining = [dataclasses.replace(worker, status=WorkerStatus.DRAINING) for worker in standard_fleet(alone)[1:]]
    alone.push(fleet=[standard_fleet(alone)[0], *draining])
    try:
        eventually(lambda: alone.chat({"x-agent-id": "batch-summary"}).status == 503, "nobody is left")
        assert alone.chat(CHAT).worker == "w0"
    finally:
        alone.push(fleet=standard_fleet(alone))


def test_each_request_that_came_past_extproc_is_logged_once(rig: Rig) -> None:
    def entries() -> list[Any]:
        # Others may still come from earlier tests: Envoy sends them in batches.
        return [entry for entry in rig.log.entries if entry.request.path.endswith("?counted")]

    rig.ext_proc.decide = lambda _: listed(rig.workers[0].endpoint)
    rig.get("/v1/x?counted", CHAT)
    with rig.without_ext_proc():
        for path in ("/healthz?counted", "/readyz?counted", "/v1/models?counted"):
            rig.get(path)
        for agent in ("chat-web", "batch-summary", "lonely"):
            rig.get("/v1/x?counted", {"x-agent-id": agent})
        eventually(lambda: len(entries()) >= 3, "the log has come")
    # One more flush, in which nothing else comes.
    time.sleep(0.7)
    assert [entry.response.response_code.value for entry in entries()] == [200, 200, 503]
    assert [entry.common_properties.route_name for entry in entries()] == [
        "agent chat-web",
        "agent batch-summary",
        "agent lonely",
    ]


def test_routing_resumes_when_extproc_is_back(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: listed(rig.workers[2].endpoint)
    with rig.without_ext_proc():
        assert rig.chat(CHAT).worker in FAMILY_OF["chat-web"]
    assert rig.chat(CHAT).worker == "w2"


def test_a_dead_extproc_process_among_several_is_left_out(tmp_path: Path) -> None:
    with running(tmp_path, dead_ext_procs=2) as rig:
        rig.ext_proc.decide = lambda _: listed(rig.workers[2].endpoint)
        assert {rig.chat(CHAT).worker for _ in range(30)} == {"w2"}
        # Nobody left is nothing new: fail open, and go on as soon as one is back.
        rig.stop_ext_proc()
        eventually(lambda: rig.chat(CHAT).worker in FAMILY_OF["chat-web"], "Envoy decides alone")
        rig.start_ext_proc()
        eventually(lambda: rig.chat(CHAT).worker == "w2", "extproc decides again")


def test_failing_open_is_bounded_by_what_the_workers_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two running at each worker, eight waiting, one more is refused."""
    monkeypatch.setattr(breakers, "SMALLEST_WORKER", 2)
    monkeypatch.setattr(breakers, "SMALLEST_FLEET", 8)
    monkeypatch.setattr(breakers, "DEFAULT_MAX_QUEUE", 1)
    with running(tmp_path) as rig, ThreadPoolExecutor(20) as pool:
        rig.stop_ext_proc()
        for worker in rig.workers:
            worker.do = {"delay": 1.0}
        waiting = [pool.submit(rig.chat, CHAT) for _ in range(20)]
        eventually(lambda: sum(done.done() for done in waiting) == 8, "those beyond the bound are refused")
        assert rig.by_worker() == {"w0": 2, "w1": 2}
        refused = [done.result() for done in waiting if done.done()]
        for worker in rig.workers:
            worker.do = {}
        assert {(answer.status, answer.headers["retry-after"]) for answer in refused} == {(503, "1")}
        assert sorted(done.result().status for done in waiting) == [200] * 12 + [503] * 8
