"""The replica as an xDS client: policies and rules over delta ADS, the last good ones kept on disk.

https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol, "Incremental xDS". Nothing on the request path waits
for this: while the server is away, what is known stays in force.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
from envoy.service.discovery.v3.ads_pb2_grpc import AggregatedDiscoveryServiceStub
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse
from grpc import aio

from extproc.policy_state import PolicyState
from extproc.rules_state import RulesState
from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import TYPE_URL as POLICY
from recursant.config.live import GatewayRules
from recursant.config.rules_codec import TYPE_URL as RULES
from recursant.fleet.address import join_address
from recursant.names import LOOPBACK
from recursant.store.atomic_file import write_atomically
from recursant.store.backoff import Backoff

STATE_FILE: Final = "policies.json"
RULES_FILE: Final = "rules.json"
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

_StateT = TypeVar("_StateT", PolicyState, RulesState)

_log = logging.getLogger(__name__)


def target_of(host: str, port: int) -> str:
    """What to dial, where the server listens on `host`."""
    return join_address(_WILDCARDS.get(host, host), port)


def node_id() -> str:
    """The name of this process among the clients."""
    return f"extproc-{socket.gethostname()}-{os.getpid()}"


class PolicyClient:
    """Keeps the policies and the rules of this process in step with the control plane.

    Args:
        target: the ADS server, `host:port`.
        node: how this client calls itself.
        configured: the policies to start with where nothing was kept.
        state_dir: where the last good ones are kept; None keeps none.
        on_policies: takes the new policies, on the event loop, whenever they changed.
        rules: the rules to start with where none were kept.
        on_rules: takes the new rules, on the event loop, whenever they changed.
    """

    def __init__(
        self,
        target: str,
        node: str,
        configured: Sequence[AgentPolicy],
        state_dir: Path | None,
        on_policies: Callable[[tuple[AgentPolicy, ...]], None],
        *,
        rules: GatewayRules | None = None,
        on_rules: Callable[[GatewayRules], None] = lambda _: None,
    ) -> None:
        self._target = target
        self._node = node
        self._state_dir = state_dir
        self._on_policies = on_policies
        self._on_rules = on_rules
        self._policies = PolicyState.of(configured)
        self._rules = RulesState(rules or GatewayRules())
        self._saved: dict[str, str] = {}
        # Something was taken that may not be on the disk yet.
        self._news = asyncio.Event()

    @property
    def policies(self) -> tuple[AgentPolicy, ...]:
        """Those in force."""
        return self._policies.policies

    @property
    def rules(self) -> GatewayRules:
        """Those in force."""
        return self._rules.rules

    def restore(self) -> None:
        """Take what the last run kept, as far as it can be read."""
        policies = self._kept(STATE_FILE, PolicyState.parse)
        if policies is not None:
            _log.info("starting with the %d policies that were kept", len(policies.policies))
            self._policies = policies
            self._on_policies(policies.policies)
        rules = self._kept(RULES_FILE, RulesState.parse)
        if rules is not None:
            self._rules = rules
            self._on_rules(rules.rules)

    def _kept(self, name: str, parse: Callable[[str], _StateT]) -> _StateT | None:
        if self._state_dir is None:
            return None
        path = self._state_dir / name
        try:
            if path.stat().st_size > _MAX_STATE_BYTES:
                raise ValueError("it is too large")
            return parse(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("what is kept in %s cannot be used: %s", path, error)
            return None

    async def run(self) -> None:
        """Follow the server until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stay_connected())
            tasks.create_task(self._keep_up())

    async def _stay_connected(self) -> None:
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
        try:
            for type_url, versions in ((POLICY, self._policies.versions), (RULES, self._rules.versions)):
                first = DeltaDiscoveryRequest(
                    type_url=type_url, resource_names_subscribe=["*"], initial_resource_versions=dict(versions)
                )
                first.node.id = self._node
                await call.write(first)
            while (response := await call.read()) is not aio.EOF:
                problem = self._take(response)
                answer = DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
                if problem:
                    _log.warning("refusing what the xDS server sends: %s", problem)
                    answer.error_detail.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
                    answer.error_detail.message = problem[:_MAX_ERROR_CHARS]
                await call.write(answer)
                self._news.set()
                yield
        finally:
            call.cancel()

    def _take(self, response: DeltaDiscoveryResponse) -> str:
        """Put a response in force, before the ACK says so; the reasons for a NACK, empty for an ACK."""
        if response.type_url == RULES:
            rules = self._rules.rules
            problem = self._rules.take(response)
            if self._rules.rules != rules:
                self._on_rules(self._rules.rules)
            return problem
        policies = self._policies.policies
        problem = self._policies.take(response)
        if self._policies.policies != policies:
            self._on_policies(self._policies.policies)
        return problem

    async def _keep_up(self) -> None:
        """Write what was taken, beside the stream: a slow disk holds no policy up, and only the newest is written."""
        if self._state_dir is None:
            return
        while True:
            await self._news.wait()
            self._news.clear()
            await self._keep(self._state_dir)

    async def _keep(self, folder: Path) -> None:
        for name, state in ((STATE_FILE, self._policies), (RULES_FILE, self._rules)):
            path, text = folder / name, state.dump()
            if text == self._saved.get(name):
                continue
            try:
                await asyncio.to_thread(write_atomically, path, text)
            except OSError as error:
                _log.warning("%s cannot be kept: %s", path, error.strerror)
                continue
            self._saved[name] = text
