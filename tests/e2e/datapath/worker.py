"""A worker whose answers the test says, down to a death in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any


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
