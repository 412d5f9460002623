"""What the engine's HTTP server answers to whoever stands beside it: whether it serves, and which adapters."""

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from http import HTTPStatus
from typing import Final

import httpx

from recursant.store.codec import is_usable_name

HEALTH: Final = "/health"
MODELS: Final = "/v1/models"
# There in development mode only.
PAUSED: Final = "/is_paused"
# Between two looks, seconds. Each costs the server a request that does nothing.
LOOK_S: Final = 0.5
MODELS_REFRESH_S: Final = 2.0
TIMEOUT_S: Final = 2.0
# A server that was never reached by then listens somewhere else than we think.
WARN_AFTER_S: Final = 60.0
MAX_BODY_BYTES: Final = 1 << 20
# Of each kind.
MAX_NAMES: Final = 1_024

MAX_ADDRESSES: Final = 8

_log = logging.getLogger(__name__)


class EngineLook:
    """Looks at one engine's server twice a second, on the same machine.

    Attributes:
        serving: it takes requests. A server that is slow to answer is busy, not gone: it keeps its last standing.
        paused: its scheduler was told to stand still, so it takes requests and lets them hang. Only in development mode
            can it be told so, and asked.
        dead: times that it was found to say that its engine is dead.
        models: names of its model that it lists; None where it does not let itself be asked.
        adapters: LoRA adapters that it lists; None likewise.
        addresses: "ip:port" of our own ends of the last connections.
    """

    def __init__(self, url: str, api_key: str = "") -> None:
        """Take where it listens; connect to nothing yet."""
        self._url = url
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self.serving = False
        self.paused = False
        self.dead = 0
        self.models: tuple[str, ...] | None = None
        self.adapters: tuple[str, ...] | None = None
        self.addresses: deque[str] = deque(maxlen=MAX_ADDRESSES)
        self._models_read_at = float("-inf")
        # Whether it has a route that tells a pause.
        self._tells_pause = True

    async def run(self) -> None:
        """Look until cancelled."""
        began, warned = time.monotonic(), False
        # Its certificate is for its clients, and we are on its own machine; and no proxy stands between.
        async with httpx.AsyncClient(
            base_url=self._url,
            timeout=TIMEOUT_S,
            trust_env=False,
            verify=False,  # noqa: S501 - it is on this machine
            headers=self._headers,
        ) as client:
            while True:
                await self._look(client)
                if not self.serving and not warned and time.monotonic() - began > WARN_AFTER_S:
                    warned = True
                    _log.warning("nothing serves at %s: set RECURSANT_ENGINE_URL to where this vLLM listens", self._url)
                await asyncio.sleep(LOOK_S)

    async def _look(self, client: httpx.AsyncClient) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await client.get(HEALTH)
                self._note_address(answer)
                self._healthy(answer.status_code)
                if self.serving and self._tells_pause:
                    await self._ask_paused(client)
                if self.serving and time.monotonic() - self._models_read_at >= MODELS_REFRESH_S:
                    await self._list(client)
        except httpx.ConnectError:
            self.serving = self.paused = False
            # Another process may have it.
            self._tells_pause = True
        except httpx.RemoteProtocolError:
            # Somebody listens, and speaks otherwise than we thought.
            self.serving = True
        except (httpx.HTTPError, TimeoutError):
            # It is busy.
            return

    def _note_address(self, answer: httpx.Response) -> None:
        stream = answer.extensions.get("network_stream")
        client = None if stream is None else stream.get_extra_info("client_addr")
        if isinstance(client, tuple) and len(client) >= 2:
            # As uvicorn writes it.
            address = f"{client[0]}:{client[1]}"
            if address not in self.addresses:
                self.addresses.append(address)

    def _healthy(self, status: int) -> None:
        was = self.serving
        # vLLM says 503 when its engine is dead, and 200 in every other state.
        self.serving = status != HTTPStatus.SERVICE_UNAVAILABLE
        if was and not self.serving:
            self.dead += 1
            _log.error("the engine is dead: /health answers %d", status)

    async def _ask_paused(self, client: httpx.AsyncClient) -> None:
        answer = await client.get(PAUSED)
        if answer.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            self._tells_pause = self.paused = False
        elif answer.status_code == HTTPStatus.OK and len(answer.content) <= MAX_BODY_BYTES:
            self.paused = says_true(answer.content, "is_paused")

    async def _list(self, client: httpx.AsyncClient) -> None:
        self._models_read_at = time.monotonic()
        answer = await client.get(MODELS)
        if answer.status_code != HTTPStatus.OK or len(answer.content) > MAX_BODY_BYTES:
            return
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError, AttributeError):
            entries = [(str(entry["id"]), entry.get("parent")) for entry in json.loads(answer.content)["data"]]
            # One that cannot be reported must not keep the others from it.
            usable = [(name, parent) for name, parent in entries if is_usable_name(name)]
            self.models = tuple(name for name, parent in usable if parent is None)[:MAX_NAMES]
            self.adapters = tuple(name for name, parent in usable if parent is not None)[:MAX_NAMES]


def says_true(body: bytes, name: str) -> bool:
    """Whether an answer is a JSON object in which this is true."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get(name) is True
