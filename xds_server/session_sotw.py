"""State of the world: `StreamAggregatedResources`."""

from collections.abc import Iterable

from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest, DiscoveryResponse

from xds_server.resource import Resource
from xds_server.session import Session
from xds_server.snapshot import Snapshot, fingerprint
from xds_server.substream import Substream
from xds_server.told import Due, Phase
from xds_server.traits import traits_of


class SotwSession(Session[DiscoveryRequest, DiscoveryResponse]):
    """Every request brings the whole list of names; one version speaks for all resources of a type."""

    protocol = "sotw"

    def receive(self, request: DiscoveryRequest, now: float) -> None:
        """See `Session.receive`."""
        substream = self._meet(request.node.id, request.type_url, now)
        first = not substream.started
        if not first:
            self._answer(substream, request)
            # Older than our last response: the client's next request, which answers that one, has the names as well.
            if request.response_nonce != substream.nonce:
                substream.apply(substream.subscription.narrow(request.resource_names))
                return
        change = substream.subscription.replace(request.resource_names)
        held: dict[str, str] = {}
        # A version from an earlier stream spares nothing: it is the last one accepted, and part of a later one that
        # was refused may have been applied. It only tells that the client has some content of these names: enough
        # to empty those that have gone meanwhile.
        if first and request.version_info and substream.traits.blank is not None:
            held = dict.fromkeys(request.resource_names, request.version_info)
        substream.apply(change, held)

    def _answer(self, substream: Substream, request: DiscoveryRequest) -> None:
        nonce = request.response_nonce
        push = substream.unanswered.get(nonce)
        if push is None:
            return
        # One answer covers all responses before it.
        for older in substream.unanswered.before(nonce):
            substream.accept(older)
        # Envoy may send the error of an earlier version along with the version that it has accepted since.
        if request.HasField("error_detail") and request.version_info != push.version:
            self._reject(substream, nonce, request.error_detail.message)
        else:
            substream.accept(nonce)

    def _whole(self, type_url: str) -> bool:
        return traits_of(type_url).whole_state

    def _respond(self, substream: Substream, snapshot: Snapshot, phase: Phase, now: float) -> DiscoveryResponse | None:
        due = substream.due(snapshot, phase)
        if substream.retry_together():
            due = substream.due(snapshot, phase)
        if substream.whole:
            return self._respond_whole(substream, snapshot, due, now)
        # There is no way to say that one of these is gone.
        substream.mark_absent(due.absent)
        if not due.upserts:
            return None
        nonce, version = self._record(substream, due.upserts, (), now)
        return _response(substream.type_url, nonce, version, due.upserts)

    def _respond_whole(
        self, substream: Substream, snapshot: Snapshot, due: Due, now: float
    ) -> DiscoveryResponse | None:
        news = due.upserts or due.absent or substream.greeting
        if not (news or substream.refusal):
            return None
        wanted = snapshot.of_type(substream.type_url)
        resources = [resource for name, resource in wanted.items() if substream.subscription.wants(name)]
        # What is to go later must be listed until then.
        kept = {name: substream.told[name].kept for name in due.leaving}
        resources += [resource for resource in kept.values() if resource is not None]
        resources.sort(key=lambda resource: resource.name)
        absent = [*due.absent, *(name for name, resource in kept.items() if resource is None)]
        version = fingerprint((resource.name, resource.version) for resource in resources)
        # A refused world is held, but one without the bad resource is another.
        if not (news or version != substream.refusal):
            return None
        nonce, version = self._record(substream, resources, absent, now, version)
        return _response(substream.type_url, nonce, version, resources)


def _response(type_url: str, nonce: str, version: str, resources: Iterable[Resource]) -> DiscoveryResponse:
    response = DiscoveryResponse(type_url=type_url, nonce=nonce, version_info=version)
    for resource in resources:
        response.resources.add(type_url=resource.type_url, value=resource.body)
    return response
