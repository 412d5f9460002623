"""Is a process ready? Each probe is a value and one cheap question over a socket, bounded in time."""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

# For one question. A process that is too busy to answer is asked again.
_TIMEOUT_S: Final = 2.0

_Connecting = Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]]


class Probe(Protocol):
    """Something that can be asked whether it is ready."""

    async def passes(self) -> bool:
        """True if it is ready now. Never raises because it is not."""
        ...


@dataclass(frozen=True, slots=True)
class TcpProbe:
    """Somebody accepts connections on a TCP port."""

    host: str
    port: int

    async def passes(self) -> bool:
        """Connect and hang up."""
        return await _first_line(asyncio.open_connection(self.host, self.port)) is not None


@dataclass(frozen=True, slots=True)
class UnixProbe:
    """Somebody accepts connections on a Unix socket."""

    path: str

    async def passes(self) -> bool:
        """Connect and hang up."""
        return await _first_line(asyncio.open_unix_connection(self.path)) is not None


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """A GET answers 200."""

    host: str
    port: int
    path: str

    async def passes(self) -> bool:
        """Ask once, on a connection of its own."""
        request = f"GET {self.path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        line = await _first_line(asyncio.open_connection(self.host, self.port), request.encode())
        version, _, rest = (line or b"").partition(b" ")
        return version.startswith(b"HTTP/") and rest.startswith(b"200")


@dataclass(frozen=True, slots=True)
class RedisProbe:
    """A Redis-compatible server without a password answers PING."""

    host: str
    port: int

    async def passes(self) -> bool:
        """Ask once, on a connection of its own."""
        return await _first_line(asyncio.open_connection(self.host, self.port), b"PING\r\n") == b"+PONG\r\n"


async def _first_line(connecting: _Connecting, request: bytes = b"") -> bytes | None:
    """The first line that answers the request; empty when nothing was asked; None if nobody is there in time."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await connecting
            if not request:
                return b""
            writer.write(request)
            return await reader.readline()
    except (OSError, TimeoutError, ValueError):  # ValueError: a line longer than the reader's limit
        return None
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
