"""A small HTTP server for tests: the test says what each path answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

# Path and body in, status and body out; may wait, and raise ConnectionError to cut the connection.
Answer = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]


@dataclass
class HttpServer:
    """A running server; `requests` holds the path and body of each that came, `heads` its lines before the body."""

    port: int
    requests: list[tuple[str, bytes]]
    heads: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def http_server(answer: Answer, *, port: int = 0) -> AsyncIterator[HttpServer]:
    """Serve on the loopback address until the end of the block."""
    requests: list[tuple[str, bytes]] = []
    heads: list[str] = []
    connections: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        task.add_done_callback(connections.discard)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = 0
                for line in head.splitlines()[1:]:
                    name, _, value = line.partition(":")
                    if name.lower() == "content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                path = head.split()[1]
                requests.append((path, body))
                heads.append(head)
                status, content = await answer(path, body)
                writer.write(f"HTTP/1.1 {status} Whatever\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the peer has gone, or the test is over
        finally:
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", port)
    try:
        yield HttpServer(server.sockets[0].getsockname()[1], requests, heads)
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
