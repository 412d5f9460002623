"""Incremental xDS: `DeltaAggregatedResources`."""

from collections.abc import Iterable, Sequence
from typing import Final

from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from xds_server.problems import LimitExceededError
from xds_server.resource import Resource
from xds_server.session import Session
from xds_server.snapshot import Snapshot
from xds_server.substream import Substream
from xds_server.told import Phase

# gRPC clients refuse messages above 4 MiB unless told otherwise; many resources go in several responses.
MAX_RESPONSE_BYTES: Final = 1024 * 1024


class DeltaSession(Session[DeltaDiscoveryRequest, DeltaDiscoveryResponse]):
    """Requests and responses bring differences; every resource has its own version, every nonce its own answer."""

    protocol = "delta"

    def receive(self, request: DeltaDiscoveryRequest, now: float) -> None:
        """See `Session.receive`."""
        substream = self._meet(request.node.id, request.type_url, now)
        if len(request.initial_resource_versions) > self._limits.names:
            raise LimitExceededError(
                f"{len(request.initial_resource_versions)} initial_resource_versions, allowed are {self._limits.names}"
            )
        if substream.unanswered.get(request.response_nonce) is not None:
            if request.HasField("error_detail"):
                self._reject(substream, request.response_nonce, request.error_detail.message)
            else:
                substream.accept(request.response_nonce)
        # Subscriptions count even where the nonce is stale: nothing repeats them.
        first = not substream.started
        change = substream.subscription.update(request.resource_names_subscribe, request.resource_names_unsubscribe)
        substream.apply(change, request.initial_resource_versions if first else None)

    def _whole(self, type_url: str) -> bool:
        return False

    def _respond(
        self, substream: Substream, snapshot: Snapshot, phase: Phase, now: float
    ) -> DeltaDiscoveryResponse | None:
        due = substream.due(snapshot, phase)
        if due.upserts or due.absent:
            return self._response(substream, _within_bound(due.upserts), due.absent, now)
        # One by one, so that the wrong one among them takes no other along.
        retry = substream.take_retry(snapshot)
        if retry is not None:
            return self._response(substream, [retry], (), now)
        return self._response(substream, (), (), now) if substream.greeting else None

    def _response(
        self, substream: Substream, resources: Iterable[Resource], absent: Sequence[str], now: float
    ) -> DeltaDiscoveryResponse:
        resources = list(resources)
        nonce, version = self._record(substream, resources, absent, now)
        response = DeltaDiscoveryResponse(type_url=substream.type_url, nonce=nonce, system_version_info=version)
        for resource in resources:
            entry = response.resources.add(name=resource.name, version=resource.version)
            entry.resource.type_url, entry.resource.value = resource.type_url, resource.body
        response.removed_resources.extend(absent)
        return response


def _within_bound(resources: Iterable[Resource]) -> list[Resource]:
    """As many as fit into one response, at least one. The others stay due."""
    taken: list[Resource] = []
    size = 0
    for resource in resources:
        size += len(resource.body)
        if taken and size > MAX_RESPONSE_BYTES:
            break
        taken.append(resource)
    return taken
