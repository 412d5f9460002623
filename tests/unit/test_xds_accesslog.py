"""Envoy's reports of requests that it served without extproc."""

from collections.abc import AsyncIterator

import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage
from envoy.service.accesslog.v3.als_pb2_grpc import AccessLogServiceStub
from grpc import aio
from prometheus_client import CollectorRegistry

from recursant import names
from xds_server.accesslog import AccessLogService, went_past_extproc
from xds_server.metrics import Recorder
from xds_server.server import Settings, XdsServer


def entry(**marks: bool) -> HTTPAccessLogEntry:
    found = HTTPAccessLogEntry()
    for key, value in marks.items():
        found.common_properties.metadata.filter_metadata[names.METADATA_NAMESPACE].fields[key].bool_value = value
    return found


def message(*entries: HTTPAccessLogEntry, log: str = "") -> StreamAccessLogsMessage:
    found = StreamAccessLogsMessage()
    if log:
        found.identifier.log_name = log
    found.http_logs.log_entry.extend(entries)
    return found


FAIL_OPEN = {names.METADATA_FAIL_OPEN: True}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (entry(**FAIL_OPEN), True),
        (entry(**{names.METADATA_FAIL_OPEN: False}), False),
        (entry(something_else=True), False),
        (entry(), False),
    ],
)
def test_which_entries_count(found: HTTPAccessLogEntry, expected: bool):
    assert went_past_extproc(found) is expected


async def count(*messages: StreamAccessLogsMessage) -> int:
    total = 0

    def failed_open(requests: int) -> None:
        nonlocal total
        total += requests

    async def stream() -> AsyncIterator[StreamAccessLogsMessage]:
        for each in messages:
            yield each

    await AccessLogService(failed_open).StreamAccessLogs(stream(), None)
    return total


async def test_entries_of_a_stream_are_counted():
    marked = entry(**FAIL_OPEN)
    messages = [message(marked, marked, log=names.FAIL_OPEN_LOG), message(marked, entry()), message()]
    assert await count(*messages) == 3


async def test_other_logs_are_not_ours():
    assert await count(message(entry(**FAIL_OPEN), log="somebody-elses"), message(entry(**FAIL_OPEN))) == 0


async def test_the_server_takes_them():
    registry = CollectorRegistry()
    server = XdsServer(Settings(), Recorder(registry))
    port = await server.listen("127.0.0.1", 0)
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = AccessLogServiceStub(channel).StreamAccessLogs()
        await call.write(message(entry(**FAIL_OPEN), log=names.FAIL_OPEN_LOG))
        await call.write(message(entry(**FAIL_OPEN), entry(**FAIL_OPEN)))
        await call.done_writing()
        await call
    await server.stop(0)
    assert registry.get_sample_value("recursant_extproc_fail_open_total") == 3
