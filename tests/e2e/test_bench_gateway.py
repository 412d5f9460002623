"""The gateway benchmark in short, and that its two no-ops say the same."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub
from grpc import aio

from bench import grpc_go
from bench.gateway import rounds
from bench.gateway.cases import BODY_AGENT, DIRECT, HEADERS_AGENT, LEAN, MODES, NOOP, NOOP_GO, PLAIN, Case
from bench.gateway.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

WORKERS = 100


def noops() -> tuple[str, ...]:
    return (NOOP,) if grpc_go.missing() else (NOOP, NOOP_GO)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    # Paths of sockets must be short.
    with tempfile.TemporaryDirectory() as folder:
        async with Rig(Path(folder), (WORKERS,), (LEAN,), noops()).running() as running:
            yield running


async def said(address: str, requests: list[ProcessingRequest]) -> list[ProcessingResponse]:
    """The answers to one stream."""
    async with aio.insecure_channel(address) as channel:
        stream = ExternalProcessorStub(channel).Process(iter(requests))
        return [answer async for answer in stream]


async def test_every_server_answers_every_kind_of_request(rig: Rig) -> None:
    """No request fails, the work of each process is seen, and the rows are whole."""
    found = []
    for mode in MODES:
        for server in (LEAN, *noops(), PLAIN, DIRECT):
            result, used, _ = await rig.sample(Case(mode.name, WORKERS, 2, server), mode, 8)
            assert len(result["micros"]) == 8
            found.append(used)
    assert all(used > 0 for used in found)
    beats = await rounds.idle(rig)
    assert [(each.server, each.workers) for each in beats] == [(LEAN, WORKERS)]


@pytest.mark.skipif(grpc_go.missing() is not None, reason=str(grpc_go.missing()))
async def test_the_no_op_in_go_says_what_the_one_in_python_says(rig: Rig) -> None:
    headers, body, response = ProcessingRequest(), ProcessingRequest(), ProcessingRequest()
    headers.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/chat/completions")
    body.request_body.body = b"x" * 2**20
    body.request_body.end_of_stream = True
    response.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    for agent in (HEADERS_AGENT, BODY_AGENT):
        answers = {
            noop: await said(f"unix:{rig.folder / f'{noop}-{agent}.sock'}", [headers, body, response])
            for noop in (NOOP, NOOP_GO)
        }
        assert answers[NOOP_GO] == answers[NOOP]
        kinds = [each.WhichOneof("response") for each in answers[NOOP_GO]]
        assert kinds == ["request_headers", "request_body", "response_headers"]
        assert answers[NOOP_GO][0].HasField("mode_override") == (agent == BODY_AGENT)


@pytest.mark.skipif(grpc_go.missing() is not None, reason=str(grpc_go.missing()))
async def test_the_no_op_in_go_serves_many_streams_at_once_on_one_connection(rig: Rig) -> None:
    request = ProcessingRequest()
    request.request_headers.end_of_stream = True
    async with aio.insecure_channel(f"unix:{rig.folder / f'{NOOP_GO}-{HEADERS_AGENT}.sock'}") as channel:
        stub = ExternalProcessorStub(channel)
        streams = [stub.Process() for _ in range(50)]
        for stream in streams:
            await stream.write(request)
        answers = await asyncio.gather(*(stream.read() for stream in streams))
        assert all(each.HasField("request_headers") for each in answers)
        for stream in streams:
            await stream.done_writing()
        codes = await asyncio.gather(*(stream.code() for stream in streams))
        assert set(codes) == {grpc.StatusCode.OK}
