"""The yardstick: an ext_proc server that decides nothing, on gRPC's own asyncio server with generated stubs.

    python -m bench.noop_server HEADERS_SOCKET BODY_SOCKET

At the second Unix socket it asks for the whole body first, as our body mode does: the same messages go to and fro.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as stubs
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from grpc import aio

_MOST_BYTES = 32 * 2**20


class Noop(stubs.ExternalProcessorServicer):  # type: ignore[misc]
    """Says "continue" to everything."""

    def __init__(self, *, wants_body: bool) -> None:
        self._wants_body = wants_body

    async def Process(self, requests: AsyncIterator[ProcessingRequest], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            response = ProcessingResponse()
            if request.HasField("request_headers"):
                response.request_headers.response.SetInParent()
                if self._wants_body:
                    response.mode_override.request_header_mode = ProcessingMode.SEND
                    response.mode_override.response_header_mode = ProcessingMode.SEND
                    response.mode_override.request_body_mode = ProcessingMode.BUFFERED
                    response.mode_override.response_trailer_mode = ProcessingMode.SEND
            elif request.HasField("request_body"):
                response.request_body.response.SetInParent()
            else:
                response.response_headers.response.SetInParent()
            yield response


async def serve(headers_path: str, body_path: str) -> None:
    servers = []
    for path, wants_body in ((headers_path, False), (body_path, True)):
        options = (("grpc.http2.max_ping_strikes", 0), ("grpc.max_receive_message_length", _MOST_BYTES))
        server = aio.server(options=options)
        stubs.add_ExternalProcessorServicer_to_server(Noop(wants_body=wants_body), server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        servers.append(server)
    print(json.dumps("ready"), flush=True)
    await asyncio.gather(*(server.wait_for_termination() for server in servers))


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2]))
