"""The ADS service, spoken to by gRPC's own client."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from envoy.service.discovery.v3.ads_pb2_grpc import AggregatedDiscoveryServiceStub
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DiscoveryRequest
from grpc import aio
from prometheus_client import CollectorRegistry
from xds_kit import POLICY, assignment, cluster, other, snapshot, static_cluster

from xds_server.metrics import Gauges, Recorder, XdsCollector
from xds_server.resource import CLUSTER, ENDPOINT, Resource
from xds_server.server import MAX_REQUEST_BYTES, Settings, XdsServer
from xds_server.session import Limits

PATIENCE_S = 20.0  # against hanging only


class Bench:
    """A server on a free port, and clients of it."""

    def __init__(self, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        self.server = XdsServer(Settings(**settings), Recorder(self.registry))
        self.channels: list[aio.Channel] = []

    async def start(self) -> None:
        self.port = await self.server.listen("127.0.0.1", 0)

    def stub(self, *options: tuple[str, int]) -> AggregatedDiscoveryServiceStub:
        """A client with a connection of its own."""
        options = (("grpc.use_local_subchannel_pool", 1), *options)
        channel = aio.insecure_channel(f"127.0.0.1:{self.port}", options=options)
        self.channels.append(channel)
        return AggregatedDiscoveryServiceStub(channel)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def close(self) -> None:
        await self.server.stop(0)
        for channel in self.channels:
            await channel.close()


Benches = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def bench() -> AsyncIterator[Benches]:
    async with contextlib.AsyncExitStack() as stack:

        async def make(**settings: Any) -> Bench:
            found = Bench(**settings)
            await found.start()
            stack.push_async_callback(found.close)
            return found

        yield make


async def soon(what: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(what, PATIENCE_S)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(0.005)


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    return await soon(call.code()), await soon(call.details())


def ask(type_url: str, *names: str, nonce: str = "") -> DeltaDiscoveryRequest:
    request = DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=names, response_nonce=nonce)
    request.node.id = "test"
    return request


def content(response: Any) -> list[bytes]:
    return [entry.resource.value for entry in response.resources]


async def test_delta_from_subscription_to_update(bench: Benches):
    rig = await bench()
    rig.server.publish(snapshot(cluster("c"), assignment("c", 1)))
    call = rig.stub().DeltaAggregatedResources()
    await call.write(ask(CLUSTER))
    response = await soon(call.read())
    assert content(response) == [cluster("c").body]
    await call.write(ask(ENDPOINT, "c"))
    assert content(await soon(call.read())) == [assignment("c", 1).body]
    rig.server.publish(snapshot(cluster("c"), assignment("c", 2)))
    assert content(await soon(call.read())) == [assignment("c", 2).body]
    assert rig.count("recursant_xds_pushes_total", type="ClusterLoadAssignment") == 2


async def test_state_of_the_world_from_subscription_to_update(bench: Benches):
    rig = await bench()
    call = rig.stub().StreamAggregatedResources()
    await call.write(DiscoveryRequest(type_url=CLUSTER))
    rig.server.publish(snapshot(static_cluster("c")))
    response = await soon(call.read())
    assert [entry.value for entry in response.resources] == [static_cluster("c").body]
    await call.write(
        DiscoveryRequest(type_url=CLUSTER, version_info=response.version_info, response_nonce=response.nonce)
    )
    rig.server.publish(snapshot(static_cluster("c", 2)))
    response = await soon(call.read())
    assert [entry.value for entry in response.resources] == [static_cluster("c", 2).body]


async def test_clients_that_come_later_get_the_newest(bench: Benches):
    rig = await bench()
    for port in (1, 2, 3):
        rig.server.publish(snapshot(assignment("c", port)))
    for _ in range(3):
        call = rig.stub().DeltaAggregatedResources()
        await call.write(ask(ENDPOINT, "c"))
        assert content(await soon(call.read())) == [assignment("c", 3).body]


async def test_every_watch_ends_with_its_stream(bench: Benches):
    rig = await bench()
    rig.server.publish(snapshot(static_cluster("c")))
    tasks = len(asyncio.all_tasks())
    stub = rig.stub()
    for end in ("cancel", "done", "break"):
        call = stub.DeltaAggregatedResources()
        await call.write(ask(CLUSTER))
        await soon(call.read())
        assert len(rig.server.clients()) == 1
        match end:
            case "cancel":
                call.cancel()
            case "done":
                await call.done_writing()
                assert await soon(call.read()) is aio.EOF
                assert await soon(call.code()) is grpc.StatusCode.OK
            case "break":
                await rig.channels[-1].close()
        await until(lambda: not rig.server.clients())
    # The client's own tasks end in their time.
    await until(lambda: len(asyncio.all_tasks()) <= tasks)


class Scripted:
    """A call whose client answers the first response and ends the stream `turns` turns of the event loop later."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.written: asyncio.Queue[Any] = asyncio.Queue()
        self.step = 0

    async def read(self) -> Any:
        self.step += 1
        match self.step:
            case 1:
                return ask(CLUSTER)
            case 2:
                return ask(CLUSTER, nonce=(await self.written.get()).nonce)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return aio.EOF

    async def write(self, response: Any) -> None:
        self.written.put_nowait(response)


@pytest.mark.parametrize("turns", range(6))
async def test_a_last_word_right_before_the_end_leaves_nothing_running(bench: Benches, turns: int):
    # The request wakes the writer in the moment in which the end of the stream cancels it.
    rig = await bench()
    rig.server.publish(snapshot(static_cluster("c")))
    await soon(rig.server.DeltaAggregatedResources(None, Scripted(turns)))
    assert rig.server.clients() == []


async def test_a_client_that_does_not_read_holds_up_nobody_and_gets_the_newest(bench: Benches):
    rig = await bench()
    # Without probing the flow control windows stay at 64 kB.
    slow = rig.stub(("grpc.http2.bdp_probe", 0)).DeltaAggregatedResources()
    await slow.write(ask(POLICY, "*"))
    await until(lambda: len(rig.server.clients()) == 1)

    def big(revision: int) -> Resource:
        return other(POLICY, "p", f"{revision}" * 500_000)

    for revision in range(1, 10):
        rig.server.publish(snapshot(big(revision)))
        quick = rig.stub().DeltaAggregatedResources()
        await quick.write(ask(POLICY, "*"))
        assert content(await soon(quick.read())) == [big(revision).body]
        quick.cancel()
    received = []
    while not received or received[-1] != big(9).body:
        received += content(await soon(slow.read()))
    # In between, it skipped what had been replaced.
    assert len(received) < 9


@pytest.mark.parametrize("method", ["DeltaAggregatedResources", "StreamAggregatedResources"])
async def test_a_request_without_a_type_ends_its_stream(bench: Benches, method: str):
    rig = await bench()
    call = getattr(rig.stub(), method)()
    await call.write(ask("") if method.startswith("Delta") else DiscoveryRequest())
    code, details = await status_of(call)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "type_url" in details
    await until(lambda: not rig.server.clients())
    assert rig.count("recursant_xds_refused_streams_total", reason="protocol") == 1


async def test_subscriptions_are_bounded(bench: Benches):
    rig = await bench(limits=Limits(names=2))
    call = rig.stub().DeltaAggregatedResources()
    await call.write(ask(ENDPOINT, "a", "b", "c"))
    code, _ = await status_of(call)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert rig.count("recursant_xds_refused_streams_total", reason="limit") == 1


async def test_requests_are_bounded(bench: Benches):
    rig = await bench()
    call = rig.stub().DeltaAggregatedResources()
    await call.write(ask(ENDPOINT, "x" * MAX_REQUEST_BYTES))
    code, _ = await status_of(call)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await until(lambda: not rig.server.clients())


async def test_clients_are_bounded(bench: Benches):
    rig = await bench(max_clients=2)
    rig.server.publish(snapshot(static_cluster("c")))
    stub = rig.stub()
    first, second = stub.DeltaAggregatedResources(), stub.DeltaAggregatedResources()
    for call in (first, second):
        await call.write(ask(CLUSTER))
        await soon(call.read())
    assert await status_of(stub.DeltaAggregatedResources()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many clients")
    first.cancel()
    await until(lambda: len(rig.server.clients()) == 1)
    again = stub.DeltaAggregatedResources()
    await again.write(ask(CLUSTER))
    assert content(await soon(again.read())) == [static_cluster("c").body]


async def test_stopping_ends_the_streams(bench: Benches):
    rig = await bench()
    rig.server.publish(snapshot(static_cluster("c")))
    call = rig.stub().DeltaAggregatedResources()
    await call.write(ask(CLUSTER))
    await soon(call.read())
    await soon(rig.server.stop(5.0))
    assert await soon(call.read()) is aio.EOF
    assert await soon(call.code()) is grpc.StatusCode.OK
    assert rig.server.clients() == []
    with contextlib.closing(socket.socket()) as probe:
        assert probe.connect_ex(("127.0.0.1", rig.port)) != 0


async def test_a_port_in_use_is_an_os_error(bench: Benches):
    rig = await bench()
    second = XdsServer(Settings(), Recorder(CollectorRegistry()))
    with pytest.raises(OSError, match=f"127.0.0.1:{rig.port}"):
        await second.listen("127.0.0.1", rig.port)
    await second.stop(0)


async def test_silence_is_reported_when_its_time_comes(bench: Benches):
    rig = await bench(ack_timeout_s=0.05)
    rig.server.publish(snapshot(static_cluster("c")))
    call = rig.stub().DeltaAggregatedResources()
    await call.write(ask(CLUSTER))
    await soon(call.read())
    # Nothing else happens on the stream.
    await until(lambda: rig.count("recursant_xds_overdue_acks_total", type="Cluster") == 1)


async def test_a_nack_is_counted_and_told(bench: Benches, caplog: pytest.LogCaptureFixture):
    rig = await bench()
    rig.server.publish(snapshot(static_cluster("c")))
    call = rig.stub().DeltaAggregatedResources()
    await call.write(ask(CLUSTER))
    response = await soon(call.read())
    refusal = ask(CLUSTER, nonce=response.nonce)
    refusal.error_detail.message = "connect_timeout is negative"
    await call.write(refusal)
    await until(lambda: rig.count("recursant_xds_nacks_total", type="Cluster") == 1)
    assert "'test' refused Cluster" in caplog.text
    assert "connect_timeout is negative" in caplog.text
    ((status,),) = (client.types for client in rig.server.clients())
    assert (status.state, status.reason) == ("NACK", "connect_timeout is negative")


async def test_a_client_may_ping_as_often_as_it_likes(bench: Benches):
    # grpc's default closes the connection of an Envoy that pings each second after some five seconds: its third ping
    # within five minutes is answered by GOAWAY. The frames are made by hand, for gRPC's own client would not do this.
    rig = await bench()
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    settings, ping, goaway = 4, 6, 7
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(settings, b""))
    answers = []
    for number in range(10):
        writer.write(frame(ping, number.to_bytes(8)))
        while (kind := await soon(read_frame(reader))) not in (ping, goaway):
            pass
        answers.append(kind)
    assert answers == [ping] * 10
    writer.close()
    await writer.wait_closed()


def frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, 0]) + (0).to_bytes(4) + payload


async def read_frame(reader: asyncio.StreamReader) -> int:
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3]))
    return head[3]


async def test_labels_are_never_a_clients_words(bench: Benches):
    rig = await bench()
    rig.server.publish(snapshot(static_cluster("c")))
    call = rig.stub().DeltaAggregatedResources()
    await call.write(ask("type.googleapis.com/a.clients.own.Words", "x"))
    await soon(call.read())
    await call.write(ask(CLUSTER))
    response = await soon(call.read())
    await call.write(ask(CLUSTER, nonce=response.nonce))
    rig.registry.register(XdsCollector(lambda: Gauges(rig.server.clients(), {}, 0.0, redis_up=True, failing=True)))
    await until(lambda: rig.count("recursant_xds_clients", type="Cluster", state="SYNCED") == 1)
    assert rig.count("recursant_xds_clients", type="other", state="PENDING") == 1
    assert rig.count("recursant_xds_pushes_total", type="other") == 1
    assert rig.count("recursant_xds_streams", protocol="delta") == 1
    assert rig.count("recursant_xds_snapshot_failing") == 1
