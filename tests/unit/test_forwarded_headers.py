"""extproc gets the headers that it reads, and nothing else that clients send."""

import random
from typing import Any

import pytest
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.extensions.filters.http.ext_proc.v3.ext_proc_pb2 import ExternalProcessor
from fleet_kit import Recorded, table_of

from extproc.gateway import Gateway
from recursant import names
from recursant.config.model import Config
from xds_server.resources.build import build


def test_envoy_forwards_what_extproc_reads_and_no_credentials() -> None:
    found = next(each for each in build(Config(), []) if each.name == names.EXTPROC_FILTER)
    filter_config = ExternalProcessor.FromString(TypedExtensionConfig.FromString(found.body).typed_config.value)
    allowed = {pattern.exact for pattern in filter_config.forward_rules.allowed_headers.patterns}
    assert allowed == set(names.EXTPROC_HEADERS)
    assert not allowed & {"authorization", "cookie", "x-api-key", "proxy-authorization"}


class Reads(dict[str, bytes]):
    """Headers that remember which of them were looked for."""

    def __init__(self, headers: dict[str, bytes]) -> None:
        super().__init__(headers)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


@pytest.mark.parametrize("headers", [{}, {"x-agent-meta": b"{}"}])
def test_the_gateway_looks_for_no_header_that_envoy_keeps_from_it(headers: dict[str, bytes]) -> None:
    gateway = Gateway(config=Config(), table=table_of(), recorder=Recorded(), clock=lambda: 0.0, rng=random.Random(1))
    reads = Reads(headers)
    gateway.arrival(reads, has_body=True)
    assert {names.AGENT_ID, names.REQUEST_ID, "content-length"} <= reads.names
    assert reads.names <= set(names.EXTPROC_HEADERS)
