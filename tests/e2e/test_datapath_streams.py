"""Streams: chunk by chunk, ended when the client hangs up, untouched by updates (PITFALLS, Streams, Counting)."""

import dataclasses
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from datapath.background import eventually
from datapath.client import read_answer
from datapath.ext_proc import Verdict
from datapath.rig import Rig, running
from datapath.standard import CHAT, QWEN, record, standard_config, standard_fleet

from recursant.config.model import Limits
from recursant.fleet.worker import WorkerStatus

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def module_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    # An old filter chain is cut after the drain time: short here, so that the tests would see it.
    with running(tmp_path_factory.mktemp("streams"), drain_time_s="1", drain_strategy="immediate") as rig:
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    module_rig.reset()
    module_rig.ext_proc.decide = lambda _: Verdict(endpoints=module_rig.workers[0].endpoint)
    return module_rig


def stream(chunks: int, every: float = 0.05) -> bytes:
    return (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-agent-id: chat-web\r\ncontent-type: application/json\r\n"
        f'x-do: {{"chunks": {chunks}, "every": {every}}}\r\ncontent-length: 2\r\n\r\n{{}}'
    ).encode()


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    got = b""
    while wanted not in got:
        piece = connection.recv(65_536)
        assert piece, f"closed after {got!r}"
        got += piece
    return got


# --- chunk by chunk ---


def test_the_first_chunk_comes_before_the_last_is_made(rig: Rig) -> None:
    with rig.raw(stream(chunks=2, every=60)) as connection:
        got = read_until(connection, b"data: 0\n\n")
    assert b"text/event-stream" in got
    assert b"content-length" not in got


def test_a_stream_arrives_whole(rig: Rig) -> None:
    with rig.raw(stream(chunks=30, every=0.01)) as connection:
        answer = read_answer(connection)
    assert answer.body == b"".join(b"data: %d\n\n" % index for index in range(30))


# --- the ext_proc stream is the request's lifetime (DESIGN §4.3) ---


def test_the_ext_proc_stream_lasts_as_long_as_the_response(rig: Rig) -> None:
    with rig.raw(stream(chunks=5, every=0.1)) as connection:
        read_until(connection, b"data: 1\n\n")
        assert rig.ext_proc.open == 1
        read_until(connection, b"\r\n0\r\n\r\n")
        eventually(lambda: rig.ext_proc.open == 0, "the stream ended with the response")
    assert rig.ext_proc.opened == 1


def test_a_hang_up_during_the_upload(rig: Rig) -> None:
    head = b"POST /v1/x HTTP/1.1\r\nhost: x\r\nx-agent-id: chat-web\r\ncontent-length: 1000000\r\n\r\n{"
    for _ in range(5):
        with rig.raw(head):
            time.sleep(0.02)
    assert rig.chat(CHAT).status == 200
    eventually(lambda: rig.ext_proc.open == 0, "no ext_proc stream is left")
    assert len(rig.seen) == 1


def test_a_hang_up_while_extproc_holds_it(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: Verdict(ask_hold_s=60, hold_s=60)
    with rig.raw(stream(chunks=1)):
        eventually(lambda: rig.ext_proc.open == 1, "it is held")
    eventually(lambda: rig.ext_proc.open == 0, "the hold ended with the client")
    assert rig.seen == []


def test_a_hang_up_before_the_first_byte_reaches_the_worker(rig: Rig) -> None:
    rig.workers[0].do = {"delay": 60}
    with rig.raw(stream(chunks=1)):
        eventually(lambda: len(rig.seen) == 1, "the worker has it")
        assert rig.ext_proc.open == 1
    eventually(lambda: rig.ext_proc.open == 0, "the stream ended with the client")
    eventually(lambda: rig.workers[0].hung_up == 1, "the worker heard of it")


def test_a_hang_up_in_the_middle_of_a_stream_reaches_the_worker(rig: Rig) -> None:
    with rig.raw(stream(chunks=10_000)) as connection:
        read_until(connection, b"data: 3\n\n")
        assert rig.ext_proc.open == 1
    eventually(lambda: rig.ext_proc.open == 0, "the stream ended with the client")
    eventually(lambda: rig.workers[0].hung_up == 1, "the worker heard of it")


def test_a_worker_that_dies_in_the_middle_is_not_retried(rig: Rig) -> None:
    rig.ext_proc.decide = lambda _: Verdict(endpoints=",".join(worker.endpoint for worker in rig.workers))
    with rig.raw(stream(chunks=10_000)) as connection:
        read_until(connection, b"data: 3\n\n")
        rig.loop.run(rig.workers[0].stop())
        with pytest.raises((AssertionError, ConnectionError)):
            read_until(connection, b"\r\n0\r\n\r\n")
    rig.loop.run(rig.workers[0].start())
    rig.push(fleet=standard_fleet(rig.workers))
    assert rig.by_worker() == {"w0": 1}
    eventually(lambda: rig.ext_proc.open == 0, "the stream ended")


# --- extproc's troubles ---


def test_a_hung_extproc_costs_its_timeout_and_no_more(rig: Rig) -> None:
    """And a new timeout counts from the next request on."""
    config = rig.config
    short = config.extproc.model_copy(update={"message_timeout_ms": 250})
    rig.push(config=config.model_copy(update={"extproc": short}))
    eventually(lambda: rig.stats("ext_proc.config_reload$").popitem()[1] > 1, "Envoy has the new timeout")
    rig.ext_proc.decide = lambda _: Verdict(endpoints=rig.workers[2].endpoint, hold_s=60)
    assert rig.chat(CHAT).worker != "w2"
    eventually(lambda: rig.ext_proc.open == 0, "Envoy gave the stream up")
    rig.push(config=config)
    rig.ext_proc.decide = lambda _: Verdict(endpoints=rig.workers[2].endpoint, hold_s=0.6)
    eventually(lambda: rig.chat(CHAT).worker == "w2", "the longer timeout counts")


def test_extproc_going_away_ends_no_running_stream(rig: Rig) -> None:
    with rig.raw(stream(chunks=20)) as connection:
        read_until(connection, b"data: 2\n\n")
        with rig.without_ext_proc():
            assert b"data: 19\n\n" in read_until(connection, b"\r\n0\r\n\r\n")


# --- updates ---


@pytest.mark.parametrize("change", ["ext_proc options", "agents", "worker drains", "worker leaves", "cluster"])
def test_an_update_cuts_no_stream(rig: Rig, change: str) -> None:
    config, fleet = rig.config, standard_fleet(rig.workers)
    with rig.raw(stream(chunks=35)) as connection:
        read_until(connection, b"data: 2\n\n")
        match change:
            case "ext_proc options":
                extproc = config.extproc.model_copy(update={"max_message_timeout_ms": 123_456})
                rig.push(config=config.model_copy(update={"extproc": extproc}))
            case "agents":
                rig.push(config=config.model_copy(update={"agents": config.agents[:1]}))
            case "worker drains":
                rig.push(fleet=[dataclasses.replace(fleet[0], status=WorkerStatus.DRAINING), *fleet[1:]])
            case "worker leaves":
                rig.push(fleet=fleet[1:])
            case "cluster":
                # A fleet so much larger that its circuit breakers grow.
                rig.push(fleet=[*fleet, *(record(f"x{n}", f"192.0.2.{n}:1", QWEN) for n in range(1, 20))])
        # Well past the drain time.
        assert b"data: 34\n\n" in read_until(connection, b"\r\n0\r\n\r\n")
        # The connection is still good for another request.
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert read_answer(connection).status == 200
    rig.push(config=config, fleet=fleet)
    assert rig.ads.nacks == []


# --- idle ---


def test_a_stream_that_falls_silent_is_cut(tmp_path: Path) -> None:
    limits = Limits(idle_timeout_ms=1_000)
    with running(tmp_path, standard_config(limits=limits)) as rig:
        with rig.raw(stream(chunks=3, every=60)) as connection:
            read_until(connection, b"data: 0\n\n")
            with pytest.raises((AssertionError, ConnectionError)):
                read_until(connection, b"data: 1\n\n")
        eventually(lambda: sum(worker.hung_up for worker in rig.workers) == 1, "the worker heard of it")
        # One that keeps talking may take much longer than that.
        with rig.raw(stream(chunks=5, every=0.4)) as connection:
            assert b"data: 4\n\n" in read_until(connection, b"\r\n0\r\n\r\n")
        # Before the response began there is still an answer to give.
        rig.workers[0].do = rig.workers[1].do = {"delay": 60}
        answer = rig.chat(CHAT)
        assert answer.status == 504
        assert answer.json["error"]["type"] == "timeout_error"
