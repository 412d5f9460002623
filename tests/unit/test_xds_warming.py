"""A client that warms clusters as Envoy 1.40 does: its routes name only clusters that serve, and none warms for ever.

What the model does was seen on Envoy: a changed cluster serves in its old form until its assignment comes again, the
ACK of clusters is withheld while one warms, and a new cluster asks for its endpoints.
"""

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from xds_kit import assignment, cluster, listener, routes
from xds_model import BY_CONTENT, DeltaModel, ModelClient, SotwModel

from xds_server.resource import CLUSTER, ENDPOINT, LISTENER, ROUTE, Resource
from xds_server.snapshot import Snapshot

NAMES = ("a", "b", "c")
REVISIONS = (1, 2)
# The same runs each time: a suite must not fail by chance.
SETTINGS = settings(max_examples=100, stateful_step_count=50, deadline=None, derandomize=True)

CLUSTERS = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(REVISIONS), min_size=1)


@dataclass
class Warming:
    """One cluster: what serves, and what waits for endpoints."""

    active: str = ""
    waiting: str = ""


def world(clusters: dict[str, int], port: int) -> Snapshot:
    """Routes to each of these clusters, and all that belongs to them."""
    found: list[Resource] = [listener("l", "r"), routes("r", *sorted(clusters))]
    for name, revision in clusters.items():
        found += [cluster(name, revision), assignment(name, port)]
    snapshot = Snapshot(found)
    snapshot.check()
    for resource in found:
        BY_CONTENT[resource.type_url, resource.body] = resource
    return snapshot


class EnvoyLike(ModelClient):
    """Overrides what a plain model does with clusters and endpoints."""

    def __init__(self) -> None:
        self.clusters: dict[str, Warming] = {}
        self.withheld: list[Any] = []
        self.refuses_routes = False
        super().__init__(atomic=False)

    def take(self, type_url: str, resources: Any, removed: Any) -> bool:
        if type_url == ROUTE and self.refuses_routes:
            return False
        good = super().take(type_url, resources, removed)
        if type_url == CLUSTER:
            self._take_clusters(resources, removed)
        elif type_url == ENDPOINT:
            for name in resources:
                state = self.clusters.get(name)
                if state is not None and state.waiting:
                    state.active, state.waiting = state.waiting, ""
        return good

    def _take_clusters(self, resources: Any, removed: Any) -> None:
        for name in removed:
            if self.clusters.pop(name, None) is not None:
                self.unsubscribe(ENDPOINT, name)
        for name, resource in resources.items():
            if name not in self.clusters:
                self.clusters[name] = Warming(waiting=resource.version)
                self.subscribe(ENDPOINT, name)
            elif resource.version != (self.clusters[name].waiting or self.clusters[name].active):
                self.clusters[name].waiting = resource.version

    @property
    def warm(self) -> bool:
        return all(not state.waiting for state in self.clusters.values())

    def client_reads(self) -> bool:
        read = super().client_reads()
        if self.warm:
            self.to_server.extend(self.withheld)
            self.withheld.clear()
            # Envoy opens its listeners only after its first clusters are warm.
            if self.clusters:
                self.start(LISTENER)
                if ROUTE not in self.started:
                    self.subscribe(ROUTE, "r")
        return read

    def routed(self) -> list[str]:
        """The clusters that the accepted routes name."""
        table = self.held[ROUTE].get("r")
        if table is None:
            return []
        message = RouteConfiguration.FromString(table.body)
        return [route.route.cluster for route in message.virtual_hosts[0].routes]


class DeltaEnvoy(EnvoyLike, DeltaModel):
    def hear(self, response: Any) -> None:
        super().hear(response)
        if response.type_url == CLUSTER and not self.warm:
            # The answer is the last thing that was queued unless endpoints were asked for meanwhile.
            for answer in [each for each in self.to_server if each.response_nonce == response.nonce]:
                self.to_server.remove(answer)
                self.withheld.append(answer)


class SotwEnvoy(EnvoyLike, SotwModel):
    def hear(self, response: Any) -> None:
        super().hear(response)
        if response.type_url == CLUSTER and not self.warm:
            answer = self.to_server.pop()
            assert answer.response_nonce == response.nonce
            # Only the newest answer is ever sent.
            self.withheld = [answer]


class Gateways(RuleBasedStateMachine):
    model: type[EnvoyLike]

    @initialize(clusters=CLUSTERS, port=st.sampled_from((1, 2)))
    def begin(self, clusters: dict[str, int], port: int) -> None:
        self.client = self.model()
        self.client.offer(world(clusters, port))
        self.client.start(CLUSTER)

    @rule(clusters=CLUSTERS, port=st.sampled_from((1, 2)))
    def publish(self, clusters: dict[str, int], port: int) -> None:
        self.client.offer(world(clusters, port))

    @rule()
    def server_reads(self) -> None:
        self.client.server_reads()

    @rule(times=st.integers(1, 4))
    def server_writes(self, times: int) -> None:
        for _ in range(times):
            self.client.server_writes()

    @rule()
    def client_reads(self) -> None:
        self.client.client_reads()

    @rule(refuses=st.booleans())
    def refuse_routes(self, refuses: bool) -> None:
        self.client.refuses_routes = refuses

    @rule()
    def settle(self) -> None:
        self.client.settle()
        # As long as routes are refused nothing is taken away: a cluster that left the world before it had its
        # endpoints stays, and waits.
        refused = any(status.refused for status in self.client.session.status(0.0).types)
        assert self.client.warm or refused

    @invariant()
    def routes_name_clusters_that_serve(self) -> None:
        if hasattr(self, "client"):
            for name in self.client.routed():
                assert self.client.clusters[name].active, f"routes name {name}, which cannot serve"

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        self.client.refuses_routes = False
        self.client.offer(world({"a": 1}, 3))
        self.client.settle()
        self.client.offer(world({"b": 1}, 3))
        self.client.settle()
        assert self.client.warm
        assert self.client.clusters.keys() == {"b"}
        assert self.client.routed() == ["b"]


class DeltaGateways(Gateways):
    model = DeltaEnvoy


class SotwGateways(Gateways):
    model = SotwEnvoy


TestDelta = DeltaGateways.TestCase
TestDelta.settings = SETTINGS
TestSotw = SotwGateways.TestCase
TestSotw.settings = SETTINGS
