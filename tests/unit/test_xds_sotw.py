"""State of the world, type by type: what ii/xds-test-harness and go-control-plane hold a server to."""

import pytest
from xds_kit import (
    POLICY,
    TYPES,
    SotwClient,
    any_resource,
    assignment,
    bodies_of,
    cluster,
    listener,
    routes,
    snapshot,
    static_cluster,
    types_of,
)

from xds_server.problems import LimitExceededError, ProtocolError
from xds_server.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE
from xds_server.session import Limits

WHOLE = [CLUSTER, LISTENER]
PARTIAL = [type_url for type_url in TYPES if type_url not in WHOLE]
each_type = pytest.mark.parametrize("type_url", TYPES)
each_whole_type = pytest.mark.parametrize("type_url", WHOLE)
each_partial_type = pytest.mark.parametrize("type_url", PARTIAL)


@each_type
def test_a_wildcard_brings_everything_in_one_response(type_url: str):
    client = SotwClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a, b)
    (response,) = client.ask(type_url)
    assert bodies_of(response) == [a.body, b.body]
    assert {entry.type_url for entry in response.resources} == {type_url}
    assert response.version_info == snapshot(a, b).version(type_url)
    assert client.ack(response) == []


@each_type
def test_names_bring_these_only(type_url: str):
    client = SotwClient()
    a, b, c = (any_resource(type_url, name) for name in "abc")
    client.serve(a, b, c)
    (response,) = client.ask(type_url, "a", "c")
    assert bodies_of(response) == [a.body, c.body]
    assert client.ack(response) == []


@each_type
def test_an_update_is_pushed(type_url: str):
    client = SotwClient()
    client.serve(any_resource(type_url, "a"))
    (first,) = client.ask(type_url, "a")
    client.ack(first)
    changed = any_resource(type_url, "a", 2)
    (second,) = client.serve(changed)
    assert bodies_of(second) == [changed.body]
    assert second.version_info != first.version_info
    assert second.nonce != first.nonce
    assert client.ack(second) == []


@each_type
def test_a_resource_added_is_pushed_to_a_wildcard(type_url: str):
    client = SotwClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a)
    (first,) = client.ask(type_url)
    client.ack(first)
    (second,) = client.serve(a, b)
    assert b.body in bodies_of(second)


@each_whole_type
def test_whole_types_are_always_complete(type_url: str):
    client = SotwClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a, b)
    (first,) = client.ask(type_url, "a", "b")
    client.ack(first)
    changed = any_resource(type_url, "a", 2)
    (second,) = client.serve(changed, b)
    assert bodies_of(second) == [changed.body, b.body]


@each_partial_type
def test_other_types_bring_only_what_changed(type_url: str):
    # One resource that a client refuses must not take the others of its response along.
    client = SotwClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a, b)
    (first,) = client.ask(type_url, "a", "b")
    client.ack(first)
    changed = any_resource(type_url, "a", 2)
    (second,) = client.serve(changed, b)
    assert bodies_of(second) == [changed.body]
    # The version still speaks for both.
    assert second.version_info == snapshot(changed, b).version(type_url)


@each_whole_type
def test_absence_deletes_in_whole_types(type_url: str):
    client = SotwClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a, b)
    (first,) = client.ask(type_url)
    client.ack(first)
    (second,) = client.serve(b)
    assert bodies_of(second) == [b.body]
    client.ack(second)
    # Emptied altogether: the client must hear that as well.
    (third,) = client.serve()
    assert bodies_of(third) == []


@each_whole_type
def test_an_empty_world_is_an_answer(type_url: str):
    # Envoy does not start before it has heard which clusters and listeners there are.
    client = SotwClient()
    client.serve()
    (response,) = client.ask(type_url)
    assert bodies_of(response) == []
    assert client.ack(response) == []


@each_whole_type
def test_a_missing_name_of_a_whole_type_is_answered_by_its_absence(type_url: str):
    client = SotwClient()
    client.serve()
    (response,) = client.ask(type_url, "a")
    assert bodies_of(response) == []
    assert client.ack(response) == []


@each_partial_type
def test_there_is_no_way_to_call_other_types_absent(type_url: str):
    client = SotwClient()
    client.serve()
    assert client.ask(type_url, "a") == []


@each_type
def test_a_missing_name_is_remembered_and_pushed_when_it_comes(type_url: str):
    client = SotwClient()
    client.serve()
    for response in client.ask(type_url, "a"):
        client.ack(response)
    a = any_resource(type_url, "a")
    (response,) = client.serve(a, any_resource(type_url, "b"))
    assert bodies_of(response) == [a.body]


@each_partial_type
def test_gone_and_back_is_pushed_again(type_url: str):
    client = SotwClient()
    a = any_resource(type_url, "a")
    client.serve(a)
    (first,) = client.ask(type_url, "a")
    client.ack(first)
    for response in client.serve():
        client.ack(response)
    (again,) = client.serve(a)
    assert bodies_of(again) == [a.body]


@each_type
def test_only_subscribed_names_are_pushed(type_url: str):
    client = SotwClient()
    client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
    (response,) = client.ask(type_url, "a")
    client.ack(response)
    assert client.serve(any_resource(type_url, "a"), any_resource(type_url, "b", 2)) == []
    assert client.serve(any_resource(type_url, "a"), any_resource(type_url, "c")) == []


@each_type
def test_a_name_not_requested_before_is_answered_at_the_same_version(type_url: str):
    # go-control-plane: SnapshotCreateWatchWithResourcePreviouslyNotRequested.
    client = SotwClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a, b)
    (first,) = client.ask(type_url, "a")
    client.ack(first)
    (second,) = client.ask(type_url, "a", "b")
    assert b.body in bodies_of(second)
    assert client.ack(second) == []


@each_type
def test_an_unsubscribed_name_goes_silently_and_is_sent_again_when_it_returns(type_url: str):
    client = SotwClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a, b)
    (response,) = client.ask(type_url, "a", "b")
    client.ack(response)
    assert client.ask(type_url, "b") == []
    assert client.serve(any_resource(type_url, "a", 2), b) == []
    # The client may have dropped it meanwhile.
    (again,) = client.ask(type_url, "a", "b")
    assert any_resource(type_url, "a", 2).body in bodies_of(again)


@each_type
def test_unsubscribed_from_all_means_silence(type_url: str):
    client = SotwClient()
    client.serve(any_resource(type_url, "a"))
    (response,) = client.ask(type_url, "a")
    client.ack(response)
    assert client.ask(type_url) == []
    assert client.serve(any_resource(type_url, "a", 2), any_resource(type_url, "b")) == []


@each_type
def test_the_explicit_wildcard(type_url: str):
    client = SotwClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a, b)
    (response,) = client.ask(type_url, "*")
    assert bodies_of(response) == [a.body, b.body]
    client.ack(response)
    assert client.ask(type_url, "a") == []
    assert client.serve(a, any_resource(type_url, "b", 2)) == []


@each_type
def test_nothing_is_said_before_the_first_snapshot(type_url: str):
    client = SotwClient()
    assert client.ask(type_url, "a") == []
    assert client.ask(type_url, "a", "b") == []
    (response,) = client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
    assert len(response.resources) == 2


@each_type
def test_the_same_content_is_not_pushed_again(type_url: str):
    client = SotwClient()
    client.serve(any_resource(type_url, "a"))
    (response,) = client.ask(type_url, "a")
    assert client.serve(any_resource(type_url, "a")) == []
    client.ack(response)
    assert client.serve(any_resource(type_url, "a")) == []


@each_type
def test_a_change_of_another_type_says_nothing(type_url: str):
    client = SotwClient()
    client.serve(any_resource(type_url, "a"))
    (response,) = client.ask(type_url, "a")
    client.ack(response)
    others = [any_resource(other, "x") for other in TYPES if other != type_url]
    assert client.serve(any_resource(type_url, "a"), *others) == []


@each_type
def test_a_stale_nonce_is_ignored_names_included(type_url: str):
    client = SotwClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a, b)
    (first,) = client.ask(type_url, "a")
    (second,) = client.serve(any_resource(type_url, "a", 2), b)
    assert client.ask(type_url, "a", "b", nonce=first.nonce) == []
    assert client.ask(type_url, "a", "b", nonce="no-such-nonce") == []
    # The request that answers the newest response counts.
    (third,) = client.ask(type_url, "a", "b", nonce=second.nonce)
    assert b.body in bodies_of(third)


@each_partial_type
def test_a_name_that_left_in_a_stale_request_and_is_back_is_sent_again(type_url: str):
    client = SotwClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a, b)
    (first,) = client.ask(type_url, "a", "b")
    client.ack(first)
    (second,) = client.serve(a, any_resource(type_url, "b", 2))
    assert client.ask(type_url, "b", nonce=first.nonce) == []
    assert client.ask(type_url, "a", "b", nonce=first.nonce) == []
    (third,) = client.ask(type_url, "a", "b", nonce=second.nonce)
    assert bodies_of(third) == [a.body]


@each_type
def test_a_push_waits_for_no_ack(type_url: str):
    # Envoy withholds the ACK of clusters while they warm.
    client = SotwClient()
    client.serve(any_resource(type_url, "a"))
    client.ask(type_url, "a")
    assert len(client.serve(any_resource(type_url, "a", 2))) == 1
    assert len(client.serve(any_resource(type_url, "a", 3))) == 1


def test_nonces_are_unique_on_the_stream():
    client = SotwClient()
    client.serve(cluster("c"), assignment("c", 1), listener("l", "r"), routes("r", "c"))
    asked = [CLUSTER, ENDPOINT, LISTENER, ROUTE]
    names = {ENDPOINT: ["c"], ROUTE: ["r"]}
    responses = [response for type_url in asked for response in client.ask(type_url, *names.get(type_url, []))]
    assert types_of(responses) == asked
    assert len({response.nonce for response in responses}) == 4


class TestReconnect:
    @each_type
    def test_everything_is_sent_again_whatever_the_client_claims(self, type_url: str):
        # What it claims is the last version that it accepted. Of one that it refused later, it may have applied a
        # part: Envoy takes the good clusters of a refused response, and drops those that are not in it.
        client = SotwClient()
        client.serve(any_resource(type_url, "a"))
        (response,) = client.ask(type_url, "*", version=snapshot(any_resource(type_url, "a")).version(type_url))
        assert bodies_of(response) == [any_resource(type_url, "a").body]

    def test_endpoints_that_have_gone_meanwhile_are_emptied(self):
        client = SotwClient()
        client.serve(assignment("there", 1))
        there, gone = client.ask(ENDPOINT, "gone", "there", version="of an earlier stream")
        assert bodies_of(there) == [assignment("there", 1).body]
        assert bodies_of(gone) == [assignment("gone").body]

    @each_type
    def test_a_nonce_of_an_earlier_stream_does_no_harm(self, type_url: str):
        client = SotwClient()
        client.serve(any_resource(type_url, "a"))
        (response,) = client.ask(type_url, "a", nonce="7")
        assert len(response.resources) == 1


class TestNack:
    @each_type
    def test_the_refused_content_is_held_until_it_changes(self, type_url: str):
        client = SotwClient()
        client.serve(any_resource(type_url, "a"))
        (response,) = client.ask(type_url, "a")
        assert client.nack(response) == []
        assert client.serve(any_resource(type_url, "a")) == []
        (repaired,) = client.serve(any_resource(type_url, "a", 2))
        assert bodies_of(repaired) == [any_resource(type_url, "a", 2).body]
        assert client.ack(repaired) == []

    @each_type
    def test_a_roll_back_to_the_accepted_content_is_pushed(self, type_url: str):
        client = SotwClient()
        client.serve(any_resource(type_url, "a"))
        (good,) = client.ask(type_url, "a")
        client.ack(good)
        (bad,) = client.serve(any_resource(type_url, "a", 2))
        client.nack(bad)
        (back,) = client.serve(any_resource(type_url, "a"))
        assert bodies_of(back) == [any_resource(type_url, "a").body]
        assert back.version_info == good.version_info

    @each_partial_type
    def test_those_refused_along_with_it_go_with_its_repair(self, type_url: str):
        client = SotwClient()
        good, bad = any_resource(type_url, "good"), any_resource(type_url, "bad")
        client.serve(good, bad)
        (both,) = client.ask(type_url, "bad", "good")
        client.nack(both)
        # An unrelated resource changes nothing about them.
        client.serve(good, bad, any_resource(type_url, "x"))
        assert client.hear() == []
        (repaired,) = client.serve(good, any_resource(type_url, "bad", 2))
        assert bodies_of(repaired) == [any_resource(type_url, "bad", 2).body, good.body]

    def test_an_old_error_with_the_new_version_is_an_ack(self):
        # Envoy 1.40, after an invalid cluster was repaired: version v4, nonce of v4, and the error of v2.
        client = SotwClient()
        client.serve(static_cluster("c", 1))
        (first,) = client.ask(CLUSTER)
        client.ack(first)
        client.serve(static_cluster("c", 2))
        (repaired,) = client.serve(static_cluster("c", 3))
        client.ask(CLUSTER, version=repaired.version_info, nonce=repaired.nonce, error="the error of the second")
        (status,) = client.session.status(client.now).types
        assert (status.state, status.accepted, status.reason) == ("SYNCED", repaired.version_info, "")

    @each_type
    def test_a_late_nack_of_what_was_replaced_already_says_nothing_new(self, type_url: str):
        client = SotwClient()
        client.serve(any_resource(type_url, "a"))
        (first,) = client.ask(type_url, "a")
        (second,) = client.serve(any_resource(type_url, "a", 2))
        assert client.nack(first) == []
        assert client.ack(second) == []
        assert client.hear() == []

    @each_partial_type
    def test_a_late_answer_to_an_older_response_still_tells_who_was_refused(self, type_url: str):
        client = SotwClient()
        client.serve(any_resource(type_url, "a"))
        (first,) = client.ask(type_url, "a", "b")
        (second,) = client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
        client.nack(first, "a is wrong")
        client.ack(second)
        (status,) = client.session.status(client.now).types
        assert (status.state, status.refused, status.reason) == ("NACK", ("a",), "a is wrong")


class TestRefusals:
    def test_a_type_is_required(self):
        with pytest.raises(ProtocolError, match="type_url"):
            SotwClient().ask("")

    def test_types_are_bounded(self):
        client = SotwClient(limits=Limits(types=2))
        client.ask(CLUSTER)
        client.ask(ENDPOINT, "a")
        client.ask(CLUSTER)
        with pytest.raises(LimitExceededError, match="more than 2 resource types"):
            client.ask(LISTENER)

    def test_names_are_bounded(self):
        with pytest.raises(LimitExceededError):
            SotwClient(limits=Limits(names=1)).ask(ENDPOINT, "a", "b")

    def test_an_unknown_type_waits_quietly_and_bothers_nobody(self):
        client = SotwClient()
        client.serve(any_resource(CLUSTER, "a"))
        assert client.ask("type.googleapis.com/no.such.Type", "a") == []
        assert client.ask("type.googleapis.com/no.such.Type") == []
        assert len(client.ask(CLUSTER)) == 1


def test_our_own_type_is_served_like_any_other():
    client = SotwClient()
    client.serve(cluster("c"), any_resource(POLICY, "chat"))
    (response,) = client.ask(POLICY, "*")
    assert bodies_of(response) == [any_resource(POLICY, "chat").body]
    # And nobody gets it unasked.
    assert types_of(client.ask(CLUSTER)) == [CLUSTER]
