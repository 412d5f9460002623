"""Delta, type by type: what ii/xds-test-harness and go-control-plane hold a server to."""

import pytest
from xds_kit import POLICY, TYPES, DeltaClient, any_resource, assignment, cluster, names_of, other, types_of

from xds_server.problems import LimitExceededError, ProtocolError
from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE
from xds_server.session import Limits
from xds_server.session_delta import MAX_RESPONSE_BYTES

# Types of which a client's word on what it has is trusted.
TRUSTED = [CLUSTER, LISTENER, POLICY]
# Types that are called absent when they go. Endpoints are emptied instead, clusters go last.
REMOVED = [CLUSTER, LISTENER, EXTENSION_CONFIG, ROUTE, POLICY]
each_type = pytest.mark.parametrize("type_url", TYPES)


@each_type
def test_a_wildcard_brings_everything_with_names_and_versions(type_url: str):
    client = DeltaClient()
    a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
    client.serve(a, b)
    (response,) = client.ask(type_url)
    assert [(entry.name, entry.version) for entry in response.resources] == [("a", a.version), ("b", b.version)]
    assert [entry.resource.value for entry in response.resources] == [a.body, b.body]
    assert {entry.resource.type_url for entry in response.resources} == {type_url}
    assert client.ack(response) == []


@each_type
def test_subscribing_to_one_after_another(type_url: str):
    client = DeltaClient()
    client.serve(*(any_resource(type_url, name) for name in "abc"))
    (first,) = client.ask(type_url, "a")
    assert names_of(first) == ["a"]
    assert client.ack(first) == []
    (second,) = client.ask(type_url, "b")
    assert names_of(second) == ["b"]
    assert client.ack(second) == []


@each_type
def test_an_update_brings_only_what_changed(type_url: str):
    client = DeltaClient()
    client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
    (first,) = client.ask(type_url)
    client.ack(first)
    (second,) = client.serve(any_resource(type_url, "a", 2), any_resource(type_url, "b"))
    assert names_of(second) == ["a"]
    assert second.nonce != first.nonce
    assert client.ack(second) == []


@each_type
def test_a_missing_name_is_told_once_and_pushed_when_it_comes(type_url: str):
    client = DeltaClient()
    client.serve()
    (missing,) = client.ask(type_url, "a")
    assert names_of(missing) == []
    assert list(missing.removed_resources) == ["a"]
    assert client.ack(missing) == []
    assert client.serve(any_resource(type_url, "b")) == []
    (created,) = client.serve(any_resource(type_url, "a"))
    assert names_of(created) == ["a"]
    assert list(created.removed_resources) == []


@pytest.mark.parametrize("type_url", REMOVED)
def test_what_goes_is_called_removed_and_may_come_back(type_url: str):
    client = DeltaClient()
    client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
    (response,) = client.ask(type_url, "a", "b")
    client.ack(response)
    (gone,) = client.serve(any_resource(type_url, "b"))
    assert (names_of(gone), list(gone.removed_resources)) == ([], ["a"])
    assert client.ack(gone) == []
    assert client.serve(any_resource(type_url, "b")) == []
    (back,) = client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
    assert (names_of(back), list(back.removed_resources)) == (["a"], [])


def test_endpoints_that_go_are_emptied_because_envoy_ignores_their_removal():
    client = DeltaClient()
    client.serve(assignment("c", 1))
    (response,) = client.ask(ENDPOINT, "c")
    client.ack(response)
    (emptied,) = client.serve()
    assert list(emptied.removed_resources) == []
    assert [entry.resource.value for entry in emptied.resources] == [assignment("c").body]
    assert client.ack(emptied) == []
    (back,) = client.serve(assignment("c", 1))
    assert [entry.resource.value for entry in back.resources] == [assignment("c", 1).body]


@pytest.mark.parametrize("type_url", REMOVED)
def test_a_name_under_a_wildcard_is_forgotten_once_it_has_gone(type_url: str):
    client = DeltaClient()
    client.serve(any_resource(type_url, "a"))
    (response,) = client.ask(type_url)
    client.ack(response)
    (gone,) = client.serve()
    assert list(gone.removed_resources) == ["a"]
    assert client.ack(gone) == []
    (substream,) = client.session._substreams
    assert substream.told == {}


@each_type
def test_unsubscribing_stops_updates(type_url: str):
    client = DeltaClient()
    client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
    (response,) = client.ask(type_url, "a", "b")
    client.ack(response)
    assert client.ask(type_url, leave=["a"]) == []
    (update,) = client.serve(any_resource(type_url, "a", 2), any_resource(type_url, "b", 2))
    assert names_of(update) == ["b"]
    assert client.ask(type_url, leave=["b", "never-subscribed"]) == []
    assert client.serve() == []


@each_type
def test_a_name_subscribed_again_is_sent_again(type_url: str):
    client = DeltaClient()
    client.serve(any_resource(type_url, "a"))
    (response,) = client.ask(type_url, "a")
    client.ack(response)
    (again,) = client.ask(type_url, "a")
    assert names_of(again) == ["a"]
    client.ack(again)
    client.ask(type_url, leave=["a"])
    (back,) = client.ask(type_url, "a")
    assert names_of(back) == ["a"]


@each_type
def test_a_missing_name_subscribed_again_is_called_missing_again(type_url: str):
    client = DeltaClient()
    client.serve()
    assert len(client.ask(type_url, "a")) == 1
    (again,) = client.ask(type_url, "a")
    assert list(again.removed_resources) == ["a"]


@each_type
def test_subscriptions_count_even_with_a_stale_nonce(type_url: str):
    client = DeltaClient()
    client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
    client.ask(type_url, "a")
    (response,) = client.ask(type_url, "b", nonce="stale")
    assert names_of(response) == ["b"]
    assert client.ask(type_url, nonce="stale", leave=["a"]) == []
    assert types_of(client.serve(any_resource(type_url, "a", 2), any_resource(type_url, "b"))) == []


class TestWildcards:
    @each_type
    def test_the_implicit_one_survives_names_and_ends_with_a_star(self, type_url: str):
        client = DeltaClient()
        a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
        client.serve(a, b)
        (everything,) = client.ask(type_url)
        client.ack(everything)
        (named,) = client.ask(type_url, "a")
        assert names_of(named) == ["a"]
        client.ack(named)
        (update,) = client.serve(a, any_resource(type_url, "b", 2))
        assert names_of(update) == ["b"]
        client.ack(update)
        assert client.ask(type_url, leave=["*"]) == []
        assert client.serve(a, any_resource(type_url, "b", 3)) == []
        (update,) = client.serve(any_resource(type_url, "a", 2))
        assert names_of(update) == ["a"]

    @each_type
    def test_the_explicit_one_on_and_off(self, type_url: str):
        client = DeltaClient()
        client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
        (named,) = client.ask(type_url, "a")
        client.ack(named)
        (rest,) = client.ask(type_url, "*")
        assert "b" in names_of(rest)
        client.ack(rest)
        assert client.ask(type_url, leave=["*"]) == []
        assert client.serve(any_resource(type_url, "a")) == []

    @each_type
    def test_a_name_unsubscribed_under_one_is_answered(self, type_url: str):
        client = DeltaClient()
        client.serve(any_resource(type_url, "there"))
        for response in client.ask(type_url, "*", "there", "missing"):
            client.ack(response)
        (there,) = client.ask(type_url, leave=["there"])
        assert (names_of(there), list(there.removed_resources)) == (["there"], [])
        client.ack(there)
        (missing,) = client.ask(type_url, leave=["missing"])
        assert (names_of(missing), list(missing.removed_resources)) == ([], ["missing"])
        assert client.ack(missing) == []

    @each_type
    def test_an_empty_world_is_an_answer(self, type_url: str):
        client = DeltaClient()
        client.serve()
        (response,) = client.ask(type_url)
        assert (names_of(response), list(response.removed_resources)) == ([], [])
        assert client.ack(response) == []
        assert client.serve() == []


class TestReconnect:
    @pytest.mark.parametrize("type_url", TRUSTED)
    def test_what_the_client_has_is_not_sent_again(self, type_url: str):
        same, old, new = any_resource(type_url, "same"), any_resource(type_url, "old"), any_resource(type_url, "old", 2)
        client = DeltaClient()
        client.serve(same, new, any_resource(type_url, "added"))
        (response,) = client.ask(type_url, have={"same": same.version, "old": old.version})
        assert names_of(response) == ["added", "old"]
        assert client.ack(response) == []

    @pytest.mark.parametrize("type_url", TRUSTED)
    def test_a_client_that_has_everything_gets_nothing(self, type_url: str):
        client = DeltaClient()
        client.serve(any_resource(type_url, "a"))
        assert client.ask(type_url, have={"a": any_resource(type_url, "a").version}) == []

    @pytest.mark.parametrize("type_url", [POLICY])
    def test_names_that_the_client_has_may_be_in_its_subscription(self, type_url: str):
        a, b = any_resource(type_url, "a"), any_resource(type_url, "b")
        client = DeltaClient()
        client.serve(a, b)
        (response,) = client.ask(type_url, "a", "b", have={"a": a.version})
        assert names_of(response) == ["b"]

    @pytest.mark.parametrize("type_url", [ENDPOINT, ROUTE, EXTENSION_CONFIG])
    def test_what_envoy_may_have_forgotten_is_always_sent_again(self, type_url: str):
        client = DeltaClient()
        client.serve(any_resource(type_url, "a"))
        (response,) = client.ask(type_url, "a", have={"a": any_resource(type_url, "a").version})
        assert names_of(response) == ["a"]

    @pytest.mark.parametrize("type_url", REMOVED)
    def test_what_has_gone_meanwhile_is_called_removed(self, type_url: str):
        client = DeltaClient()
        client.serve()
        names = ["a"] if type_url in (ROUTE, EXTENSION_CONFIG) else []
        (response,) = client.ask(type_url, *names, have={"a": "1"})
        assert list(response.removed_resources) == ["a"]
        assert client.ack(response) == []

    @each_type
    def test_a_claim_waits_for_the_first_snapshot(self, type_url: str):
        client = DeltaClient()
        assert client.ask(type_url, "*", have={"a": any_resource(type_url, "a").version}) == []
        responses = client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
        (response,) = responses
        assert names_of(response) == (["b"] if type_url in TRUSTED else ["a", "b"])

    @each_type
    def test_claims_count_in_the_first_request_only(self, type_url: str):
        client = DeltaClient()
        client.serve(any_resource(type_url, "a"))
        (response,) = client.ask(type_url, "a")
        client.ack(response)
        assert client.ask(type_url, have={"a": "0"}) == []

    def test_claims_of_what_is_not_wanted_are_ignored(self):
        client = DeltaClient()
        client.serve()
        (response,) = client.ask(POLICY, "a", have={"a": "1", "b": "1"})
        assert list(response.removed_resources) == ["a"]


class TestNack:
    @each_type
    def test_the_refused_content_is_held_until_it_changes(self, type_url: str):
        client = DeltaClient()
        client.serve(any_resource(type_url, "a"))
        (response,) = client.ask(type_url, "a")
        assert client.nack(response) == []
        assert client.serve(any_resource(type_url, "a"), any_resource(type_url, "b")) == []
        (repaired,) = client.serve(any_resource(type_url, "a", 2))
        assert names_of(repaired) == ["a"]
        assert client.ack(repaired) == []

    @each_type
    def test_an_unrelated_change_goes_out_alone(self, type_url: str):
        client = DeltaClient()
        client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
        (a,) = client.ask(type_url, "a")
        (b,) = client.ask(type_url, "b")
        client.nack(a)
        client.ack(b)
        (update,) = client.serve(any_resource(type_url, "a"), any_resource(type_url, "b", 2))
        assert names_of(update) == ["b"]

    @each_type
    def test_those_refused_along_with_it_are_tried_once_more_each_alone(self, type_url: str):
        # Envoy may have applied nothing of the refused response, and will never ask again.
        client = DeltaClient()
        x, y, bad = any_resource(type_url, "x"), any_resource(type_url, "y"), any_resource(type_url, "bad")
        client.serve(x, y, bad)
        (response,) = client.ask(type_url, "bad", "x", "y")
        assert client.nack(response) == []
        repaired, first, second = client.serve(x, y, any_resource(type_url, "bad", 2))
        assert [names_of(repaired), names_of(first), names_of(second)] == [["bad"], ["x"], ["y"]]
        client.ack(repaired)
        client.ack(second)
        # Refused alone, it waits for a change of its own.
        client.nack(first)
        assert client.serve(x, y, any_resource(type_url, "bad", 3)) != []
        assert client.serve(x, y, any_resource(type_url, "bad", 3)) == []

    @pytest.mark.parametrize("type_url", REMOVED)
    def test_taking_the_bad_one_away_frees_the_others(self, type_url: str):
        client = DeltaClient()
        good, bad = any_resource(type_url, "good"), any_resource(type_url, "bad")
        client.serve(good, bad)
        (response,) = client.ask(type_url)
        client.nack(response)
        responses = client.serve(good)
        assert sorted(name for response in responses for name in names_of(response)) == ["good"]
        # It is named even though the client never accepted it: it may linger half-built.
        assert [name for response in responses for name in response.removed_resources] == ["bad"]

    @pytest.mark.parametrize("type_url", [LISTENER, EXTENSION_CONFIG, ROUTE, POLICY])
    def test_a_removal_refused_along_with_a_bad_one_is_said_again_alone(self, type_url: str):
        # Nothing of a refused response may have been applied, its removals included.
        client = DeltaClient()
        client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
        (response,) = client.ask(type_url, "a", "b")
        client.ack(response)
        (both,) = client.serve(any_resource(type_url, "b", 2))
        assert (names_of(both), list(both.removed_resources)) == (["b"], ["a"])
        (again,) = client.nack(both)
        assert (names_of(again), list(again.removed_resources)) == ([], ["a"])
        # A removal alone that is refused is not worth a loop.
        assert client.nack(again) == []
        assert client.hear() == []

    def test_a_removal_refused_but_no_longer_asked_for_is_forgotten(self):
        client = DeltaClient()
        client.serve(any_resource(POLICY, "a"), any_resource(POLICY, "b"))
        (response,) = client.ask(POLICY, "a", "b")
        client.ack(response)
        (both,) = client.serve(any_resource(POLICY, "b", 2))
        client.ask(POLICY, leave=["a"])
        assert client.nack(both) == []
        assert client.ask(POLICY, leave=["b"]) == []
        (everything,) = client.ask(POLICY, "*")
        assert (names_of(everything), list(everything.removed_resources)) == (["b"], [])

    @each_type
    def test_a_nack_of_a_response_that_was_already_repaired(self, type_url: str):
        client = DeltaClient()
        good, bad = any_resource(type_url, "good"), any_resource(type_url, "bad")
        client.serve(good, bad)
        (response,) = client.ask(type_url, "good", "bad")
        (repaired,) = client.serve(good, any_resource(type_url, "bad", 2))
        (retry,) = client.nack(response)
        assert names_of(retry) == ["good"]
        assert client.ack(repaired) == []
        assert client.ack(retry) == []

    @each_type
    def test_every_nonce_has_its_own_answer(self, type_url: str):
        client = DeltaClient()
        client.serve(any_resource(type_url, "a"), any_resource(type_url, "b"))
        (a,) = client.ask(type_url, "a")
        (b,) = client.ask(type_url, "b")
        client.ack(b)
        client.nack(a, "a is wrong")
        (status,) = client.session.status(client.now).types
        assert (status.state, status.refused, status.reason) == ("NACK", ("a",), "a is wrong")

    @each_type
    def test_asking_again_for_what_was_refused_is_answered(self, type_url: str):
        client = DeltaClient()
        client.serve(any_resource(type_url, "a"))
        (response,) = client.ask(type_url, "a")
        for _ in range(10):
            client.nack(response)
            (response,) = client.ask(type_url, "a")
            assert names_of(response) == ["a"]
        # And costs no memory.
        (substream,) = client.session._substreams
        assert len(substream._holds._groups) <= 1


class TestSize:
    def test_many_resources_go_in_several_responses(self):
        client = DeltaClient()
        content = "x" * (MAX_RESPONSE_BYTES // 3 + 1)
        client.serve(*(other(POLICY, name, content) for name in "abcde"))
        responses = client.ask(POLICY, "*")
        assert [names_of(response) for response in responses] == [["a", "b"], ["c", "d"], ["e"]]
        assert all(client.ack(response) == [] for response in responses)

    def test_one_that_is_larger_than_the_bound_goes_alone(self):
        client = DeltaClient()
        client.serve(other(POLICY, "big", "x" * (MAX_RESPONSE_BYTES + 1)), other(POLICY, "small"))
        assert [names_of(response) for response in client.ask(POLICY, "*")] == [["big"], ["small"]]


class TestRefusals:
    def test_a_type_is_required(self):
        with pytest.raises(ProtocolError, match="type_url"):
            DeltaClient().ask("")

    def test_types_are_bounded(self):
        client = DeltaClient(limits=Limits(types=2))
        client.ask(CLUSTER)
        client.ask(ENDPOINT, "a")
        with pytest.raises(LimitExceededError, match="more than 2 resource types"):
            client.ask(LISTENER)

    def test_names_and_claims_are_bounded(self):
        with pytest.raises(LimitExceededError):
            DeltaClient(limits=Limits(names=1)).ask(ENDPOINT, "a", "b")
        with pytest.raises(LimitExceededError, match="initial_resource_versions"):
            DeltaClient(limits=Limits(names=1)).ask(CLUSTER, have={"a": "1", "b": "1"})

    def test_an_unknown_type_is_called_absent_and_bothers_nobody(self):
        client = DeltaClient()
        client.serve(cluster("c"))
        (missing,) = client.ask("type.googleapis.com/no.such.Type", "a")
        assert list(missing.removed_resources) == ["a"]
        assert types_of(client.ask(CLUSTER)) == [CLUSTER]


def test_nonces_are_unique_on_the_stream():
    client = DeltaClient()
    client.serve(*(any_resource(type_url, "a") for type_url in TYPES))
    responses = [response for type_url in TYPES for response in client.ask(type_url, "a")]
    assert len({response.nonce for response in responses}) == len(TYPES)
