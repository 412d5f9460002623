"""The stand-ins for the control plane: what serves Envoy its resources, and what takes its access log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE, Resource

# Make before break: clusters and their endpoints before the routes that name them.
_ORDER = (CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE)


class Ads(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    """The least of a delta ADS server: every type whole at its first request, then what changed."""

    def __init__(self) -> None:
        self.resources: dict[tuple[str, str], Resource] = {}
        self.nacks: list[str] = []
        self._streams: set[asyncio.Queue[tuple[str, list[Resource], list[str]]]] = set()
        self._asked: dict[int, set[str]] = {}

    async def DeltaAggregatedResources(  # noqa: N802
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        queue: asyncio.Queue[tuple[str, list[Resource], list[str]]] = asyncio.Queue()
        self._streams.add(queue)
        asked = self._asked[id(queue)] = set()

        async def read() -> None:
            async for request in requests:
                if request.HasField("error_detail"):
                    self.nacks.append(f"{request.type_url}: {request.error_detail.message}")
                first = request.type_url not in asked
                asked.add(request.type_url)
                if first or request.resource_names_subscribe:
                    whole = [found for (kind, _), found in self.resources.items() if kind == request.type_url]
                    queue.put_nowait((request.type_url, whole, []))

        reader = asyncio.create_task(read())
        try:
            nonce = 0
            while True:
                type_url, changed, gone = await queue.get()
                nonce += 1
                answer = discovery_pb2.DeltaDiscoveryResponse(
                    type_url=type_url, nonce=str(nonce), removed_resources=gone, system_version_info=str(nonce)
                )
                for resource in changed:
                    entry = answer.resources.add(name=resource.name, version=resource.version)
                    entry.resource.type_url = resource.type_url
                    entry.resource.value = resource.body
                yield answer
        finally:
            reader.cancel()
            self._streams.discard(queue)
            self._asked.pop(id(queue), None)

    async def set(self, resources: Iterable[Resource]) -> None:
        """Serve these from now on; push what changed."""
        new = {(found.type_url, found.name): found for found in resources}
        old, self.resources = self.resources, new
        recluster = any(new.get(key) != old.get(key) for key in new if key[0] == CLUSTER)
        for queue in self._streams:
            for type_url in _ORDER:
                if type_url not in self._asked[id(queue)]:
                    continue
                # A changed cluster stays warming until its endpoints come again.
                again = type_url == ENDPOINT and recluster
                changed = [r for key, r in new.items() if key[0] == type_url and (again or old.get(key) != r)]
                gone = [name for kind, name in old if kind == type_url and (kind, name) not in new]
                if changed or gone:
                    queue.put_nowait((type_url, changed, gone))


class AccessLog(als_pb2_grpc.AccessLogServiceServicer):
    """Collects the entries that Envoy sends."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    async def StreamAccessLogs(self, requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: N802
        async for message in requests:
            self.entries.extend(message.http_logs.log_entry)
        return als_pb2.StreamAccessLogsResponse()
