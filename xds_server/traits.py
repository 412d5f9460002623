"""What the xDS protocol, and Envoy's behaviour, ask for each resource type. Every other file asks here.

Facts and their sources: the xDS protocol document, "Eventual consistency considerations" for the order, "How the client
specifies what resources to return" for the rest; `docs/adr/0006-xds-sessions.md` for what was seen on Envoy 1.40.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment

from recursant.agents.policy_codec import TYPE_URL as AGENT_POLICY
from recursant.config.rules_codec import TYPE_URL as GATEWAY_RULES
from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE


class Order(IntEnum):
    """Make before break: a type is pushed after everything that it refers to."""

    CLUSTER = 0
    ENDPOINT = 1
    LISTENER = 2
    EXTENSION_CONFIG = 3
    ROUTE = 4
    # Types of our own refer to nothing, and nothing refers to them.
    OTHER = 5


@dataclass(frozen=True, slots=True)
class Traits:
    """How one type behaves.

    Attributes:
        order: its place in a push.
        label: its short name, for logs and metrics.
        whole_state: in state of the world, a response lists everything that the client wants, and absence deletes.
        trusts_claims: what a client says on reconnecting that it has is not sent again. Off where Envoy was reported
            to forget what it had claimed (envoyproxy/envoy#22418), and the resources are few.
        refers: its resources name clusters, so clusters are taken away only after the client accepted the new ones.
        removed_last: its resources are taken away when nothing that the client runs names them any more.
        blank: the message that empties a resource, where Envoy ignores a removal (it keeps the last endpoints).
    """

    order: Order
    label: str
    whole_state: bool = False
    trusts_claims: bool = True
    refers: bool = False
    removed_last: bool = False
    blank: Callable[[str], bytes] | None = None


def _empty_assignment(name: str) -> bytes:
    empty: bytes = ClusterLoadAssignment(cluster_name=name).SerializeToString(deterministic=True)
    return empty


_TRAITS: Final = {
    CLUSTER: Traits(Order.CLUSTER, "Cluster", whole_state=True, removed_last=True),
    ENDPOINT: Traits(
        Order.ENDPOINT, "ClusterLoadAssignment", trusts_claims=False, removed_last=True, blank=_empty_assignment
    ),
    LISTENER: Traits(Order.LISTENER, "Listener", whole_state=True, refers=True),
    EXTENSION_CONFIG: Traits(Order.EXTENSION_CONFIG, "TypedExtensionConfig", trusts_claims=False, refers=True),
    ROUTE: Traits(Order.ROUTE, "RouteConfiguration", trusts_claims=False, refers=True),
    AGENT_POLICY: Traits(Order.OTHER, "AgentPolicy"),
    GATEWAY_RULES: Traits(Order.OTHER, "GatewayRules"),
}
# One label for every type that we do not know by name: a client's words must not become labels.
_OTHER: Final = Traits(Order.OTHER, "other")


def traits_of(type_url: str) -> Traits:
    """The traits of a type; of a plain named resource where we do not know it."""
    return _TRAITS.get(type_url, _OTHER)
