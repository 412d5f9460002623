"""With extproc away: Envoy serves what it can, bounded by what the workers hold, until extproc is back."""

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
from datapath.background import eventually, nobody
from datapath.ext_proc import listed
from datapath.rig import Rig, running
from datapath.standard import CHAT, FAMILY_OF, PHI, QWEN, record, standard_fleet

from recursant.fleet.worker import WorkerStatus
from xds_server.resources import breakers

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def module_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(tmp_path_factory.mktemp("alone")) as rig:
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


@pytest.mark.parametrize(("agent", "model"), [("chat-web", QWEN[0]), ("batch-summary", PHI[0])])
def test_a_family_is_served_by_workers_that_have_it(alone: Rig, agent: str, model: str) -> None:
    served = {alone.chat({"x-agent-id": agent}).worker for _ in range(30)}
    assert served == FAMILY_OF[agent]
    assert {json.loads(seen.body)["model"] for seen in alone.seen} == {model}


def test_a_path_is_served_by_its_agents_family_without_extproc(alone: Rig) -> None:
    for path, agent in (("/api/chat", "chat-web"), ("/api/summary", "batch-summary")):
        served = {alone.post(path, {"model": "auto"}).worker for _ in range(20)}
        assert served == FAMILY_OF[agent]


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
    alone.push(fleet=[*standard_fleet(alone.workers), record("dead", nobody(), QWEN)])
    try:
        eventually(
            lambda: alone.stats("cluster.fleet.membership_total")["cluster.fleet.membership_total"] == 4, "4 hosts"
        )
        statuses = Counter(alone.chat({**CHAT, "x-session-id": f"s{session}"}).status for session in range(200))
        assert statuses == {200: 200}
        assert alone.stats("cluster.fleet.upstream_rq_retry$")["cluster.fleet.upstream_rq_retry"] > 0
    finally:
        alone.push(fleet=standard_fleet(alone.workers))


def test_a_500_is_tried_once_more_without_extproc(alone: Rig) -> None:
    for worker in alone.workers:
        worker.do = {"status": 500, "body": worker.name}
    # Two workers serve the family.
    assert alone.chat(CHAT).status == 500
    assert alone.by_worker() == {"w0": 1, "w1": 1}


def test_weights_share_the_load(alone: Rig) -> None:
    """Three to one by declared capacity. 400 sessions: the bound is more than five standard deviations."""
    fleet = standard_fleet(alone.workers)
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
    rig.push(
        fleet=[
            *standard_fleet(rig.workers)[:2],
            record("w2", rig.workers[2].endpoint, PHI, status=WorkerStatus.DRAINING),
        ]
    )
    try:
        eventually(lambda: {rig.chat({"x-agent-id": "batch-summary"}).worker for _ in range(20)} == {"w1"}, "only w1")
        rig.ext_proc.decide = lambda _: listed(rig.workers[2].endpoint)
        assert rig.chat(CHAT).worker == "w2"
    finally:
        rig.push(fleet=standard_fleet(rig.workers))


def test_a_family_whose_workers_all_drain_gets_503(alone: Rig) -> None:
    """No panic: Envoy would rather send to hosts that it was told not to use than to none."""
    draining = [
        dataclasses.replace(worker, status=WorkerStatus.DRAINING) for worker in standard_fleet(alone.workers)[1:]
    ]
    alone.push(fleet=[standard_fleet(alone.workers)[0], *draining])
    try:
        eventually(lambda: alone.chat({"x-agent-id": "batch-summary"}).status == 503, "nobody is left")
        assert alone.chat(CHAT).worker == "w0"
    finally:
        alone.push(fleet=standard_fleet(alone.workers))


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
