"""Whatever happens in whatever order, a client ends up with what is served to it, and then both are silent."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from xds_kit import any_resource
from xds_model import BAD, EMPTY, NAMES, REVISIONS, WILDCARDS, DeltaModel, ModelClient, SotwModel

from xds_server.resource import ENDPOINT
from xds_server.snapshot import Snapshot

KEYS = [(type_url, name) for type_url, names in NAMES.items() for name in names]
NAMED = [(type_url, name) for type_url, name in KEYS if type_url not in WILDCARDS]
# No resource, or one of the revisions.
WORLDS = st.fixed_dictionaries({key: st.sampled_from([None, *REVISIONS]) for key in KEYS})
GOOD_WORLDS = st.fixed_dictionaries({key: st.sampled_from([None, *(set(REVISIONS) - {BAD})]) for key in KEYS})
# The same runs each time: a suite must not fail by chance.
SETTINGS = settings(max_examples=150, stateful_step_count=50, deadline=None, derandomize=True)


def snapshot_of(world: dict[tuple[str, str], int | None]) -> Snapshot:
    return Snapshot(any_resource(*key, revision) for key, revision in world.items() if revision is not None)


class Convergence(RuleBasedStateMachine):
    """The rules are what can happen; every run ends with a good world."""

    model: type[ModelClient]

    @initialize(atomic=st.booleans(), world=WORLDS)
    def begin(self, atomic: bool, world: Any) -> None:
        self.world = world
        self.client = self.model(atomic=atomic)
        self.client.offer(snapshot_of(world))

    @rule(world=WORLDS)
    def publish(self, world: Any) -> None:
        self.world = world
        self.client.offer(snapshot_of(world))

    @rule(key=st.sampled_from(KEYS), revision=st.sampled_from([None, *REVISIONS]))
    def publish_one_change(self, key: tuple[str, str], revision: int | None) -> None:
        self.publish({**self.world, key: revision})

    @rule(type_url=st.sampled_from(WILDCARDS))
    def ask_for_everything(self, type_url: str) -> None:
        self.client.start(type_url)

    @rule(key=st.sampled_from(NAMED))
    def subscribe(self, key: tuple[str, str]) -> None:
        self.client.subscribe(*key)

    @rule(key=st.sampled_from(NAMED))
    def unsubscribe(self, key: tuple[str, str]) -> None:
        self.client.unsubscribe(*key)

    @rule(times=st.integers(1, 4))
    def server_reads(self, times: int) -> None:
        for _ in range(times):
            self.client.server_reads()

    @rule(times=st.integers(1, 4))
    def server_writes(self, times: int) -> None:
        for _ in range(times):
            self.client.server_writes()

    @rule(times=st.integers(1, 4))
    def client_reads(self, times: int) -> None:
        for _ in range(times):
            self.client.client_reads()

    @precondition(lambda self: self.client.started)
    @rule(forgetful=st.booleans())
    def reconnect(self, forgetful: bool) -> None:
        self.client.reconnect(forgetful=forgetful)

    @rule()
    def settle(self) -> None:
        self.client.settle()

    @rule(world=GOOD_WORLDS)
    def converge(self, world: Any) -> None:
        client = self.client
        client.offer(snapshot_of(world))
        client.settle()
        for type_url in client.started:
            held = dict(client.held[type_url])
            expected = client.expected(type_url)
            if type_url == ENDPOINT:
                # What is gone from the world is empty at the client, if it had any.
                held = {name: resource for name, resource in held.items() if resource != EMPTY[name]}
            elif isinstance(client, SotwModel) and type_url not in WILDCARDS:
                # State of the world cannot take these away.
                held = {name: resource for name, resource in held.items() if name in expected}
            assert held == expected
        # And the same again is no news.
        client.offer(snapshot_of(world))
        assert not client.server_writes()
        self.world = world

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.converge(dict.fromkeys(KEYS, 1) | dict.fromkeys(KEYS[::2], 2))


class DeltaConvergence(Convergence):
    model = DeltaModel


class SotwConvergence(Convergence):
    model = SotwModel


TestDelta = DeltaConvergence.TestCase
TestDelta.settings = SETTINGS
TestSotw = SotwConvergence.TestCase
TestSotw.settings = SETTINGS
