"""The replica as an xDS client: policies over delta ADS, the last good ones kept on disk.

https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol, "Incremental xDS". Nothing on the request path waits
for this: while the server is away, what is known stays in force.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
from envoy.service.discovery.v3.ads_pb2_grpc import AggregatedDiscoveryServiceStub
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest
from grpc import aio

from extproc.policy_state import PolicyState
from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import TYPE_URL
from recursant.fleet.address import join_address
from recursant.names import LOOPBACK
from recursant.store.atomic_file import write_atomically
from recursant.store.backoff import Backoff

STATE_FILE: Final = "policies.json"
# All policies come in one response at first; gRPC's own limit is 4 MiB.
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
_MAX_STATE_BYTES: Final = 64 * 1024 * 1024
_RECONNECT_FIRST_S: Final = 0.1
_RECONNECT_LONGEST_S: Final = 5.0
_KEEPALIVE_MS: Final = 10_000
_KEEPALIVE_TIMEOUT_MS: Final = 5_000
_MAX_ERROR_CHARS: Final = 2_000

# Where to dial what listens everywhere.
_WILDCARDS: Final = {"0.0.0.0": LOOPBACK, "::": "::1"}
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.enable_retries", 0),
    # The control plane is ours: no proxy for the way out stands between.
    ("grpc.enable_http_proxy", 0),
)

_log = logging.getLogger(__name__)


def target_of(host: str, port: int) -> str:
    """What to dial, where the server listens on `host`."""
    return join_address(_WILDCARDS.get(host, host), port)


def node_id() -> str:
    """The name of this process among the clients."""
    return f"extproc-{socket.gethostname()}-{os.getpid()}"


class PolicyClient:
    """Keeps the policies of this process in step with the control plane.

    Args:
        target: the ADS server, `host:port`.
        node: how this client calls itself.
        configured: the policies to start with where nothing was kept.
        state_dir: where the last good ones are kept; None keeps none.
        on_policies: takes the new policies, on the event loop, whenever they changed.
    """

    def __init__(
        self,
        target: str,
        node: str,
        configured: Sequence[AgentPolicy],
        state_dir: Path | None,
        on_policies: Callable[[tuple[AgentPolicy, ...]], None],
    ) -> None:
        self._target = target
        self._node = node
        self._file = None if state_dir is None else state_dir / STATE_FILE
        self._on_policies = on_policies
        self._state = PolicyState.of(configured)
        self._saved = ""

    @property
    def policies(self) -> tuple[AgentPolicy, ...]:
        """Those in force."""
        return self._state.policies

    def restore(self) -> None:
        """Take what the last run kept, if it can be read."""
        if self._file is None:
            return
        try:
            if self._file.stat().st_size > _MAX_STATE_BYTES:
                raise ValueError("it is too large")
            state = PolicyState.parse(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            _log.warning("the policies kept in %s cannot be used: %s", self._file, error)
            return
        _log.info("starting with the %d policies that were kept", len(state.policies))
        self._state = state
        self._on_policies(state.policies)

    async def run(self) -> None:
        """Follow the server until cancelled."""
        backoff = Backoff(_RECONNECT_FIRST_S, _RECONNECT_LONGEST_S)
        told = False
        while True:
            try:
                # A channel of its own for each try: gRPC's own back-off would add to ours.
                async with aio.insecure_channel(self._target, options=_OPTIONS) as channel:
                    async for _ in self._follow(channel):
                        backoff.reset()
                        if told:
                            _log.info("following the policies of %s again", self._target)
                            told = False
                reason = "the server ended the stream"
            except aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            if not told:
                told = True
                _log.warning("the xDS server %s is away (%s): the last policies stay", self._target, reason)
            await asyncio.sleep(backoff.next())

    async def _follow(self, channel: aio.Channel) -> Any:
        """One stream; yields after each response."""
        call = AggregatedDiscoveryServiceStub(channel).DeltaAggregatedResources()
        first = DeltaDiscoveryRequest(
            type_url=TYPE_URL, resource_names_subscribe=["*"], initial_resource_versions=dict(self._state.versions)
        )
        first.node.id = self._node
        try:
            await call.write(first)
            while (response := await call.read()) is not aio.EOF:
                before = self._state.policies
                problem = self._state.take(response)
                answer = DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
                if problem:
                    _log.warning("refusing policies: %s", problem)
                    answer.error_detail.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
                    answer.error_detail.message = problem[:_MAX_ERROR_CHARS]
                policies = self._state.policies
                if policies != before:
                    # In force before the ACK says so.
                    self._on_policies(policies)
                await call.write(answer)
                await self._keep()
                yield
        finally:
            call.cancel()

    async def _keep(self) -> None:
        if self._file is None:
            return
        text = self._state.dump()
        if text == self._saved:
            return
        try:
            await asyncio.to_thread(write_atomically, self._file, text)
        except OSError as error:
            _log.warning("the policies cannot be kept in %s: %s", self._file, error.strerror)
            return
        self._saved = text
