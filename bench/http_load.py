"""The load of the benchmarks: a closed loop over a number of connections, in a process of its own.

    python -m bench.http_load

Reads a line of JSON for each run ({host, port, connections, requests, request}) and answers with the latencies to
the first byte of the body, in microseconds. The request is built once and sent as it is.
"""

import asyncio
import json
import sys
import time
from typing import Any

import uvloop


class Caller(asyncio.Protocol):
    """One connection that sends its next request as soon as it has its whole answer."""

    def __init__(self, request: bytes, requests: int, times: list[float]) -> None:
        self._request = request
        self._requests = requests
        self._times = times
        self._data = b""
        self._first = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._call()

    def _call(self) -> None:
        self._began = time.perf_counter()
        self._first = 0.0
        self._data = b""
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._data = data = self._data + data
        end = data.find(b"\r\n\r\n")
        if end < 0 or len(data) == end + 4:
            return
        if not self._first:
            self._first = time.perf_counter()
            if not data.startswith(b"HTTP/1.1 200"):
                self._fail(f"not 200: {data[:300]!r}")
                return
        head = data[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            complete = len(data) - end - 4 >= int(head[at + 17 : at + 29].split(b"\r\n", 1)[0])
        else:
            complete = data.endswith(b"0\r\n\r\n")
        if not complete:
            return
        self._times.append(self._first - self._began)
        self._requests -= 1
        if self._requests:
            self._call()
        else:
            self._transport.close()

    def _fail(self, problem: str) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError(problem))
        self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if self.done.done():
            return
        if self._requests:
            self.done.set_exception(RuntimeError("the connection was closed before its answer"))
        else:
            self.done.set_result(None)


async def run(host: str, port: int, connections: int, requests: int, request: str) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    times: list[float] = []
    raw = request.encode("latin-1")
    began = time.perf_counter()
    each = max(requests // connections, 1)
    callers = [
        (await loop.create_connection(lambda: Caller(raw, each, times), host, port))[1] for _ in range(connections)
    ]
    results = await asyncio.gather(*(caller.done for caller in callers), return_exceptions=True)
    failed = [str(result) for result in results if isinstance(result, BaseException)]
    return {
        "seconds": time.perf_counter() - began,
        "micros": sorted(round(taken * 1e6) for taken in times),
        "failed": failed[0] if failed else None,
    }


async def main() -> None:
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print(json.dumps("ready"), flush=True)
    while line := await reader.readline():
        print(json.dumps(await run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
