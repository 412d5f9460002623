"""extproc's list of workers: Envoy walks it, to its end and no further, and says who served."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datapath.background import eventually, nobody
from datapath.ext_proc import Verdict, listed
from datapath.rig import Rig, running
from datapath.standard import CHAT, QWEN, record, standard_fleet

from recursant import names

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def module_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("list")) as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    module_rig.reset()
    return module_rig


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
    rig.push(fleet=[*standard_fleet(rig.workers), record("dead", dead, QWEN)])
    try:
        eventually(
            lambda: rig.stats("cluster.fleet.membership_total")["cluster.fleet.membership_total"] == 4, "4 hosts"
        )
        before = rig.stats("cluster.fleet.upstream_rq_retry$")["cluster.fleet.upstream_rq_retry"]
        rig.ext_proc.decide = lambda _: listed(dead, rig.workers[1].endpoint)
        assert rig.chat(CHAT).worker == "w1"
        assert rig.stats("cluster.fleet.upstream_rq_retry$")["cluster.fleet.upstream_rq_retry"] == before + 1
    finally:
        rig.push(fleet=standard_fleet(rig.workers))


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
    fleet = standard_fleet(rig.workers)
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
