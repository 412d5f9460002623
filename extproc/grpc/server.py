"""Which call a new stream is."""

from collections.abc import Callable
from typing import Final

from extproc.grpc import health, response
from extproc.grpc.context import ServerContext
from extproc.grpc.health_call import CheckCall, WatchCall
from extproc.grpc.process_call import ProcessCall
from extproc.http2.connection import Application, Connection
from extproc.http2.headers import RequestHead
from extproc.http2.stream import NOBODY, Stream, StreamHandler
from extproc.transports.base import PROCESS_METHOD

_CALLS: Final[dict[bytes, Callable[[ServerContext, Connection, Stream], StreamHandler]]] = {
    PROCESS_METHOD.encode(): ProcessCall,
    health.CHECK_METHOD.encode(): CheckCall,
    health.WATCH_METHOD.encode(): WatchCall,
}
# What is no gRPC is answered in HTTP (PROTOCOL-HTTP2.md, "Requests").
_METHOD_NOT_ALLOWED: Final = response.http_refusal(405)
_UNSUPPORTED_MEDIA_TYPE: Final = response.http_refusal(415)


def application(context: ServerContext) -> Application:
    """What a `Connection` needs to serve gRPC."""

    def open_call(connection: Connection, stream: Stream, head: RequestHead) -> StreamHandler:
        if head.method != b"POST":
            connection.end(stream, _METHOD_NOT_ALLOWED)
            return NOBODY
        if not head.content_type.startswith(b"application/grpc"):
            connection.end(stream, _UNSUPPORTED_MEDIA_TYPE)
            return NOBODY
        call = _CALLS.get(head.path)
        if call is None:
            connection.end(stream, response.UNIMPLEMENTED)
            return NOBODY
        return call(context, connection, stream)

    return open_call
