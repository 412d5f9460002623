"""Policies and rules as xDS resources, for the extproc replicas. Envoy does not ask for them."""

from collections.abc import Iterable

from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import TYPE_URL, content_version, encode
from recursant.config.live import GatewayRules
from recursant.config.rules_codec import RESOURCE_NAME, encode_rules, rules_version
from recursant.config.rules_codec import TYPE_URL as RULES
from xds_server.resource import Resource


def policy_resources(policies: Iterable[AgentPolicy]) -> list[Resource]:
    """One resource for each policy: named by its agent, its version the hash of its content (DESIGN §7)."""
    return [Resource(TYPE_URL, policy.agent_id, encode(policy), content_version(policy)) for policy in policies]


def rules_resource(rules: GatewayRules) -> Resource:
    """The one resource of the rules."""
    return Resource(RULES, RESOURCE_NAME, encode_rules(rules), rules_version(rules))
