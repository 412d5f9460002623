"""Envoy's access log of requests that it served without extproc, counted.

Envoy sends an entry for each request that the Lua behind ext_proc marked (`names.METADATA_FAIL_OPEN`). Nothing of an
entry is kept.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse

from recursant import names


class AccessLogService:
    """`envoy.service.accesslog.v3.AccessLogService`.

    Args:
        failed_open: told how many more requests went past extproc.
    """

    def __init__(self, failed_open: Callable[[int], None]) -> None:
        self._failed_open = failed_open

    async def StreamAccessLogs(  # noqa: N802 - gRPC's name
        self, messages: AsyncIterator[StreamAccessLogsMessage], _: Any
    ) -> StreamAccessLogsResponse:
        """Count until Envoy ends the stream."""
        ours = False
        async for message in messages:
            # Only the first message says which log this is.
            if message.HasField("identifier"):
                ours = message.identifier.log_name == names.FAIL_OPEN_LOG
            if ours and (count := sum(map(went_past_extproc, message.http_logs.log_entry))):
                self._failed_open(count)
        return StreamAccessLogsResponse()


def went_past_extproc(entry: HTTPAccessLogEntry) -> bool:
    """Does the entry say that nobody decided this request?"""
    fields = entry.common_properties.metadata.filter_metadata
    if names.METADATA_NAMESPACE not in fields:
        return False
    ours = fields[names.METADATA_NAMESPACE].fields
    return names.METADATA_FAIL_OPEN in ours and bool(ours[names.METADATA_FAIL_OPEN].bool_value)
