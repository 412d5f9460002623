"""The ext_proc transport on gRPC's own library: for TLS, and as the oracle that the lean one is held to."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
from grpc import aio

from extproc.grpc import health
from extproc.stream import Session, SessionFactory
from extproc.transports.address import (
    AddressError,
    SocketFile,
    SocketUmask,
    TcpAddress,
    UnixAddress,
    claim_unix_path,
    parse_address,
)
from extproc.transports.base import (
    PROCESS_METHOD,
    TransportStats,
    close_session,
    session_failure,
)

# Answers of one stream that the peer has not taken; an ext_proc stream needs at most one for each of its messages.
_MAX_PENDING_ANSWERS: Final = 64
# The largest number of streams that HTTP/2 can express (31 bits).
_ALL_STREAMS: Final = 2**31 - 1
# What reads and writes of grpc.aio raise once their call has ended under them.
_CALL_IS_OVER: Final = aio.BaseError
_STATUS: Final = {code.value[0]: code for code in grpc.StatusCode}


class GrpcioTransport:
    """A `Transport` (extproc.transports.base) on grpc.aio.

    Args:
        factory: makes the session of each stream.
        max_message_bytes: the largest message taken; a larger one ends its stream with RESOURCE_EXHAUSTED.
        credentials: for TLS; without them the server speaks clear text.
    """

    def __init__(
        self,
        factory: SessionFactory,
        *,
        max_message_bytes: int,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.stats = TransportStats()
        self._factory = factory
        self._credentials = credentials
        self._draining = asyncio.Event()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._files: list[SocketFile] = []
        self._server: aio.Server | None = aio.server(
            handlers=[_Methods(self)],
            options=(
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", _ALL_STREAMS),
                # Envoy's keepalive pings would otherwise look like abuse and cost it the connection.
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.so_reuseport", 0),
            ),
        )

    async def listen(self, addresses: Sequence[str]) -> list[str]:
        """See `Transport.listen`. gRPC serves only the ports that it had before its start."""
        server = self._server
        if server is None:
            raise AddressError("the server has ended")
        bound = [self._bind(server, parse_address(address)) for address in addresses]
        await server.start()
        return bound

    def _bind(self, server: aio.Server, address: UnixAddress | TcpAddress) -> str:
        if isinstance(address, TcpAddress):
            return str(TcpAddress(address.host, self._add_port(server, str(address))))
        claim_unix_path(address.path)
        with SocketUmask():
            self._add_port(server, str(address))
        self._files.append(SocketFile.of(address.path))
        return str(address)

    def _add_port(self, server: aio.Server, address: str) -> int:
        try:
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise AddressError(f"{address}: cannot listen there: {error}") from error
        return int(port)

    async def drain(self, timeout_s: float) -> None:
        """See `Transport.drain`. What does not end in time is cancelled, as gRPC does it."""
        self._draining.set()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(timeout_s)
        # grpc's finaliser needs the loop: let it run now, not when the garbage collector finds the cycle.
        del server
        # The server does not wait for the handlers that it cancels.
        if self._handlers:
            await asyncio.wait(self._handlers)
        for file in self._files:
            file.remove()

    async def process(self, _: AsyncIterator[bytes], context: aio.ServicerContext[bytes, bytes]) -> None:
        """One ext_proc stream: hand its messages to its session until it ends."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - grpc.aio runs each handler in a task
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        answers = _Answers(context.write)
        stats = self.stats
        stats.streams_total += 1
        stats.streams_open += 1
        session: Session | None = None
        failure: Exception | None = None
        try:
            session = self._factory(answers.send)
            while (message := await context.read()) is not aio.EOF:
                answer = session.receive(message)
                if answer is not None:
                    await answers.put(answer)
            # What was answered before the peer's end still belongs to it.
            await answers.flush()
        except _CALL_IS_OVER:
            stats.errors["stream_lost"] += 1
        except Exception as error:  # noqa: BLE001 - whatever a session raises ends its own stream only
            failure = error
        finally:
            answers.close()
            stats.streams_open -= 1
            if session is not None:
                close_session(session, stats)
        if failure is not None:
            number, text = session_failure(failure, stats)
            await context.abort(_STATUS[number], text)

    async def check(self, message: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        """grpc.health.v1 Check."""
        answer = await self._health(message, context)
        if answer == health.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return answer

    async def watch(self, message: bytes, context: aio.ServicerContext[bytes, bytes]) -> None:
        """grpc.health.v1 Watch: the state now, and once more when we begin to drain."""
        answer = await self._health(message, context)
        await context.write(answer)
        await self._draining.wait()
        if answer == health.SERVING:
            await context.write(health.NOT_SERVING)

    async def _health(self, message: bytes, context: aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            service = health.parse_request(message)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a HealthCheckRequest: {error}")
        if service not in health.SERVICES:
            return health.SERVICE_UNKNOWN
        return health.NOT_SERVING if self._draining.is_set() else health.SERVING


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc is untyped
    """Finds the handler of a method; messages stay bytes."""

    def __init__(self, transport: GrpcioTransport) -> None:
        self._handlers = {
            PROCESS_METHOD: grpc.stream_stream_rpc_method_handler(transport.process),
            health.CHECK_METHOD: grpc.unary_unary_rpc_method_handler(transport.check),
            health.WATCH_METHOD: grpc.unary_stream_rpc_method_handler(transport.watch),
        }

    def service(self, handler_call_details: Any) -> Any:
        """The handler, or None: gRPC answers UNIMPLEMENTED then."""
        return self._handlers.get(handler_call_details.method)


class _Answers:
    """The answers of one stream on their way out: in order, one write at a time, as gRPC demands."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._pending: deque[bytes] = deque()
        self._writing = False
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    async def put(self, message: bytes) -> None:
        """Write one answer, waiting while the peer does not take it."""
        self._pending.append(message)
        if not self._writing:
            await self._write_all()

    def send(self, message: bytes) -> None:
        """Queue one answer to be written by a task of its own; dropped once the stream is over or hopelessly late."""
        if self._closed or len(self._pending) >= _MAX_PENDING_ANSWERS:
            return
        self._pending.append(message)
        if not self._writing:
            self._writing = True
            self._writer = asyncio.get_running_loop().create_task(self._write_late())

    async def flush(self) -> None:
        """Wait until everything queued is written."""
        if self._writer is not None:
            await self._writer

    def close(self) -> None:
        """Drop what is queued."""
        self._closed = True
        self._pending.clear()
        if self._writer is not None:
            self._writer.cancel()

    async def _write_late(self) -> None:
        # A failed write means that the stream is gone; its reader hears of that and ends the session.
        with contextlib.suppress(_CALL_IS_OVER):
            await self._write_all()

    async def _write_all(self) -> None:
        self._writing = True
        try:
            while self._pending:
                await self._write(self._pending.popleft())
        finally:
            self._writing = False
