"""What a transport costs: CPU time of the ext_proc process per request, through a real Envoy, decisions left out.

    python -m bench.extproc_transport

One Envoy, three ext_proc servers that parse each message and answer "continue", measured in turns: our `lean`
transport, our `grpcio` one, and `noop-grpcio-aio`, gRPC's own server with generated stubs as its manual shows it.
Every request is one ext_proc stream with both header messages. Takes about half a minute.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

SERVERS = ("lean", "grpcio", "noop-grpcio-aio")
CONNECTIONS = (1, 32)
ROUNDS = 5
WARM_UP = 300
OUT = Path(__file__).parent / "out"


@dataclass(frozen=True)
class Row:
    """One line of the table: medians over the rounds.

    Attributes:
        cpu_us_per_request: CPU time of the ext_proc process, user and system.
    """

    server: str
    connections: int
    cpu_us_per_request: float
    p50_ms: float
    p99_ms: float
    rps: float


# --- the servers: child processes ---


def answer(message: bytes) -> bytes:
    """Parse, and go on."""
    response = ProcessingResponse()
    if ProcessingRequest.FromString(message).HasField("request_headers"):
        response.request_headers.response.SetInParent()
    else:
        response.response_headers.response.SetInParent()
    data: bytes = response.SerializeToString()
    return data


class Noop:
    """A session that decides nothing."""

    def receive(self, message: bytes) -> bytes:
        return answer(message)

    def close(self) -> None:
        pass


async def serve(server: str, address: str) -> None:
    """Serve until stdin ends; say the CPU time spent so far for each line read."""
    if server == "noop-grpcio-aio":
        await _serve_noop(address)
    else:
        from extproc.transports.grpcio import GrpcioTransport
        from extproc.transports.lean import LeanTransport

        kind = LeanTransport if server == "lean" else GrpcioTransport
        await kind(lambda _: Noop(), max_message_bytes=2**24).listen([address])
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        print(time.process_time(), flush=True)


async def _serve_noop(address: str) -> None:
    from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as stubs
    from grpc import aio

    class Servicer(stubs.ExternalProcessorServicer):  # type: ignore[misc]
        async def Process(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
            async for request in requests:
                response = ProcessingResponse()
                if request.HasField("request_headers"):
                    response.request_headers.response.SetInParent()
                else:
                    response.response_headers.response.SetInParent()
                yield response

    server = aio.server(options=(("grpc.http2.max_ping_strikes", 0),))
    stubs.add_ExternalProcessorServicer_to_server(Servicer(), server)
    server.add_insecure_port(address)
    await server.start()
    _KEPT.append(server)


_KEPT: list[Any] = []


@contextlib.asynccontextmanager
async def child(server: str, address: str) -> AsyncIterator[Callable[[], Any]]:
    """A server process; gives a function that asks for its CPU time in seconds."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.extproc_transport", "--serve", server, address),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    assert await stdout.readline() == b"ready\n", f"{server} did not start"

    async def cpu() -> float:
        stdin.write(b"\n")
        return float(await stdout.readline())

    try:
        yield cpu
    finally:
        stdin.close()
        process.terminate()
        await process.wait()


# --- Envoy, the upstream and the load ---


@contextlib.asynccontextmanager
async def envoy(folder: Path, ports: dict[str, str], upstream: int) -> AsyncIterator[dict[str, int]]:
    """An Envoy with one listener for each ext_proc server; gives their ports."""
    (folder / "envoy.json").write_text(json.dumps(bootstrap(ports, upstream)))
    admin = folder / "admin"
    binary = shutil.which("envoy", path=str(Path(sys.executable).parent)) or "envoy"
    process = await asyncio.create_subprocess_exec(
        *(binary, "-c", str(folder / "envoy.json"), "--admin-address-path", str(admin)),
        *("--concurrency", "1", "--disable-hot-restart", "--log-level", "error"),
    )
    try:
        while not await asyncio.to_thread(lambda: admin.exists() and admin.read_text()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        address = await asyncio.to_thread(admin.read_text)
        text = await asyncio.to_thread(_get, f"http://{address}/listeners?format=json")
        yield {
            listener["name"]: listener["local_address"]["socket_address"]["port_value"]
            for listener in json.loads(text)["listener_statuses"]
        }
    finally:
        process.terminate()
        await process.wait()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - Envoy's own admin
        text: str = response.read().decode()
    return text


def bootstrap(servers: dict[str, str], upstream: int) -> dict[str, Any]:
    """The smallest Envoy that keeps each stream as long as its response."""
    types = "type.googleapis.com/envoy.extensions"

    def tcp(port: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    def cluster(name: str, address: dict[str, Any], **more: Any) -> dict[str, Any]:
        endpoint = {"endpoint": {"address": address}}
        return {
            "name": name,
            "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
            **more,
        }

    def listener(name: str) -> dict[str, Any]:
        mode = {"request_header_mode": "SEND", "response_header_mode": "SEND", "response_trailer_mode": "SEND"}
        ext_proc = {
            "@type": f"{types}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": name}},
            "processing_mode": mode,
            "message_timeout": "5s",
        }
        manager = {
            "@type": f"{types}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": name,
            "http_filters": [
                {"name": "ext_proc", "typed_config": ext_proc},
                {"name": "router", "typed_config": {"@type": f"{types}.filters.http.router.v3.Router"}},
            ],
            "route_config": {
                "virtual_hosts": [
                    {
                        "name": "all",
                        "domains": ["*"],
                        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}],
                    }
                ]
            },
        }
        return {
            "name": name,
            "address": tcp(0),
            "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
        }

    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{types}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    clusters = [
        cluster(name, {"pipe": {"path": address.removeprefix("unix:")}}, typed_extension_protocol_options=http2)
        for name, address in servers.items()
    ]
    return {
        "admin": {"address": tcp(0)},
        "static_resources": {
            "listeners": [listener(name) for name in servers],
            "clusters": [*clusters, cluster("upstream", tcp(upstream))],
        },
    }


class Upstream(asyncio.Protocol):
    """Answers every request head with a short 200."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok" * data.count(b"\r\n\r\n"))


class Caller(asyncio.Protocol):
    """One client connection that sends its next request as soon as it has its answer."""

    REQUEST = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nx-agent-id: chat-web\r\nuser-agent: bench\r\n"
        b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    )

    def __init__(self, count: int, times: list[float]) -> None:
        self._left = count
        self._times = times
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._call()

    def data_received(self, data: bytes) -> None:
        if not data.endswith(b"\r\n\r\nok"):
            return
        self._times.append(time.perf_counter() - self._began)
        self._left -= 1
        if self._left:
            self._call()
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self.done.set_result(None)

    def _call(self) -> None:
        self._began = time.perf_counter()
        self._transport.write(self.REQUEST)


async def load(port: int, connections: int, requests: int) -> tuple[list[float], float]:
    """Run `requests` over so many connections; gives the latencies and the time for all, in seconds."""
    loop = asyncio.get_running_loop()
    times: list[float] = []
    began = time.perf_counter()
    callers = [
        (await loop.create_connection(lambda: Caller(requests // connections, times), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.gather(*(caller.done for caller in callers))
    return sorted(times), time.perf_counter() - began


async def measure(requests: int) -> list[Row]:
    """All servers, in turns."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        loop = asyncio.get_running_loop()
        upstream = await loop.create_server(Upstream, "127.0.0.1", 0)
        addresses = {name: f"unix:{folder / name}.sock" for name in SERVERS}
        cpu = {name: await stack.enter_async_context(child(name, addresses[name])) for name in SERVERS}
        upstream_port = upstream.sockets[0].getsockname()[1]
        ports = await stack.enter_async_context(envoy(folder, addresses, upstream_port))
        samples: dict[tuple[str, int], list[tuple[float, ...]]] = {}
        for name in SERVERS:
            await load(ports[name], 8, WARM_UP)
        for _ in range(ROUNDS):
            for connections in CONNECTIONS:
                for name in SERVERS:
                    before = await cpu[name]()
                    times, seconds = await load(ports[name], connections, requests)
                    spent = await cpu[name]() - before
                    count = len(times)
                    sample = (spent / count * 1e6, times[count // 2], times[count * 99 // 100], count / seconds)
                    samples.setdefault((name, connections), []).append(sample)
    rows = []
    for (name, connections), found in samples.items():
        cost, p50, p99, rate = (statistics.median(column) for column in zip(*found, strict=True))
        rows.append(Row(name, connections, cost, p50 * 1e3, p99 * 1e3, rate))
    return rows


def show(rows: list[Row]) -> None:
    """Print the table; `ratio` is the CPU time against gRPC's own server at the same load."""
    from rich.console import Console
    from rich.table import Table

    base = {row.connections: row.cpu_us_per_request for row in rows if row.server == "noop-grpcio-aio"}
    table = Table(title="CPU per request of an ext_proc process that decides nothing (medians)")
    for column in ("server", "clients", "CPU µs", "ratio", "p50 ms", "p99 ms", "req/s"):
        table.add_column(column, justify="left" if column == "server" else "right")
    for row in sorted(rows, key=lambda row: (row.connections, SERVERS.index(row.server))):
        share = row.cpu_us_per_request / base[row.connections]
        figures = (f"{row.cpu_us_per_request:.0f}", f"{share:.2f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}")
        table.add_row(row.server, str(row.connections), *figures, f"{row.rps:.0f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_024, help="in each of the rounds (default %(default)s)")
    parser.add_argument("--serve", nargs=2, metavar=("SERVER", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(*options.serve))
        return
    run(requests=options.requests)


def run(*, requests: int) -> None:
    """Measure, print, write bench/out/extproc_transport.json."""
    rows = uvloop.run(measure(requests))
    show(rows)
    OUT.mkdir(exist_ok=True)
    (OUT / "extproc_transport.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
