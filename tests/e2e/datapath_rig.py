"""A real Envoy with our resources, and small stand-ins around it: ADS, ext_proc, access log, workers.

The stand-ins are plain grpcio and sockets, run in one background thread, so that these tests need nothing of the
product but the resources and the Lua under test. Tests themselves are synchronous.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_pb2_grpc

from recursant import names
from recursant.agents.policy import AgentPolicy
from recursant.config.model import Config
from recursant.config.model import ExtProc as ExtProcSection
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from recursant.v1.worker_state_pb2 import WorkerState
from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE, Resource
from xds_server.resources.bootstrap import render
from xds_server.resources.build import build

T = TypeVar("T")
# Bounds against hanging, far above what anything takes.
PATIENCE_S = 20.0
# Make before break: clusters and their endpoints before the routes that name them.
_ORDER = (CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(check: Callable[[], T], what: str, *, patience: float = PATIENCE_S) -> T:
    """Wait until `check` gives something true."""
    deadline = time.monotonic() + patience
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"still not: {what}")
        time.sleep(0.02)


def record(
    worker_id: str,
    endpoint: str | None,
    *models: tuple[str, str],
    status: WorkerStatus = WorkerStatus.READY,
    **facts: Any,
) -> WorkerRecord:
    """A worker; `models` are (name, family)."""
    state = WorkerState(id=worker_id, address=endpoint or "", **facts)
    served = tuple(Model(name, family) for name, family in models)
    return WorkerRecord(worker_id, status, endpoint, served, state, last_beat=0.0)


class Loop:
    """An event loop in a thread of its own, for the stand-ins."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def close(self) -> None:
        async def finish() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


# --- the control plane ---


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


# --- ext_proc ---


@dataclass
class Verdict:
    """What the ext_proc stand-in answers to the request headers."""

    endpoints: str | None = None
    metadata: Mapping[str, str | float] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    remove: Sequence[str] = ()
    hold_s: float = 0.0
    ask_hold_s: float = 0.0
    ask_for_body: bool = False
    # (status, headers, body)
    immediate: tuple[int, Mapping[str, str], str] | None = None
    response_headers: Mapping[str, str] = field(default_factory=dict)


async def _serving(_request: bytes, _context: object) -> bytes:
    """HealthCheckResponse{status: SERVING}."""
    return b"\x08\x01"


# Envoy asks for it where there are several ext_proc processes.
_HEALTHY = grpc.unary_unary_rpc_method_handler(_serving)


class ExtProc(ext_proc_pb2_grpc.ExternalProcessorServicer):
    """Answers as the contract says, by a function that the test sets."""

    def __init__(self) -> None:
        self.decide: Callable[[Mapping[str, str]], Verdict] = lambda _headers: Verdict()
        self.open = 0
        self.opened = 0
        self.seen: list[Any] = []
        self.bodies: list[bytes] = []

    def reset(self) -> None:
        self.decide = lambda _headers: Verdict()
        self.seen.clear()
        self.bodies.clear()
        self.opened = 0

    async def Process(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.open += 1
        self.opened += 1
        verdict = Verdict()
        try:
            async for request in requests:
                self.seen.append(request)
                match request.WhichOneof("request"):
                    case "request_headers":
                        headers = _headers(request.request_headers)
                        verdict = self.decide(headers)
                        if verdict.ask_hold_s:
                            wait = ext_proc_pb2.ProcessingResponse()
                            wait.override_message_timeout.FromMilliseconds(int(verdict.ask_hold_s * 1_000))
                            yield wait
                        if verdict.hold_s:
                            await asyncio.sleep(verdict.hold_s)
                        if verdict.ask_for_body:
                            ask = ext_proc_pb2.ProcessingResponse()
                            ask.request_headers.response.SetInParent()
                            ask.mode_override.request_header_mode = ProcessingMode.SEND
                            ask.mode_override.response_header_mode = ProcessingMode.SEND
                            ask.mode_override.request_body_mode = ProcessingMode.BUFFERED
                            ask.mode_override.response_trailer_mode = ProcessingMode.SEND
                            yield ask
                        else:
                            yield _verdict_answer("request_headers", verdict)
                    case "request_body":
                        self.bodies.append(request.request_body.body)
                        yield _verdict_answer("request_body", verdict)
                    case "response_headers":
                        answer = ext_proc_pb2.ProcessingResponse()
                        answer.response_headers.response.SetInParent()
                        _set(answer.response_headers.response.header_mutation, verdict.response_headers)
                        yield answer
                    case kind:
                        answer = ext_proc_pb2.ProcessingResponse()
                        getattr(answer, kind).SetInParent()
                        yield answer
        finally:
            self.open -= 1


def _headers(message: Any) -> dict[str, str]:
    return {header.key: header.raw_value.decode("latin-1") for header in message.headers.headers}


def _set(mutation: Any, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        option = mutation.set_headers.add(append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
        option.header.key = name
        option.header.raw_value = value.encode()


def _verdict_answer(phase: str, verdict: Verdict) -> Any:
    answer = ext_proc_pb2.ProcessingResponse()
    if verdict.immediate is not None:
        status, headers, body = verdict.immediate
        answer.immediate_response.status.code = status
        answer.immediate_response.body = body.encode()
        answer.immediate_response.details = "stand_in"
        _set(answer.immediate_response.headers, headers)
        return answer
    common = getattr(answer, phase).response
    common.SetInParent()
    _set(common.header_mutation, verdict.headers)
    common.header_mutation.remove_headers.extend(verdict.remove)
    fields = dict(verdict.metadata)
    if verdict.endpoints is not None:
        fields[names.METADATA_ENDPOINTS] = verdict.endpoints
    if fields:
        answer.dynamic_metadata.fields[names.METADATA_NAMESPACE].struct_value.update(fields)
    return answer


# --- workers ---


@dataclass
class Seen:
    """A request as a worker got it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name]
        assert len(found) < 2, f"{name} came {len(found)} times"
        return found[0] if found else None


class Worker:
    """An HTTP/1.1 server that records what it gets and answers as told by `X-Do` (JSON) or by `do`."""

    def __init__(self, name: str, host: str = "127.0.0.1") -> None:
        self.name = name
        self.host = host
        self.port = 0
        self.seen: list[Seen] = []
        self.do: dict[str, Any] = {}
        self.hung_up = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def endpoint(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Go away at once, like a killed process."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    def reset(self) -> None:
        self.seen.clear()
        self.do = {}
        self.hung_up = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up += 1
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, target, _ = first.split(" ", 2)
        headers = [(key, value.strip()) for key, _, value in (line.partition(":") for line in lines)]
        seen = Seen(method, target, headers, await self._body(reader, headers))
        self.seen.append(seen)
        todo = {**self.do, **json.loads(seen.header("x-do") or "{}")}
        if todo.get("die"):
            writer.transport.abort()
            return False
        await self._pause(reader, todo.get("delay", 0.0))
        if "chunks" in todo:
            await self._stream(writer, reader, todo)
            return True
        body = todo.get("body", json.dumps({"worker": self.name, "target": target})).encode()
        extra = "".join(f"{key}: {value}\r\n" for key, value in todo.get("headers", {}).items())
        status = todo.get("status", 200)
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nx-worker: {self.name}\r\n{extra}"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        return True

    async def _stream(self, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, todo: dict[str, Any]) -> None:
        writer.write(
            f"HTTP/1.1 {todo.get('status', 200)} X\r\ncontent-type: text/event-stream\r\nx-worker: {self.name}\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        await writer.drain()
        for index in range(todo["chunks"]):
            if index:
                await self._pause(reader, todo.get("every", 0.05))
            data = f"data: {index}\n\n"
            writer.write(f"{len(data):x}\r\n{data}\r\n".encode())
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _pause(self, reader: asyncio.StreamReader, seconds: float) -> None:
        """Take that long; a client that hangs up closes the connection to us, which reading sees at once."""
        with contextlib.suppress(TimeoutError):
            if seconds and await asyncio.wait_for(reader.read(1), seconds) == b"":
                raise ConnectionResetError

    async def _body(self, reader: asyncio.StreamReader, headers: list[tuple[str, str]]) -> bytes:
        fields = {key.lower(): value for key, value in headers}
        if fields.get("transfer-encoding", "").lower() == "chunked":
            body = b""
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
            return body
        return await reader.readexactly(int(fields.get("content-length", "0")))


# --- clients ---


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def worker(self) -> str | None:
        return self.headers.get("x-worker")


def read_answer(connection: socket.socket) -> Answer:
    """The answer on a raw connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    headers = {key.lower(): value for key, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


class Rig:
    """Envoy, its control plane, an ext_proc and some workers."""

    def __init__(
        self,
        directory: Path,
        config: Config,
        hosts: Sequence[str] = ("127.0.0.1",) * 3,
        dead_ext_procs: int = 0,
        **envoy_options: str,
    ) -> None:
        self.directory = directory
        self.loop = Loop()
        self.ads = Ads()
        self.log = AccessLog()
        self.ext_proc = ExtProc()
        self.workers = [Worker(f"w{index}", host) for index, host in enumerate(hosts)]
        self._options = envoy_options
        self._xds_port = free_port()
        self.port = free_port()
        self.admin_port = free_port()
        self.socket = directory / "extproc.sock"
        # Others that are configured, but never listen.
        self._ext_procs = [self.socket, *(directory / f"dead-{index}.sock" for index in range(dead_ext_procs))]
        self.config = self.placed(config)
        self.fleet: list[WorkerRecord] = []
        self._xds: Any = None
        self._ext_proc_server: Any = None
        self._envoy: subprocess.Popen[bytes] | None = None

    def placed(self, config: Config) -> Config:
        """The configuration with this rig's addresses."""
        gateway = config.gateway.model_copy(update={"port": self.port, "admin_port": self.admin_port})
        ext_proc = config.extproc.model_copy(update={"listen": tuple(f"unix:{path}" for path in self._ext_procs)})
        xds = config.xds.model_copy(update={"port": self._xds_port})
        return config.model_copy(update={"gateway": gateway, "extproc": ext_proc, "xds": xds})

    def start(self, fleet: Callable[[Self], list[WorkerRecord]] | None = None) -> Self:
        for worker in self.workers:
            self.loop.run(worker.start())
        self.fleet = (fleet or standard_fleet)(self)
        self.push()
        self.loop.run(self._serve_xds())
        self.start_ext_proc()
        bootstrap = self.directory / "bootstrap.yaml"
        bootstrap.write_text(render(self.config, "gateway-1"))
        program = shutil.which("envoy", path=str(Path(sys.executable).parent)) or "envoy"
        options = [part for key, value in self._options.items() for part in (f"--{key.replace('_', '-')}", value)]
        with (self.directory / "envoy.log").open("wb") as log:
            self._envoy = subprocess.Popen(
                [
                    program,
                    "-c",
                    str(bootstrap),
                    "--concurrency",
                    "1",
                    "--disable-hot-restart",
                    "-l",
                    "warning",
                    *options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        eventually(self._listening, f"Envoy listens; its log:\n{self.envoy_log()}")
        return self

    def _listening(self) -> bool:
        assert self._envoy is not None
        assert self._envoy.poll() is None, self.envoy_log()
        assert not self.ads.nacks, self.ads.nacks
        with contextlib.suppress(OSError):
            return self.get("/healthz").status == 200
        return False

    async def _serve_xds(self) -> None:
        self._xds = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])
        ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(self.ads, self._xds)
        als_pb2_grpc.add_AccessLogServiceServicer_to_server(self.log, self._xds)
        self._xds.add_insecure_port(f"127.0.0.1:{self._xds_port}")
        await self._xds.start()

    def start_ext_proc(self) -> None:
        async def start() -> None:
            self._ext_proc_server = grpc.aio.server(
                options=[("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
            )
            ext_proc_pb2_grpc.add_ExternalProcessorServicer_to_server(self.ext_proc, self._ext_proc_server)
            health = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": _HEALTHY})
            self._ext_proc_server.add_generic_rpc_handlers((health,))
            self._ext_proc_server.add_insecure_port(f"unix:{self.socket}")
            await self._ext_proc_server.start()

        self.loop.run(start())

    def stop_ext_proc(self) -> None:
        if self._ext_proc_server is not None:
            self.loop.run(self._ext_proc_server.stop(0))
            self._ext_proc_server = None

    @contextlib.contextmanager
    def without_ext_proc(self) -> Iterator[None]:
        self.stop_ext_proc()
        try:
            yield
        finally:
            self.start_ext_proc()
            # Envoy dials again with the next request; wait until one really went through ext_proc.
            before = self.ext_proc.opened
            eventually(lambda: self.get("/readyz") and self.ext_proc.opened > before, "Envoy found ext_proc again")

    def push(self, config: Config | None = None, fleet: list[WorkerRecord] | None = None) -> None:
        """Give Envoy the resources of this configuration and fleet."""
        self.config = self.placed(config) if config is not None else self.config
        self.fleet = fleet if fleet is not None else self.fleet
        self.loop.run(self.ads.set(build(self.config, self.fleet)))

    def close(self) -> None:
        if self._envoy is not None:
            self._envoy.send_signal(signal.SIGTERM)
            try:
                self._envoy.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._envoy.kill()
                self._envoy.wait()
        self.stop_ext_proc()
        if self._xds is not None:
            self.loop.run(self._xds.stop(0))
        for worker in self.workers:
            self.loop.run(worker.stop())
        self.loop.close()

    def envoy_log(self) -> str:
        log = self.directory / "envoy.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def reset(self) -> None:
        self.ext_proc.reset()
        self.log.entries.clear()
        for worker in self.workers:
            worker.reset()

    # --- requests ---

    def request(
        self,
        method: str,
        target: str,
        body: bytes | str | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            chunked = body is not None and not isinstance(body, (bytes, str))
            connection.request(method, target, body=body, headers=dict(headers or {}), encode_chunked=chunked)
            response = connection.getresponse()
            found: dict[str, str] = {}
            for key, value in response.getheaders():
                assert key.lower() not in found, f"{key} comes twice"
                found[key.lower()] = value
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, target: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("GET", target, headers=headers)

    def post(self, target: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """POST JSON; a str or bytes goes as it is."""
        data = body if isinstance(body, (str, bytes)) else json.dumps(body)
        return self.request("POST", target, data, {"content-type": "application/json", **(headers or {})})

    def chat(self, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        return self.post("/v1/chat/completions", {"model": "auto", "messages": [], **fields}, headers)

    @contextlib.contextmanager
    def raw(self, *parts: bytes) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            for part in parts:
                connection.sendall(part)
            yield connection

    @property
    def seen(self) -> list[Seen]:
        """The requests that reached workers."""
        return [seen for worker in self.workers for seen in worker.seen]

    def only(self) -> Seen:
        assert len(self.seen) == 1, [seen.target for seen in self.seen]
        return self.seen[0]

    def by_worker(self) -> Counter[str]:
        return Counter({worker.name: len(worker.seen) for worker in self.workers if worker.seen})

    def stats(self, pattern: str) -> dict[str, int]:
        url = f"http://127.0.0.1:{self.admin_port}/stats?filter={pattern}"
        text = urllib.request.urlopen(url).read().decode()
        return {key: int(value) for key, value in re.findall(r"^(\S+): (\d+)$", text, re.MULTILINE)}


def agent(agent_id: str, **fields: Any) -> AgentPolicy:
    return AgentPolicy(agent_id=agent_id, **fields)


QWEN = ("Qwen/Qwen2.5-7B", "qwen")
PHI = ("microsoft/phi-4", "phi")
CHAT = {"x-agent-id": "chat-web"}


def standard_fleet(rig: Rig) -> list[WorkerRecord]:
    """Qwen on the first two workers, phi on the last two."""
    served = [(QWEN,), (QWEN, PHI), (PHI,)]
    return [record(worker.name, worker.endpoint, *models) for worker, models in zip(rig.workers, served, strict=False)]


def standard_config(**sections: Any) -> Config:
    """Four agents. A busy machine may make the stand-in for extproc slow: it has all the time it needs."""
    sections.setdefault("extproc", ExtProcSection(message_timeout_ms=10_000))
    return Config(
        agents=[
            agent("chat-web", model_family="qwen", priority=10),
            agent("batch-summary", model_family="phi", priority=1),
            agent("lonely", model_family="mistral"),
            agent("strict", model_family="qwen", failure_mode="closed"),
        ],
        **sections,
    )


@contextlib.contextmanager
def running(directory: Path, config: Config | None = None, **options: Any) -> Iterator[Rig]:
    """A started rig with the standard fleet."""
    rig = Rig(directory, config or standard_config(), **options)
    try:
        yield rig.start()
    finally:
        rig.close()
