"""Where a client stands, what is said about it, and the alarm when it falls silent."""

from collections.abc import Callable

import pytest
from xds_kit import DeltaClient, SotwClient, assignment, static_cluster

from xds_server.resource import CLUSTER, ENDPOINT
from xds_server.status import Overdue, Pushed, Refused, SyncState, TypeStatus
from xds_server.unanswered import MAX_UNANSWERED

Client = DeltaClient | SotwClient
both = pytest.mark.parametrize("make", [DeltaClient, SotwClient], ids=["delta", "sotw"])
ACK_TIMEOUT_S = 10.0  # of the kit's sessions


def only(client: Client) -> TypeStatus:
    (status,) = client.session.status(client.now).types
    return status


@both
def test_from_push_to_ack(make: Callable[[], Client]):
    client = make()
    client.serve(static_cluster("a"))
    (response,) = client.ask(CLUSTER, node="envoy-1")
    assert only(client).state is SyncState.PENDING
    client.now += 1
    client.ack(response)
    status = only(client)
    assert (status.state, status.type_url, status.reason, status.refused) == (SyncState.SYNCED, CLUSTER, "", ())
    assert status.sent == status.accepted != ""
    assert status.last_seen == client.now


@both
def test_a_refusal_is_told_with_its_reason_until_it_is_repaired(make: Callable[[], Client]):
    client = make()
    client.serve(static_cluster("a"))
    (good,) = client.ask(CLUSTER)
    client.ack(good)
    before = only(client)
    (bad,) = client.serve(static_cluster("a", 2))
    client.nack(bad, "a is wrong")
    status = only(client)
    assert (status.state, status.reason, status.refused) == (SyncState.NACK, "a is wrong", ("a",))
    assert (status.accepted, status.sent) == (before.accepted, before.sent) or status.sent != status.accepted
    assert status.accepted == before.accepted
    (repaired,) = client.serve(static_cluster("a", 3))
    client.ack(repaired)
    status = only(client)
    assert (status.state, status.reason, status.refused) == (SyncState.SYNCED, "", ())


@both
def test_a_refused_resource_that_was_taken_away_is_refused_no_more(make: Callable[[], Client]):
    client = make()
    client.serve(static_cluster("a"))
    (bad,) = client.ask(CLUSTER)
    client.nack(bad)
    for response in client.serve():
        client.ack(response)
    assert only(client).state is SyncState.SYNCED


@both
def test_reasons_are_cut(make: Callable[[], Client]):
    client = make()
    client.serve(static_cluster("a"))
    (bad,) = client.ask(CLUSTER)
    client.nack(bad, "x" * 100_000)
    assert len(only(client).reason) == 2_000


@both
def test_silence_raises_one_alarm(make: Callable[[], Client]):
    client = make()
    client.serve(static_cluster("a"))
    (response,) = client.ask(CLUSTER)
    client.session.take_events()
    assert client.session.wake_at() == client.now + ACK_TIMEOUT_S
    sent = client.now
    client.now += ACK_TIMEOUT_S - 0.1
    client.hear()
    assert only(client).state is SyncState.PENDING
    assert client.session.take_events() == []
    client.now = sent + ACK_TIMEOUT_S
    client.hear()
    assert only(client).state is SyncState.STALE
    assert client.session.take_events() == [Overdue(CLUSTER, only(client).sent, ACK_TIMEOUT_S)]
    client.now += ACK_TIMEOUT_S
    client.hear()
    assert client.session.take_events() == []
    assert client.session.wake_at() is None
    # Having spoken, it may fall silent again.
    client.ack(response)
    assert only(client).state is SyncState.SYNCED
    client.serve(static_cluster("a", 2))
    assert client.session.wake_at() == client.now + ACK_TIMEOUT_S


@both
def test_a_client_that_never_answers_costs_bounded_memory_and_stays_late(make: Callable[[], Client]):
    client = make()
    client.ask(ENDPOINT, "c")
    began = client.now
    for port in range(1, 3 * MAX_UNANSWERED):
        client.serve(assignment("c", port))
        client.now += 0.01
    (substream,) = client.session._substreams
    assert len(substream.unanswered) == MAX_UNANSWERED
    assert client.session.wake_at() == began + ACK_TIMEOUT_S


@both
def test_events(make: Callable[[], Client]):
    client = make()
    client.serve(static_cluster("a"), static_cluster("b"))
    (response,) = client.ask(CLUSTER)
    version = only(client).sent
    assert client.session.take_events() == [Pushed(CLUSTER, version, resources=2, removed=0)]
    client.nack(response, "no")
    assert client.session.take_events() == [Refused(CLUSTER, version, ("a", "b"), "no")]
    assert client.session.take_events() == []


@both
def test_the_node_is_kept_from_the_first_request(make: Callable[[], Client]):
    client = make()
    assert client.session.status(client.now).node_id == ""
    client.ask(CLUSTER, node="envoy-1")
    client.ask(ENDPOINT, "c")
    status = client.session.status(client.now)
    assert (status.node_id, status.since) == ("envoy-1", 100.0)
    assert [each.type_url for each in status.types] == [CLUSTER, ENDPOINT]
    client.ask(CLUSTER, node="x" * 10_000)
    assert len(client.session.status(client.now).node_id) == 256


def test_protocols():
    assert DeltaClient().session.status(0).protocol == "delta"
    assert SotwClient().session.status(0).protocol == "sotw"
