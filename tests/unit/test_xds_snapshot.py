"""Snapshots: equal content has equal versions, and what does not fit together is refused with its names."""

import pytest
from xds_kit import POLICY, assignment, cluster, listener, other, routes, snapshot, static_cluster

from xds_server.problems import InconsistentSnapshotError
from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE, Resource
from xds_server.snapshot import Snapshot, TypeDiff, fingerprint

WHOLE = (
    cluster("c"),
    assignment("c", 1),
    listener("l", "r", extension="e"),
    other(EXTENSION_CONFIG, "e"),
    routes("r", "c"),
    other(POLICY, "chat"),
)


def without(*names: str) -> list[Resource]:
    return [resource for resource in WHOLE if resource.name not in names]


def test_versions_follow_content_only():
    assert snapshot(*WHOLE).version(CLUSTER) == snapshot(*reversed(WHOLE)).version(CLUSTER)
    assert snapshot(cluster("a"), cluster("b")).version(CLUSTER) == snapshot(cluster("b"), cluster("a")).version(
        CLUSTER
    )
    versions = {
        snapshot().version(CLUSTER),
        snapshot(cluster("a")).version(CLUSTER),
        snapshot(cluster("a", 2)).version(CLUSTER),
        snapshot(cluster("b")).version(CLUSTER),
        snapshot(cluster("a"), cluster("b")).version(CLUSTER),
    }
    assert len(versions) == 5


def test_fingerprint_keeps_names_and_versions_apart():
    assert fingerprint([("ab", "c")]) != fingerprint([("a", "bc")])
    assert fingerprint([("a", "1"), ("b", "2")]) != fingerprint([("a", "2"), ("b", "1")])


def test_reads():
    served = snapshot(*WHOLE)
    assert served.types == {CLUSTER, ENDPOINT, LISTENER, EXTENSION_CONFIG, ROUTE, POLICY}
    assert list(served.of_type(CLUSTER)) == ["c"]
    assert served.get(CLUSTER, "c") == cluster("c")
    assert served.get(CLUSTER, "x") is None
    assert served.of_type("no.such.type") == {}


def test_the_eds_name_of_a_cluster():
    served = snapshot(cluster("plain"), cluster("named", service_name="elsewhere"), static_cluster("static"))
    assert served.endpoints_of("plain") == "plain"
    assert served.endpoints_of("named") == "elsewhere"
    assert served.endpoints_of("static") is None
    assert served.endpoints_of("missing") is None


def test_diff_names_only_what_differs():
    before = snapshot(cluster("same"), cluster("changes"), cluster("goes"), assignment("same", 1))
    after = snapshot(cluster("same"), cluster("changes", 2), cluster("comes"), assignment("same", 1))
    assert after.diff(before) == {CLUSTER: TypeDiff(added=("comes",), changed=("changes",), removed=("goes",))}
    assert after.diff(after) == {}


def test_a_whole_snapshot_is_consistent():
    snapshot(*WHOLE).check()


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        ([cluster("c")], "Cluster 'c' names ClusterLoadAssignment 'c', which does not exist"),
        ([assignment("c", 1)], "ClusterLoadAssignment 'c' belongs to no cluster"),
        ([static_cluster("c"), assignment("c", 1)], "ClusterLoadAssignment 'c' belongs to no cluster"),
        (without("r"), "Listener 'l' names RouteConfiguration 'r', which does not exist"),
        (without("e"), "Listener 'l' names TypedExtensionConfig 'e', which does not exist"),
        (without("c"), "RouteConfiguration 'r' names Cluster 'c', which does not exist"),
    ],
    ids=["no assignment", "no cluster", "not an EDS cluster", "no routes", "no extension", "no target"],
)
def test_what_is_named_must_exist(resources: list[Resource], problem: str):
    with pytest.raises(InconsistentSnapshotError) as caught:
        snapshot(*resources).check()
    assert caught.value.problems == (problem,)


def test_all_problems_are_told_at_once():
    with pytest.raises(InconsistentSnapshotError) as caught:
        snapshot(routes("r", "x", "y")).check()
    assert len(caught.value.problems) == 2


def test_clusters_of_the_bootstrap_exist():
    snapshot(routes("r", "xds")).check(static_clusters=["xds"])
    with pytest.raises(InconsistentSnapshotError):
        snapshot(routes("r", "xds")).check()


def test_weighted_and_mirrored_clusters_count():
    from envoy.config.route.v3.route_pb2 import RouteConfiguration

    message = RouteConfiguration(name="r")
    route = message.virtual_hosts.add(name="all", domains=["*"]).routes.add()
    route.route.weighted_clusters.clusters.add(name="weighted")
    route.route.request_mirror_policies.add(cluster="mirror")
    with pytest.raises(InconsistentSnapshotError) as caught:
        snapshot(Resource.of(ROUTE, "r", message.SerializeToString())).check()
    assert {problem.split("'")[3] for problem in caught.value.problems} == {"weighted", "mirror"}


def test_a_name_exists_once():
    with pytest.raises(InconsistentSnapshotError, match="Cluster 'c' exists twice"):
        snapshot(cluster("c"), cluster("c", 2))
    # Types have names of their own.
    snapshot(cluster("c"), assignment("c", 1))


@pytest.mark.parametrize("type_url", [CLUSTER, LISTENER, ROUTE])
def test_what_cannot_be_parsed_is_refused(type_url: str):
    with pytest.raises(InconsistentSnapshotError, match="'bad' cannot be parsed"):
        snapshot(Resource.of(type_url, "bad", b"\xff\xff"))


def test_references_are_read_again_where_content_changed():
    before = snapshot(*WHOLE)
    after = Snapshot([*without("r"), routes("r", "x")], previous=before)
    with pytest.raises(InconsistentSnapshotError, match="'x'"):
        after.check()
    Snapshot(WHOLE, previous=after).check()
