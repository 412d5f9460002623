"""Keeps what is served in step with the fleet: records in, debounced snapshots out."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from recursant import names
from recursant.agents.policy import AgentPolicy
from recursant.config.live import GatewayRules
from recursant.config.model import Config
from recursant.fleet.worker import WorkerRecord
from xds_server.debounce import Debounce
from xds_server.metrics import Recorder
from xds_server.policies import policy_resources, rules_resource
from xds_server.projection import Projection, Rebuild
from xds_server.rebuild_log import RebuildLog
from xds_server.resource import ENDPOINT, Resource
from xds_server.resources.build import build, build_endpoints
from xds_server.snapshot import Snapshot, TypeDiff
from xds_server.traits import traits_of

# What every Envoy has from its bootstrap.
_STATIC_CLUSTERS: Final = (names.XDS_CLUSTER,)

_log = logging.getLogger(__name__)


class Publisher:
    """Builds a snapshot whenever the fleet changed in a way that Envoy must know of.

    Args:
        config: what the resources are built from, with the fleet.
        publish: takes each new snapshot.
        recorder: counts.
    """

    def __init__(self, config: Config, publish: Callable[[Snapshot], None], recorder: Recorder) -> None:
        self._config = config
        self._publish = publish
        self._recorder = recorder
        self._debounce = Debounce(config.xds.debounce_ms / 1000)
        self._needed = Rebuild.NOTHING
        self._wake = asyncio.Event()
        self._resources: list[Resource] = []
        self._snapshot = Snapshot()
        self._rebuild_log = RebuildLog()
        self.fleet = Projection()

    @property
    def failing(self) -> bool:
        """Whether what is served is older than what was to be: the last snapshot could not be built."""
        return self._rebuild_log.failing

    def observe(self, record: WorkerRecord) -> None:
        """For `FleetDirectory.subscribe`."""
        self._need(self.fleet.observe(record))

    def remove(self, worker_id: str) -> None:
        """For `FleetDirectory.subscribe`."""
        self._need(self.fleet.remove(worker_id))

    def set_config(self, config: Config) -> None:
        """Serve from another configuration. What of it Envoy does not see changes nothing for Envoy."""
        self._config = config
        self._need(Rebuild.EVERYTHING)

    def set_agents(self, policies: Sequence[AgentPolicy]) -> None:
        """Serve these policies, and routes for their agents."""
        self.set_config(self._config.model_copy(update={"agents": tuple(policies)}))

    async def run(self) -> None:
        """Publish the fleet as it is now and at every change, until cancelled.

        To be called when the fleet is known: an Envoy that already serves must not be told of an empty one.
        """
        self._need(Rebuild.EVERYTHING)
        while True:
            due = self._debounce.due_at
            now = time.monotonic()
            if due is not None and now >= due:
                self._debounce.pushed(now)
                self._rebuild()
                continue
            self._wake.clear()
            # Not wait_for(): before Python 3.12 it loses a cancellation that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else due - now):
                    await self._wake.wait()

    def _need(self, rebuild: Rebuild) -> None:
        if rebuild is Rebuild.NOTHING:
            return
        self._needed = max(self._needed, rebuild)
        self._debounce.changed(time.monotonic())
        self._wake.set()

    def _rebuild(self) -> None:
        started = time.perf_counter()
        try:
            resources = self._build()
            snapshot = Snapshot(resources, previous=self._snapshot)
            snapshot.check(_STATIC_CLUSTERS)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the new one, the last good one serves on
            self._recorder.snapshot_failed()
            self._rebuild_log.failed(error)
            # What was needed still is: the next change tries again.
            return
        self._rebuild_log.built()
        self._needed = Rebuild.NOTHING
        self._resources = resources
        if changes := snapshot.diff(self._snapshot):
            self._snapshot = snapshot
            self._publish(snapshot)
            _log.info("publishing %s", "; ".join(_say(type_url, diff) for type_url, diff in changes.items()))
        self._recorder.snapshot_built(time.perf_counter() - started)

    def _build(self) -> list[Resource]:
        workers = self.fleet.workers()
        if self._needed is Rebuild.EVERYTHING:
            rules = rules_resource(GatewayRules.of(self._config))
            return [*build(self._config, workers), *policy_resources(self._config.agents), rules]
        others = [resource for resource in self._resources if resource.type_url != ENDPOINT]
        return [*others, build_endpoints(workers)]


def _say(type_url: str, diff: TypeDiff) -> str:
    parts = [("+", diff.added), ("~", diff.changed), ("-", diff.removed)]
    counts = " ".join(f"{sign}{len(found)}" for sign, found in parts if found)
    return f"{traits_of(type_url).label} {counts}"
