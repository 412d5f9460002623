"""A real Envoy that gets everything from our ADS server, in either protocol variant; workers that answer their name."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from xds_server.metrics import Recorder
from xds_server.resource import Resource
from xds_server.server import Settings, XdsServer
from xds_server.snapshot import Snapshot
from xds_server.status import SyncState, TypeStatus

# Bounds against hanging, far above what anything takes.
PATIENCE_S = 20.0
ACK_TIMEOUT_S = 1.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def eventually(check: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until `check` holds."""
    try:
        async with asyncio.timeout(patience_s):
            while not check():  # noqa: ASYNC110 - there is nothing to wait on
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"still not: {what}") from None


class Worker:
    """Answers every request with its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = self.name.encode()
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def workers(*names: str) -> AsyncIterator[list[Worker]]:
    found = [Worker(name) for name in names]
    async with contextlib.AsyncExitStack() as stack:
        for worker in found:
            server = await asyncio.start_server(worker.serve, "127.0.0.1", 0)
            worker.port = server.sockets[0].getsockname()[1]
            stack.callback(server.close)
        yield found


class Rig:
    """The server, and the Envoy that follows it."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.folder = folder
        self.mode = mode
        self.port = free_port()  # where Envoy listens for requests
        self.xds_port = free_port()
        self.admin = 0
        self.served: tuple[Resource, ...] = ()

    # --- the control plane ---

    async def start_server(self) -> None:
        self.registry = CollectorRegistry()
        self.server = XdsServer(Settings(ack_timeout_s=ACK_TIMEOUT_S), Recorder(self.registry))
        await self.server.listen("127.0.0.1", self.xds_port)

    def serve(self, *resources: Resource) -> None:
        self.served = resources
        self.server.publish(Snapshot(resources))

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"recursant_xds_{name}_total", labels) or 0.0

    def status(self, type_url: str) -> TypeStatus | None:
        for client in self.server.clients():
            for status in client.types:
                if status.type_url == type_url:
                    return status
        return None

    def state(self, type_url: str) -> SyncState | None:
        status = self.status(type_url)
        return None if status is None else status.state

    async def synced(self, *type_urls: str) -> None:
        """Wait until Envoy has accepted everything of these types."""
        for type_url in type_urls:
            await eventually(
                lambda kind=type_url: self.state(kind) is SyncState.SYNCED,  # type: ignore[misc]
                f"{type_url} synced",
            )

    # --- Envoy ---

    async def stat(self, name: str) -> int:
        text = await self._get(self.admin, f"/stats?filter=^{name.replace('.', '%5C.')}$")
        found = text[1].strip().rpartition(": ")[2]
        return int(found) if found else 0

    async def stat_is(self, name: str, value: int, patience_s: float = PATIENCE_S) -> None:
        """Wait until a statistic of Envoy has this value."""
        seen = -1
        try:
            async with asyncio.timeout(patience_s):
                while (seen := await self.stat(name)) != value:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{name} is {seen}, not {value}") from None

    async def get(self, path: str) -> tuple[int, str]:
        """A request through Envoy: status and body; status 0 where it does not listen."""
        return await self._get(self.port, path)

    async def answers(self, path: str, body: str) -> None:
        """Wait until Envoy gives this answer."""
        seen: Any = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (seen := await self.get(path)) != (200, body):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{path} gives {seen}, not {body}") from None

    async def _get(self, port: int, path: str) -> tuple[int, str]:
        def read() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()
            except OSError as error:
                return 0, str(error)

        return await asyncio.to_thread(read)

    def bootstrap(self) -> dict[str, Any]:
        ads: dict[str, Any] = {"ads": {}, "resource_api_version": "V3"}
        return {
            "node": {"id": "envoy-under-test", "cluster": "test"},
            "admin": {"address": _address(0)},
            "dynamic_resources": {
                "ads_config": {
                    "api_type": self.mode,
                    "transport_api_version": "V3",
                    "set_node_on_first_message_only": True,
                    "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}],
                },
                "cds_config": ads,
                "lds_config": ads,
            },
            "static_resources": {
                "clusters": [
                    {
                        "name": "xds",
                        "type": "STATIC",
                        "connect_timeout": "1s",
                        "typed_extension_protocol_options": {
                            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                                "explicit_http_config": {"http2_protocol_options": {}},
                            }
                        },
                        "load_assignment": {
                            "cluster_name": "xds",
                            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(self.xds_port)}}]}],
                        },
                    }
                ]
            },
        }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


@contextlib.asynccontextmanager
async def running(folder: Path, mode: str) -> AsyncIterator[Rig]:
    """A server, and an Envoy that has found its admin port. Nothing is served yet."""
    rig = Rig(folder, mode)
    await rig.start_server()
    config, admin_file = folder / "envoy.json", folder / "admin"
    config.write_text(json.dumps(rig.bootstrap()))
    binary = shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")
    assert binary is not None, "the envoy executable is missing"
    with (folder / "envoy.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            binary,
            *("-c", str(config), "--admin-address-path", str(admin_file), "--concurrency", "1"),
            *("--disable-hot-restart", "--log-level", os.environ.get("ENVOY_LOG_LEVEL", "warning")),
            stdout=log,
            stderr=log,
        )
    try:
        await eventually(lambda: admin_file.exists() and admin_file.read_text().strip(), "Envoy's admin port")
        rig.admin = int(admin_file.read_text().rpartition(":")[2])
        yield rig
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await rig.server.stop(0)
