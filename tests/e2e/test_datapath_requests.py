"""What of a request's headers and path reaches workers and extproc, and what clients may not say."""

from collections.abc import Iterator

import pytest
from datapath.ext_proc import listed
from datapath.rig import Rig, running
from datapath.standard import CHAT

from recursant import names

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def module_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("requests")) as rig:
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
