"""The two ways of a report to the control plane: into Redis, or over HTTP to the control API (SPEC B2)."""

from http import HTTPStatus
from typing import Any, Final, Protocol

import httpx

from recursant.store.codec import check, state_to_dict
from recursant.store.workers import StoreError, WorkerStore
from recursant.v1.worker_state_pb2 import WorkerState

TIMEOUT_S: Final = 1.0
REGISTER_PATH: Final = "/v1/worker/register"
HEARTBEAT_PATH: Final = "/v1/worker/heartbeat"

# What the API answers to the heartbeat of a worker that it does not know.
_UNKNOWN_WORKER: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
_EXCERPT_CHARS: Final = 200


class SendError(Exception):
    """The report may not have arrived."""


class Sender(Protocol):
    """Sends reports one at a time; each send takes a second or so at most."""

    async def send(self, state: WorkerState) -> None:
        """Send one report.

        Raises:
            SendError: it may not have arrived.
            ValueError: the report is not valid; names the field.
        """

    async def close(self) -> None:
        """Close the connections."""


class RedisSender:
    """Reports into Redis."""

    def __init__(self, url: str) -> None:
        self._store = WorkerStore(url)

    async def send(self, state: WorkerState) -> None:
        """Write and publish the report."""
        try:
            await self._store.publish(state)
        except StoreError as error:
            raise SendError(str(error)) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._store.close()


class HttpSender:
    """Reports to the control API: registers first, then sends heartbeats, and registers again when it is unknown."""

    def __init__(self, api_url: str) -> None:
        """Take the URL of the API; connect to nothing yet.

        Raises:
            ValueError: it is no HTTP URL.
        """
        try:
            url = httpx.URL(api_url)
        except httpx.InvalidURL as error:
            raise ValueError(f"api_url: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"api_url: expected http://host:port, got {api_url!r:.300}")
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=TIMEOUT_S,
            limits=httpx.Limits(max_connections=1),
            # The control plane is never behind a proxy for the way out.
            trust_env=False,
        )
        self._registered = False

    async def send(self, state: WorkerState) -> None:
        """Post the report. Of the address the host may be left out: the API fills in where the report comes from."""
        check(_with_host(state))
        report = state_to_dict(state)
        if self._registered:
            response = await self._post(HEARTBEAT_PATH, report)
            if response.status_code not in _UNKNOWN_WORKER:
                _must_be_success(response)
                return
            self._registered = False
        _must_be_success(await self._post(REGISTER_PATH, report))
        self._registered = True

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _post(self, path: str, report: dict[str, Any]) -> httpx.Response:
        try:
            return await self._client.post(path, json=report)
        except httpx.HTTPError as error:
            raise SendError(str(error) or type(error).__name__) from error


def _with_host(state: WorkerState) -> WorkerState:
    if not state.address.startswith(":"):
        return state
    filled = WorkerState()
    filled.CopyFrom(state)
    filled.address = f"host{state.address}"
    return filled


def _must_be_success(response: httpx.Response) -> None:
    if not response.is_success:
        raise SendError(f"{response.url.path} answered {response.status_code}: {response.text[:_EXCERPT_CHARS]}")
