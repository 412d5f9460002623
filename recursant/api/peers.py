"""The other services' metrics, asked for when the API's own are."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import httpx

from recursant.api.exposition import Part
from recursant.config.model import Config
from recursant.fleet.address import join_address
from recursant.names import LOOPBACK

# A service that needs longer is left out: whoever scrapes us waits for this.
TIMEOUT_S: Final = 1.0
MAX_BYTES: Final = 16 * 1024 * 1024
# Where to dial what listens everywhere.
_WILDCARDS: Final = {"0.0.0.0": LOOPBACK, "::": "::1"}

_log = logging.getLogger(__name__)


class Peers:
    """Where the other services of this configuration expose their metrics.

    Args:
        config: its metrics addresses.
        client: used for all of them; closed by its owner.
    """

    def __init__(self, config: Config, client: httpx.AsyncClient) -> None:
        self._client = client
        bases = extproc_bases(config)
        several = len(bases) > 1
        self._urls = {
            **{
                ("extproc", str(process) if several else ""): f"{base}/metrics" for process, base in enumerate(bases, 1)
            },
            ("xds", ""): f"{base_url(config.xds.metrics_host, config.xds.metrics_port)}/metrics",
        }

    async def read(self) -> Sequence[Part]:
        """Every service's metrics; all are asked at once, and none is waited for longer than a second."""
        texts = await asyncio.gather(*map(self._read, self._urls.values()))
        return [Part(service, text, process) for (service, process), text in zip(self._urls, texts, strict=True)]

    async def _read(self, url: str) -> str | None:
        try:
            async with asyncio.timeout(TIMEOUT_S), self._client.stream("GET", url) as response:
                response.raise_for_status()
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        _log.warning("%s is larger than %d bytes, left out", url, MAX_BYTES)
                        return None
                return body.decode(errors="replace")
        except (httpx.HTTPError, TimeoutError):
            return None


def extproc_bases(config: Config) -> list[str]:
    """Where each process of extproc serves its metrics and answers questions."""
    return [base_url(config.extproc.metrics_host, port) for port in config.extproc.metrics_ports]


def base_url(host: str, port: int) -> str:
    """Where to reach a service that listens there."""
    return f"http://{join_address(_WILDCARDS.get(host, host), port)}"
