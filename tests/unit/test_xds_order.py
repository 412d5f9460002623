"""Make before break across types, in both protocol variants; and the traps of Envoy around warming clusters."""

from collections.abc import Callable
from typing import Any

import pytest
from xds_kit import (
    DeltaClient,
    SotwClient,
    assignment,
    cluster,
    listener,
    other,
    routes,
    snapshot,
    static_cluster,
    types_of,
)

from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE
from xds_server.session import ENDPOINTS_WAIT_S

Client = DeltaClient | SotwClient
both = pytest.mark.parametrize("make", [DeltaClient, SotwClient], ids=["delta", "sotw"])

OLD = (cluster("old"), assignment("old", 1), listener("l", "r", 1), other(EXTENSION_CONFIG, "e"), routes("r", "old"))
NEW = (
    cluster("new"),
    assignment("new", 2),
    listener("l", "r", 2),
    other(EXTENSION_CONFIG, "e", "2"),
    routes("r", "new"),
)


def contents(response: Any) -> list[str]:
    """The names in a response; in state of the world they are inside the messages."""
    if hasattr(response, "removed_resources"):
        return [entry.name for entry in response.resources]
    found = []
    for entry in response.resources:
        known = [each for each in (*OLD, *NEW) if each.body == entry.value and each.type_url == entry.type_url]
        found.append(known[0].name)
    return found


def gateway(make: Callable[[], Client]) -> Client:
    """A client that has the old world and accepted it, like an Envoy that runs."""
    client = make()
    client.serve(*OLD)
    for type_url, names in (
        (CLUSTER, ()),
        (ENDPOINT, ("old",)),
        (LISTENER, ()),
        (EXTENSION_CONFIG, ("e",)),
        (ROUTE, ("r",)),
    ):
        for response in client.ask(type_url, *names):
            client.ack(response)
    return client


def follow_endpoints(client: Client, old: str, new: str) -> list[Any]:
    """Ask for the endpoints of a new cluster as Envoy does on hearing of it."""
    return client.ask(ENDPOINT, *([old, new] if isinstance(client, SotwClient) else [new]))


@both
def test_a_move_makes_everything_before_it_breaks_anything(make: Callable[[], Client]):
    client = gateway(make)
    (clusters,) = client.serve(*NEW)
    assert clusters.type_url == CLUSTER
    responses = follow_endpoints(client, "old", "new")
    assert types_of(responses) == [ENDPOINT, LISTENER, EXTENSION_CONFIG, ROUTE]
    # Nothing goes before the client has accepted the routes that no longer need it.
    later = [more for response in [clusters, *responses[:-1]] for more in client.ack(response)]
    assert later == []
    later = client.ack(responses[-1])
    assert types_of(later) == [CLUSTER, ENDPOINT]
    if make is SotwClient:
        assert contents(clusters) == ["new", "old"]
        assert contents(later[0]) == ["new"]
    else:
        assert contents(clusters) == ["new"]
        assert list(later[0].removed_resources) == ["old"]


@both
def test_a_client_that_refused_its_routes_keeps_the_clusters_of_the_old_ones(make: Callable[[], Client]):
    client = gateway(make)
    (clusters,) = client.serve(*NEW)
    responses = follow_endpoints(client, "old", "new")
    for response in [clusters, *responses[:-1]]:
        client.ack(response)
    assert client.nack(responses[-1]) == []
    # The repaired routes are accepted: now the old cluster may go.
    repaired = (*NEW[:-1], routes("r", "new", "new"))
    (again,) = client.serve(*repaired)
    assert again.type_url == ROUTE
    assert types_of(client.ack(again)) == [CLUSTER, ENDPOINT]


@both
def test_a_cluster_that_returns_before_it_went_stays(make: Callable[[], Client]):
    client = gateway(make)
    client.serve(*NEW)
    responses = follow_endpoints(client, "old", "new")
    both_worlds = (*NEW, OLD[0], OLD[1])
    later = client.serve(*both_worlds)
    assert all("old" not in getattr(response, "removed_resources", ()) for response in later)
    settled = [more for response in [*responses, *later] for more in client.ack(response)]
    assert settled == []


@both
def test_a_listener_goes_in_its_own_turn_since_another_may_want_its_port(make: Callable[[], Client]):
    client = gateway(make)
    moved = (*OLD[:2], listener("renamed", "r", 1), *OLD[3:])
    (response,) = client.serve(*moved)
    assert response.type_url == LISTENER
    if make is DeltaClient:
        assert [entry.name for entry in response.resources] == ["renamed"]
        assert list(response.removed_resources) == ["l"]
    else:
        assert len(response.resources) == 1


@both
def test_endpoints_follow_a_changed_cluster_though_they_are_the_same(make: Callable[[], Client]):
    client = gateway(make)
    clusters, endpoints = client.serve(cluster("old", 2), *OLD[1:])
    # At once: Envoy sends its ACK of the cluster only after it warmed, for which it needs them.
    assert (clusters.type_url, endpoints.type_url) == (CLUSTER, ENDPOINT)
    assert len(endpoints.resources) == 1
    assert client.ack(endpoints) == []
    assert client.ack(clusters) == []


@both
def test_endpoints_follow_only_the_clusters_that_changed(make: Callable[[], Client]):
    client = make()
    served = (cluster("a"), cluster("b", service_name="b-eds"), static_cluster("s"), assignment("a", 1))
    client.serve(*served, assignment("b-eds", 2))
    for response in [*client.ask(CLUSTER), *client.ask(ENDPOINT, "a", "b-eds")]:
        client.ack(response)
    changed = (cluster("a"), cluster("b", 2, service_name="b-eds"), static_cluster("s", 2), assignment("a", 1))
    clusters, endpoints = client.serve(*changed, assignment("b-eds", 2))
    assert clusters.type_url == CLUSTER
    (entry,) = endpoints.resources
    assert (entry.value if make is SotwClient else entry.resource.value) == assignment("b-eds", 2).body


@both
def test_endpoints_follow_clusters_that_were_refused_for_another_and_come_again(make: Callable[[], Client]):
    client = make()
    client.serve(cluster("good"), assignment("good", 1), cluster("bad"), assignment("bad", 1))
    for response in [*client.ask(CLUSTER), *client.ask(ENDPOINT, "bad", "good")]:
        client.ack(response)
    endpoints = assignment("good", 1), assignment("bad", 1)
    clusters = client.serve(cluster("good", 2), cluster("bad", 2), *endpoints)[0]
    client.nack(clusters)
    responses = client.serve(cluster("good", 2), cluster("bad", 3), *endpoints)
    bodies = {
        entry.value if make is SotwClient else entry.resource.value
        for response in responses
        if response.type_url == ENDPOINT
        for entry in response.resources
    }
    assert bodies == {each.body for each in endpoints}


@both
def test_refused_endpoints_are_not_sent_again_because_their_cluster_changed(make: Callable[[], Client]):
    client = make()
    client.serve(cluster("c"), assignment("c", 1))
    client.ask(CLUSTER)
    (endpoints,) = client.ask(ENDPOINT, "c")
    client.nack(endpoints)
    assert types_of(client.serve(cluster("c", 2), assignment("c", 1))) == [CLUSTER]


@both
def test_an_endpoint_change_alone_moves_nothing_else(make: Callable[[], Client]):
    client = gateway(make)
    assert types_of(client.serve(OLD[0], assignment("old", 1, 2), *OLD[2:])) == [ENDPOINT]


@both
def test_routes_wait_for_the_endpoints_of_a_new_cluster(make: Callable[[], Client]):
    client = gateway(make)
    world = (*OLD[:4], cluster("new"), assignment("new", 2), routes("r", "old", "new"))
    assert types_of(client.serve(*world)) == [CLUSTER]
    assert client.session.wake_at() == client.now + ENDPOINTS_WAIT_S
    # Envoy asks within a round trip. A client that never does must still get its routes.
    client.now += ENDPOINTS_WAIT_S
    assert types_of(client.hear()) == [ROUTE]


def test_routes_wait_for_a_cluster_that_comes_back_while_its_going_is_under_way():
    """Seen on Envoy 1.40: the word that it no longer needs the endpoints arrives between cluster and endpoints."""
    client = DeltaClient()
    gateway(lambda: client)
    clusters = client.serve(*NEW)
    responses = [*clusters, *follow_endpoints(client, "old", "new")]
    later = [more for response in responses for more in client.ack(response)]
    assert list(later[0].removed_resources) == ["old"]
    # The world turns back before the client has answered that.
    client.session.offer(snapshot(*OLD))
    again = client.session.next_response(client.now)
    assert again is not None
    assert contents(again) == ["old"]
    assert ROUTE not in types_of(client.ask(ENDPOINT, leave=["old"]))
    assert types_of(client.ask(ENDPOINT, "old")) == [ENDPOINT, LISTENER, EXTENSION_CONFIG, ROUTE]


@both
def test_routes_do_not_wait_for_the_endpoints_of_a_refused_cluster(make: Callable[[], Client]):
    client = gateway(make)
    (clusters,) = client.serve(*OLD[:4], cluster("new"), assignment("new", 2), routes("r", "old", "new"))
    assert types_of(client.nack(clusters)) == [ROUTE]


@both
def test_clients_without_endpoints_on_this_stream_wait_for_nothing(make: Callable[[], Client]):
    client = make()
    client.serve(cluster("a"), assignment("a", 1), routes("r", "a"))
    for response in [*client.ask(CLUSTER), *client.ask(ROUTE, "r")]:
        client.ack(response)
    served = (cluster("a"), cluster("b"), assignment("a", 1), assignment("b", 1), routes("r", "b"))
    assert types_of(client.serve(*served)) == [CLUSTER, ROUTE]


@both
def test_a_newer_snapshot_replaces_what_was_not_said_yet(make: Callable[[], Client]):
    client = make()
    for port in range(1, 50):
        client.session.offer(snapshot(assignment("c", port)))
    client.ask(ENDPOINT, "c")
    for port in range(50, 100):
        client.session.offer(snapshot(assignment("c", port)))
    (response,) = client.hear()
    (entry,) = response.resources
    assert (entry.value if make is SotwClient else entry.resource.value) == assignment("c", 99).body


def test_state_of_the_world_keeps_listing_what_is_to_go_at_its_accepted_content():
    client = gateway(SotwClient)
    (refused,) = (response for response in client.serve(cluster("old", 2), *OLD[1:]) if response.type_url == CLUSTER)
    client.nack(refused)
    (clusters,) = client.serve(*NEW)
    # The refused content must not come along again.
    assert {entry.value for entry in clusters.resources} == {cluster("new").body, cluster("old").body}


def test_a_cluster_that_was_never_accepted_is_not_listed_for_longer():
    client = SotwClient()
    client.serve(static_cluster("bad"))
    (refused,) = client.ask(CLUSTER)
    client.nack(refused)
    (clusters,) = client.serve(static_cluster("good"))
    assert [entry.value for entry in clusters.resources] == [static_cluster("good").body]
    assert client.ack(clusters) == []


def test_endpoints_that_are_to_go_are_still_answered_as_they_are():
    # The old cluster serves until the routes have moved: asked again, its endpoints must not vanish before that.
    client = gateway(DeltaClient)
    client.serve(*NEW)
    response = client.ask(ENDPOINT, "old")[0]
    assert [entry.resource.value for entry in response.resources] == [assignment("old", 1).body]


@both
def test_a_cluster_refused_for_another_serves_though_nothing_may_go_now(make: Callable[[], Client]):
    # The bad cluster cannot be taken away while the listeners are refused; the good one need not wait for that.
    client = make()
    client.serve(static_cluster("good"), static_cluster("bad"), listener("l", "r"))
    (clusters,) = client.ask(CLUSTER)
    (listeners,) = client.ask(LISTENER)
    client.nack(listeners)
    client.nack(clusters)
    responses = client.serve(static_cluster("good"), listener("l", "r"))
    assert types_of(responses) == [CLUSTER]
    (entry,) = responses[0].resources
    assert (entry.value if make is SotwClient else entry.resource.value) == static_cluster("good").body
    assert client.ack(responses[0]) == []


@both
def test_refused_content_that_left_and_returns_is_news(make: Callable[[], Client]):
    client = make()
    client.serve(static_cluster("c"), listener("l", "r"))
    (clusters,) = client.ask(CLUSTER)
    (listeners,) = client.ask(LISTENER)
    client.nack(listeners)
    client.nack(clusters)
    for response in client.serve(listener("l", "r")):
        client.ack(response)
    (again,) = client.serve(static_cluster("c"), listener("l", "r"))
    assert again.type_url == CLUSTER


@both
def test_the_order_is_ours_not_the_clients(make: Callable[[], Client]):
    client = make()
    client.ask(ROUTE, "r")
    client.ask(EXTENSION_CONFIG, "e")
    client.ask(LISTENER)
    client.ask(ENDPOINT, "old")
    client.ask(CLUSTER)
    assert types_of(client.serve(*OLD)) == [CLUSTER, ENDPOINT, LISTENER, EXTENSION_CONFIG, ROUTE]
