"""A real Envoy in front of a transport: static bootstrap, a scripted ext_proc session, a raw upstream and client."""

import asyncio
import contextlib
import json
import shutil
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from extproc.stream import Session, StreamError

# Bounds against hanging, far above what anything takes.
PATIENCE_S = 20.0
SCRIPT = "x-script"
# Set on every response that a session saw.
SEEN = "x-seen"


@dataclass
class Scripted(Session):
    """Does what the request's `x-script` header says: `go` (or nothing), `late SECONDS`, `refuse`, `body`, `bad`."""

    send: Callable[[bytes], None]
    phases: list[str] = field(default_factory=list)
    body_bytes: int = 0
    closed: int = 0

    def receive(self, message: bytes) -> bytes | None:
        request = ProcessingRequest.FromString(message)
        phase = request.WhichOneof("request")
        assert phase is not None
        self.phases.append(phase)
        response = ProcessingResponse()
        getattr(response, phase).SetInParent()
        if phase == "request_headers":
            return self._request_headers(request, response)
        if phase == "request_body":
            self.body_bytes = len(request.request_body.body)
        if phase == "response_headers":
            option = response.response_headers.response.header_mutation.set_headers.add()
            option.header.key = SEEN
            option.header.raw_value = b"%d" % self.body_bytes
        return response.SerializeToString()

    def _request_headers(self, request: ProcessingRequest, response: ProcessingResponse) -> bytes | None:
        headers = {header.key: header.raw_value for header in request.request_headers.headers.headers}
        verb, _, argument = headers.get(SCRIPT, b"go").decode().partition(" ")
        response.request_headers.response.SetInParent()
        match verb:
            case "go":
                pass
            case "late":
                # Ask for the time once; the answer itself comes later.
                asyncio.get_running_loop().call_later(float(argument), self.send, response.SerializeToString())
                extension = ProcessingResponse()
                extension.override_message_timeout.FromSeconds(30)
                return extension.SerializeToString()
            case "refuse":
                refusal = ProcessingResponse()
                refusal.immediate_response.status.code = 429
                refusal.immediate_response.body = b"x" * int(argument or 4)
                return refusal.SerializeToString()
            case "body":
                response.mode_override.request_body_mode = ProcessingMode.BUFFERED
                response.mode_override.response_header_mode = ProcessingMode.SEND
                response.mode_override.response_trailer_mode = ProcessingMode.SEND
            case _:
                raise StreamError(f"no script {verb}")
        return response.SerializeToString()

    def close(self) -> None:
        self.closed += 1


@dataclass
class ScriptedSessions:
    """A `SessionFactory` that remembers its sessions."""

    made: list[Scripted] = field(default_factory=list)

    def __call__(self, send: Callable[[bytes], None]) -> Scripted:
        session = Scripted(send)
        self.made.append(session)
        return session

    @property
    def open(self) -> int:
        """Sessions not closed yet."""
        return sum(not session.closed for session in self.made)

    async def all_closed(self) -> None:
        """Wait until every session is closed, and check that it happened once each."""
        await eventually(lambda: self.open == 0, "all sessions closed")
        assert {session.closed for session in self.made} <= {1}


async def eventually(check: Callable[[], Any], what: str, patience: float = PATIENCE_S) -> None:
    """Wait until `check` gives something true."""
    deadline = time.monotonic() + patience
    while not check():
        assert time.monotonic() < deadline, f"still not: {what}"
        await asyncio.sleep(0.01)


@dataclass
class Upstream:
    """HTTP/1.1: `/slow` streams one chunk and the rest when `release` is set; all else gives the body's length."""

    port: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                size = 0
                for line in head.splitlines():
                    if line.startswith("content-length:"):
                        size = int(line.split(":")[1])
                body = await reader.readexactly(size)
                if head.startswith("get /slow"):
                    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
                    await writer.drain()
                    await self.release.wait()
                    writer.write(b"4\r\nlast\r\n0\r\n\r\n")
                else:
                    text = b"%d" % len(body)
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
                await writer.drain()
        writer.close()


@dataclass(frozen=True)
class Reply:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One HTTP/1.1 request on a connection of its own."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.hang_up()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def send(self, path: str, script: str = "go", body: bytes = b"", *, promised: int | None = None) -> None:
        """Send a request; `promised` is a content-length other than the body's."""
        size = len(body) if promised is None else promised
        method = "POST" if size else "GET"
        head = f"{method} {path} HTTP/1.1\r\nhost: test\r\n{SCRIPT}: {script}\r\ncontent-length: {size}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def reply(self) -> Reply:
        """The whole response."""
        async with asyncio.timeout(PATIENCE_S):
            status, headers = await self.head()
            if headers.get("transfer-encoding") == "chunked":
                body = b"".join([chunk async for chunk in self._chunks()])
            else:
                body = await self._reader.readexactly(int(headers.get("content-length", "0")))
            return Reply(status, headers, body)

    async def head(self) -> tuple[int, dict[str, str]]:
        """The response's status and headers."""
        async with asyncio.timeout(PATIENCE_S):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in pairs}

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    async def rest(self) -> bytes:
        """The chunks after `head`."""
        async with asyncio.timeout(PATIENCE_S):
            return b"".join([chunk async for chunk in self._chunks()])

    def hang_up(self) -> None:
        """Close the connection."""
        self._writer.close()


async def fetch(port: int, path: str = "/", script: str = "go", body: bytes = b"") -> Reply:
    """One request and its response."""
    async with Client(port) as client:
        await client.send(path, script, body)
        return await client.reply()


@dataclass
class Envoy:
    """A running Envoy."""

    port: int
    admin: int
    process: asyncio.subprocess.Process

    async def stats(self, prefix: str) -> dict[str, int]:
        """Counters and gauges whose name begins so."""
        text = await asyncio.to_thread(_get, f"http://127.0.0.1:{self.admin}/stats?filter=^{prefix}")
        pairs = (line.split(": ") for line in text.splitlines())
        return {name: int(value) for name, value in pairs if value.isdigit()}


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:  # noqa: S310 - Envoy's own admin
        text: str = response.read().decode()
    return text


@contextlib.asynccontextmanager
async def envoy(
    folder: Path, extproc: str | list[str], upstream_port: int, concurrency: int = 1
) -> AsyncIterator[Envoy]:
    """Envoy on free ports, its ext_proc filter at `extproc` (`unix:/path` or `host:port`, or several)."""
    config = folder / "envoy.json"
    admin_file = folder / "admin"
    addresses = [extproc] if isinstance(extproc, str) else extproc
    config.write_text(json.dumps(bootstrap(addresses, upstream_port)))
    binary = shutil.which("envoy", path=str(Path(sys.executable).parent)) or shutil.which("envoy")
    assert binary is not None, "the envoy executable is missing"
    with (folder / "envoy.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            binary,
            *("-c", str(config), "--admin-address-path", str(admin_file), "--concurrency", str(concurrency)),
            *("--disable-hot-restart", "--log-level", "warning"),
            stdout=log,
            stderr=log,
        )
    try:
        await eventually(lambda: admin_file.exists() and admin_file.read_text().strip(), "Envoy's admin port")
        admin = int(admin_file.read_text().rpartition(":")[2])
        listeners = json.loads(await asyncio.to_thread(_get, f"http://127.0.0.1:{admin}/listeners?format=json"))
        port = listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"]
        yield Envoy(port, admin, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def server_process(kind: str, address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A transport with scripted sessions in a process of its own, on uvloop as in production."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, kind, address, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.readline() == b"listening\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def bootstrap(extproc: list[str], upstream_port: int) -> dict[str, Any]:
    """As the product uses ext_proc: headers only, trailers kept so that the stream lives as long as the response."""
    types = "type.googleapis.com/envoy.extensions"
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{types}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {
                "http2_protocol_options": {"connection_keepalive": {"interval": "1s", "timeout": "5s"}}
            },
        }
    }
    filters = [
        {
            "name": "envoy.filters.http.ext_proc",
            "typed_config": {
                "@type": f"{types}.filters.http.ext_proc.v3.ExternalProcessor",
                "grpc_service": {"envoy_grpc": {"cluster_name": "extproc"}},
                "failure_mode_allow": True,
                "allow_mode_override": True,
                "message_timeout": "1s",
                "max_message_timeout": "300s",
                "processing_mode": {
                    "request_header_mode": "SEND",
                    "response_header_mode": "SEND",
                    "response_trailer_mode": "SEND",
                    "request_body_mode": "NONE",
                    "response_body_mode": "NONE",
                },
            },
        },
        {"name": "router", "typed_config": {"@type": f"{types}.filters.http.router.v3.Router"}},
    ]
    manager = {
        "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "codec_type": "AUTO",
        "http_filters": filters,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}],
                }
            ]
        },
    }
    limits = {"thresholds": [{"max_requests": 100_000, "max_connections": 100_000, "max_pending_requests": 100_000}]}
    return {
        "admin": {"address": _tcp("127.0.0.1", 0)},
        "static_resources": {
            "listeners": [
                {
                    "name": "gateway",
                    "address": _tcp("127.0.0.1", 0),
                    "per_connection_buffer_limit_bytes": 16 * 1024 * 1024,
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    "name": "extproc",
                    "type": "STATIC",
                    "circuit_breakers": limits,
                    "typed_extension_protocol_options": http2,
                    "load_assignment": _endpoints("extproc", [_address(text) for text in extproc]),
                },
                {
                    "name": "upstream",
                    "type": "STATIC",
                    "circuit_breakers": limits,
                    "load_assignment": _endpoints("upstream", [_tcp("127.0.0.1", upstream_port)]),
                },
            ],
        },
    }


def _tcp(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _address(text: str) -> dict[str, Any]:
    if text.startswith("unix:"):
        return {"pipe": {"path": text.removeprefix("unix:")}}
    host, _, port = text.rpartition(":")
    return _tcp(host, int(port))


def _endpoints(cluster: str, addresses: list[dict[str, Any]]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": address}} for address in addresses]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]}


async def serve(kind: str, address: str) -> None:
    """The program of `server_process`; runs until it is killed."""
    from extproc.transports.grpcio import GrpcioTransport
    from extproc.transports.lean import LeanTransport

    transport = {"lean": LeanTransport, "grpcio": GrpcioTransport}[kind](
        ScriptedSessions(), max_message_bytes=16 * 1024 * 1024
    )
    await transport.listen([address])
    print("listening", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(*sys.argv[1:]))
