"""The backend of the benchmarks: many addresses, one process, precomputed answers.

    python -m bench.http_backend PORT ADDRESSES

Listens on PORT of that many loopback addresses. It speaks as much HTTP/1.1 as Envoy and our client send it and
nothing more, because all of its time is added to what is measured.
"""

import asyncio
import json
import sys
from ipaddress import ip_address
from typing import Any, Final

import uvloop

_ANSWER: Final = json.dumps(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "bench/Bench-7B",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9},
    }
).encode()
_MODELS: Final = (
    b'{"object":"list","data":[{"id":"bench/Bench-7B","object":"model","created":1700000000,"owned_by":"bench"}]}'
)


def _whole(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


_WHOLE: Final = _whole(_ANSWER)
_LISTED: Final = _whole(_MODELS)
_CHUNK: Final = b'data: {"choices":[{"index":0,"delta":{"content":"token "}}]}\n\n'
_STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_STREAM_CHUNK: Final = b"%x\r\n%b\r\n" % (len(_CHUNK), _CHUNK)
_STREAM_END: Final = b"0\r\n\r\n"
# A stream is a few chunks with a little time between them, so that it lives longer than its first byte.
_CHUNKS: Final = 4
_BETWEEN_CHUNKS_S: Final = 0.001


def addresses(count: int) -> list[str]:
    """So many loopback addresses."""
    first = int(ip_address("127.0.1.1"))
    return [str(ip_address(first + 256 * (i // 250) + i % 250)) for i in range(count)]


class Backend(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._left = 0
        self._answer = _WHOLE
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._left == 0:
            data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return
            self._head = b""
            head = data[:end].lower()
            at = head.find(b"\r\ncontent-length:")
            length = int(head[at + 17 : at + 29].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self._answer = b"" if b"\r\nx-bench-stream:" in head else _LISTED if head.startswith(b"get ") else _WHOLE
            self._left = length - (len(data) - end - 4)
        else:
            self._left -= len(data)
        if self._left <= 0:
            self._left = 0
            if self._answer:
                self._transport.write(self._answer)
            else:
                self._transport.write(_STREAM_HEAD + _STREAM_CHUNK)
                self._later(_CHUNKS - 1)

    def _later(self, left: int) -> None:
        asyncio.get_running_loop().call_later(_BETWEEN_CHUNKS_S, self._next_chunk, left)

    def _next_chunk(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if left == 0:
            self._transport.write(_STREAM_END)
            return
        self._transport.write(_STREAM_CHUNK)
        self._later(left - 1)


async def serve(port: int, count: int) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Backend, address, port, backlog=256) for address in addresses(count)]
    print(json.dumps({"listening": len(servers)}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
