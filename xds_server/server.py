"""The ADS service on grpc.aio: moves messages between gRPC and sessions, and decides nothing."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from envoy.service.accesslog.v3.als_pb2_grpc import add_AccessLogServiceServicer_to_server
from envoy.service.discovery.v3.ads_pb2_grpc import add_AggregatedDiscoveryServiceServicer_to_server
from grpc import aio

from xds_server.accesslog import AccessLogService
from xds_server.metrics import Recorder
from xds_server.problems import LimitExceededError, XdsError
from xds_server.session import DEFAULT_LIMITS, Limits, Session
from xds_server.session_delta import DeltaSession
from xds_server.session_sotw import SotwSession
from xds_server.snapshot import Snapshot
from xds_server.status import ClientStatus
from xds_server.stream import Stream

# A first request carries Envoy's whole node, some 60 kB. A reconnecting client lists the versions of what it has.
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
# One ADS and one access-log stream each, for every Envoy and every extproc replica.
MAX_CLIENTS: Final = 1_024
_MAX_STREAMS_OF_A_CONNECTION: Final = 16
# A peer that vanished without a word is noticed after both together.
_KEEPALIVE_MS: Final = 30_000
_KEEPALIVE_TIMEOUT_MS: Final = 10_000

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", _MAX_STREAMS_OF_A_CONNECTION),
    # Envoy's keepalive pings would otherwise look like abuse and cost it the connection.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Two servers on one port would share the clients by chance.
    ("grpc.so_reuseport", 0),
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server treats its clients.

    Attributes:
        ack_timeout_s: a client that has not answered a push for so long is reported.
        max_clients: ADS streams at once.
        limits: what one stream may ask for.
    """

    ack_timeout_s: float = 10.0
    max_clients: int = MAX_CLIENTS
    limits: Limits = DEFAULT_LIMITS


class XdsServer:
    """Serves one snapshot to every client; a new one replaces it.

    Args:
        settings: bounds.
        recorder: counts what happens.
        clock: monotonic, in seconds.
    """

    def __init__(self, settings: Settings, recorder: Recorder, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._recorder = recorder
        self._clock = clock
        self._snapshot: Snapshot | None = None
        self._streams: set[Stream[Any, Any]] = set()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._server: aio.Server | None = None

    def publish(self, snapshot: Snapshot) -> None:
        """Serve this from now on."""
        self._snapshot = snapshot
        for stream in self._streams:
            stream.offer(snapshot)

    def clients(self) -> list[ClientStatus]:
        """Where every client stands."""
        now = self._clock()
        return [stream.session.status(now) for stream in self._streams]

    async def listen(self, host: str, port: int) -> int:
        """Begin to serve; returns the port, which the system chooses for 0. To be called once.

        Raises:
            OSError: the address cannot be used.
        """
        # Made here, for it belongs to the running loop.
        server = aio.server(options=_OPTIONS)
        add_AggregatedDiscoveryServiceServicer_to_server(self, server)
        add_AccessLogServiceServicer_to_server(AccessLogService(self._recorder.failed_open), server)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        await server.start()
        self._server = server
        return int(bound)

    async def stop(self, grace_s: float) -> None:
        """End all streams. Clients keep what they have and come back to whoever serves next."""
        self._stopping = True
        for stream in self._streams:
            stream.end()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)
        if self._handlers:
            await asyncio.wait(self._handlers)
        # grpc's finaliser needs the loop: let it run now, not when the garbage collector finds it.
        del server

    # --- gRPC's names ---

    async def StreamAggregatedResources(self, _: Any, context: Any) -> None:  # noqa: N802
        """State of the world."""
        settings = self._settings
        session = SotwSession(self._clock(), ack_timeout_s=settings.ack_timeout_s, limits=settings.limits)
        await self._serve(session, context)

    async def DeltaAggregatedResources(self, _: Any, context: Any) -> None:  # noqa: N802
        """Incremental."""
        settings = self._settings
        session = DeltaSession(self._clock(), ack_timeout_s=settings.ack_timeout_s, limits=settings.limits)
        await self._serve(session, context)

    async def _serve(self, session: Session[Any, Any], context: Any) -> None:
        """One stream, until either side ends it."""
        if len(self._streams) >= self._settings.max_clients:
            self._recorder.stream_refused("too_many_clients")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many clients")
        handler = asyncio.current_task()
        assert handler is not None  # noqa: S101 - grpc.aio runs each handler in a task
        self._handlers.add(handler)
        handler.add_done_callback(self._handlers.discard)
        stream = Stream(session, context, self._recorder, self._clock)
        self._streams.add(stream)
        if self._snapshot is not None:
            stream.offer(self._snapshot)
        if self._stopping:
            stream.end()
        try:
            await self._run(stream)
        except XdsError as error:
            limit = isinstance(error, LimitExceededError)
            _log.warning("ending the stream of %r: %s", stream.node_id, error)
            self._recorder.stream_refused("limit" if limit else "protocol")
            status = grpc.StatusCode.RESOURCE_EXHAUSTED if limit else grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(status, str(error))
        finally:
            self._streams.discard(stream)
            _log.info("%s client %r has left", session.protocol, stream.node_id)

    async def _run(self, stream: Stream[Any, Any]) -> None:
        """Read and write until one of them ends."""
        tasks = {asyncio.create_task(work) for work in (stream.read(), stream.write())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                # The call is over under a read or a write: nothing to tell anybody.
                with contextlib.suppress(aio.BaseError):
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
