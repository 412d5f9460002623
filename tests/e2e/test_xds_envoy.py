"""Our ADS server and a real Envoy: what it needs to hear in which order, and what it does not forgive."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from xds_kit import assignment, cluster, half_bad_cluster, listener, routes, static_cluster
from xds_rig import ACK_TIMEOUT_S, Rig, Worker, eventually, running, workers

from xds_server.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE, Resource
from xds_server.status import SyncState

pytestmark = pytest.mark.e2e

EVERYTHING = (CLUSTER, ENDPOINT, LISTENER, ROUTE)
# Envoy goes on with what it has after 15 s of waiting; a cluster that warms properly is far below that.
WARMING_S = 10.0


@pytest.fixture(params=["DELTA_GRPC", "GRPC"], ids=["delta", "sotw"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(tmp_path, request.param) as found:
        yield found


@pytest.fixture
async def fleet() -> AsyncIterator[list[Worker]]:
    async with workers("a", "b") as found:
        yield found


def world(rig: Rig, worker: Worker, name: str = "c", *, timeout_s: int = 1) -> tuple[Resource, ...]:
    """One cluster of one worker, and the way to it."""
    return (
        cluster(name, timeout_s),
        assignment(name, worker.port),
        listener("gateway", "table", rig.port),
        routes("table", name),
    )


async def test_from_nothing_to_traffic(rig: Rig, fleet: list[Worker]):
    rig.serve(*world(rig, fleet[0]))
    await rig.answers("/c", "a")
    await rig.synced(*EVERYTHING)
    # Nothing more than necessary: clusters, endpoints, listeners, routes, once each.
    await asyncio.sleep(0.2)
    labels = ("Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration")
    assert [rig.count("pushes", type=label) for label in labels] == [1, 1, 1, 1]


async def test_an_empty_world_lets_envoy_start(rig: Rig):
    rig.serve()
    await rig.stat_is("server.state", 0)
    await rig.synced(CLUSTER, LISTENER)


async def test_endpoints_come_change_and_empty(rig: Rig, fleet: list[Worker]):
    a, b = fleet
    whole = world(rig, a)
    rig.serve(*whole)
    await rig.answers("/c", "a")
    rig.serve(whole[0], assignment("c", b.port), *whole[2:])
    await rig.answers("/c", "b")
    rig.serve(whole[0], assignment("c", a.port, b.port), *whole[2:])
    await rig.stat_is("cluster.c.membership_total", 2)
    rig.serve(whole[0], assignment("c"), *whole[2:])
    await rig.stat_is("cluster.c.membership_total", 0)
    assert (await rig.get("/c"))[0] == 503
    rig.serve(*whole)
    await rig.answers("/c", "a")
    # Emptied too where the assignment is taken away altogether: Envoy itself would keep the last endpoints.
    rig.serve(whole[0], *whole[2:])
    await rig.stat_is("cluster.c.membership_total", 0)
    await rig.synced(*EVERYTHING)


async def test_a_changed_cluster_with_the_same_endpoints_warms(rig: Rig, fleet: list[Worker]):
    rig.serve(*world(rig, fleet[0]))
    await rig.answers("/c", "a")
    for timeout_s in (2, 3, 4):
        rig.serve(*world(rig, fleet[0], timeout_s=timeout_s))
        await rig.stat_is("cluster_manager.cluster_modified", timeout_s - 1)
        await rig.stat_is("cluster_manager.warming_clusters", 0, WARMING_S)
        await rig.synced(CLUSTER, ENDPOINT)
    assert await rig.stat("cluster.c.assignment_use_cached") == 0
    assert await rig.get("/c") == (200, "a")


async def test_a_refused_cluster_is_held_and_its_repair_pushed(rig: Rig, fleet: list[Worker]):
    whole = world(rig, fleet[0])
    rig.serve(*whole)
    await rig.answers("/c", "a")
    await rig.synced(*EVERYTHING)
    rig.serve(*whole, static_cluster("bad", -1))
    await eventually(lambda: rig.state(CLUSTER) is SyncState.NACK, "a NACK")
    status = rig.status(CLUSTER)
    assert status is not None
    assert "bad" in status.refused
    assert status.reason
    # No loop: it is not sent again, and what works goes on.
    pushes = rig.count("pushes", type="Cluster")
    await asyncio.sleep(0.5)
    assert rig.count("pushes", type="Cluster") == pushes
    assert rig.count("nacks", type="Cluster") == 1
    assert await rig.get("/c") == (200, "a")
    # Neither do endpoints wait for it.
    rig.serve(whole[0], assignment("c", fleet[1].port), *whole[2:], static_cluster("bad", -1))
    await rig.answers("/c", "b")
    rig.serve(*whole, static_cluster("bad", 1))
    await rig.synced(*EVERYTHING)
    await rig.stat_is("cluster_manager.active_clusters", 3)


async def test_a_change_refused_along_with_a_bad_one_is_made_up_for(rig: Rig, fleet: list[Worker]):
    rig.serve(*world(rig, fleet[0]))
    await rig.answers("/c", "a")
    changed = world(rig, fleet[0], timeout_s=2)
    rig.serve(*changed, static_cluster("bad", -1))
    await eventually(lambda: rig.state(CLUSTER) is SyncState.NACK, "a NACK")
    rig.serve(*changed)
    await rig.synced(*EVERYTHING)
    assert await rig.stat("cluster_manager.cluster_modified") == 1
    await rig.stat_is("cluster_manager.warming_clusters", 0, WARMING_S)
    assert await rig.get("/c") == (200, "a")


async def test_silence_about_a_cluster_that_cannot_be_built_raises_the_alarm(rig: Rig, fleet: list[Worker]):
    a, b = fleet
    whole = world(rig, a)
    rig.serve(*whole)
    await rig.answers("/c", "a")
    await rig.synced(*EVERYTHING)
    good = (cluster("good"), assignment("good", b.port), *whole[:3], routes("table", "c", "good"))
    rig.serve(half_bad_cluster("phantom"), *good)
    # Envoy warms the good one, keeps the other half-built, and says neither yes nor no.
    await rig.answers("/good", "b")
    await eventually(lambda: rig.state(CLUSTER) is SyncState.STALE, "an alarm")
    await eventually(lambda: rig.count("overdue_acks", type="Cluster") == 1, "a counted alarm")
    assert rig.count("nacks", type="Cluster") == 0
    assert await rig.stat("cluster_manager.warming_clusters") == 1
    # Taking it away needs no answer first.
    rig.serve(*good)
    await rig.synced(*EVERYTHING)
    await rig.stat_is("cluster_manager.warming_clusters", 0)
    assert await rig.get("/c") == (200, "a")
    assert await rig.get("/good") == (200, "b")


async def test_a_restarted_server_finds_envoy_as_it_was(rig: Rig, fleet: list[Worker]):
    whole = world(rig, fleet[0])
    rig.serve(*whole)
    await rig.answers("/c", "a")
    await rig.synced(*EVERYTHING)
    await rig.server.stop(0)
    assert await rig.get("/c") == (200, "a")
    await rig.start_server()
    rig.serve(*whole)
    await rig.synced(*EVERYTHING)
    assert await rig.get("/c") == (200, "a")
    # In delta Envoy says what it has, and is not sent it again. In state of the world it cannot say that reliably.
    again = 0 if rig.mode == "DELTA_GRPC" else 1
    assert rig.count("pushes", type="Cluster") == again
    assert rig.count("pushes", type="Listener") == again
    # Either way nothing happens to what runs.
    assert await rig.stat("cluster_manager.cluster_modified") == 0
    assert await rig.stat("listener_manager.listener_create_success") == 1


async def test_a_restarted_server_brings_what_changed_meanwhile(rig: Rig, fleet: list[Worker]):
    a, b = fleet
    rig.serve(*world(rig, a, "old"), cluster("kept"), assignment("kept", a.port))
    await rig.answers("/old", "a")
    await rig.server.stop(0)
    await rig.start_server()
    rig.serve(*world(rig, b, "new"), cluster("kept", 2), assignment("kept", b.port))
    await rig.answers("/new", "b")
    await rig.synced(*EVERYTHING)
    await rig.stat_is("cluster_manager.cluster_removed", 1)
    await rig.stat_is("cluster_manager.warming_clusters", 0, WARMING_S)
    await rig.stat_is("cluster.kept.membership_total", 1)


async def test_moving_from_one_cluster_to_another_fails_no_request(rig: Rig, fleet: list[Worker]):
    a, b = fleet

    def on(name: str, worker: Worker) -> tuple[Resource, ...]:
        table = routes("table", name)
        return (cluster(name), assignment(name, worker.port), listener("gateway", "table", rig.port), table)

    rig.serve(*on("one", a))
    await rig.answers("/one", "a")
    failures: list[tuple[int, str]] = []
    done = asyncio.Event()

    async def clients() -> None:
        while not done.is_set():
            # Both paths are asked; the one without a route gives 404, and nothing else may go wrong.
            for path in ("/one", "/two"):
                status, text = await rig.get(path)
                if status not in (200, 404):
                    failures.append((status, text))

    load = asyncio.create_task(clients())
    for _ in range(5):
        rig.serve(*on("two", b))
        await rig.answers("/two", "b")
        rig.serve(*on("one", a))
        await rig.answers("/one", "a")
    done.set()
    await load
    assert failures == []
    await rig.synced(*EVERYTHING)
    # And what nobody needs any more is gone: "one" and the cluster of the control plane are left.
    await rig.stat_is("cluster_manager.active_clusters", 2)


async def test_an_envoy_that_refused_its_routes_keeps_what_the_old_ones_need(rig: Rig, fleet: list[Worker]):
    a, b = fleet
    rig.serve(*world(rig, a, "old"))
    await rig.answers("/old", "a")
    await rig.synced(*EVERYTHING)
    whole = world(rig, b, "new")
    # Two hosts for all domains are not allowed.
    rig.serve(*whole[:3], twice(routes("table", "new")))
    await eventually(lambda: rig.state(ROUTE) is SyncState.NACK, "a NACK")
    await asyncio.sleep(0.2)
    assert await rig.get("/old") == (200, "a")
    rig.serve(*whole)
    await rig.answers("/new", "b")
    await rig.stat_is("cluster_manager.cluster_removed", 1)


def twice(table: Resource) -> Resource:
    """The same routes with their host doubled."""
    message = RouteConfiguration.FromString(table.body)
    message.virtual_hosts.add().CopyFrom(message.virtual_hosts[0])
    return Resource.of(table.type_url, table.name, message.SerializeToString(deterministic=True))


async def test_silence_is_no_alarm_where_there_is_nothing_to_say(rig: Rig, fleet: list[Worker]):
    rig.serve(*world(rig, fleet[0]))
    await rig.synced(*EVERYTHING)
    await asyncio.sleep(ACK_TIMEOUT_S + 0.3)
    for label in ("Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration"):
        assert rig.count("overdue_acks", type=label) == 0
