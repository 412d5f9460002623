"""What a replica knows of the policies: xDS responses in, policies out, and what is wrong with a response. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse

from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import TYPE_URL, PolicyError, content_version, decode, policy_to_dict

_FORMAT: Final = 1


class PolicyState:
    """The last good version of every policy.

    A response is taken resource by resource, as Envoy does: what is good in it is used, what is bad leaves the last
    good one in place, and the whole is refused with a reason for each.
    """

    def __init__(self) -> None:
        self._policies: dict[str, AgentPolicy] = {}
        self._versions: dict[str, str] = {}

    @property
    def policies(self) -> tuple[AgentPolicy, ...]:
        """By agent id."""
        return tuple(self._policies[name] for name in sorted(self._policies))

    @property
    def versions(self) -> Mapping[str, str]:
        """By agent id, for `initial_resource_versions`."""
        return self._versions

    def take(self, response: DeltaDiscoveryResponse) -> str:
        """Take what a response brings; the reasons for a NACK, empty for an ACK."""
        if response.type_url != TYPE_URL:
            return f"{response.type_url!r} was not asked for"
        problems = []
        for resource in response.resources:
            try:
                if resource.resource.type_url != TYPE_URL:
                    raise PolicyError(f"policy {resource.name[:64]!r}: is a {resource.resource.type_url[:128]!r}")
                policy = decode(resource.resource.value)
                if policy.agent_id != resource.name:
                    raise PolicyError(f"policy {resource.name[:64]!r}: agent_id: is {policy.agent_id!r}")
            except PolicyError as error:
                problems.append(str(error))
                continue
            self._policies[resource.name] = policy
            self._versions[resource.name] = resource.version
        for name in response.removed_resources:
            self._policies.pop(name, None)
            self._versions.pop(name, None)
        return "; ".join(problems)

    def dump(self) -> str:
        """The state as text, for the disk."""
        entries = [
            {"version": self._versions[name], "policy": policy_to_dict(policy)}
            for name, policy in sorted(self._policies.items())
        ]
        return json.dumps({"format": _FORMAT, "policies": entries}, indent=1)

    @classmethod
    def of(cls, policies: Sequence[AgentPolicy]) -> "PolicyState":
        """A state of policies that no server has sent; versions are hashes, so the server knows them all the same."""
        state = cls()
        state._policies = {policy.agent_id: policy for policy in policies}
        state._versions = {policy.agent_id: content_version(policy) for policy in policies}
        return state

    @classmethod
    def parse(cls, text: str) -> "PolicyState":
        """The state in `text`.

        Raises:
            ValueError: it is none.
        """
        data: Any = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != _FORMAT or not isinstance(data.get("policies"), list):
            raise ValueError("it is not of a format that is known here")
        state = cls()
        for entry in data["policies"]:
            if not isinstance(entry, dict) or not isinstance(entry.get("version"), str):
                raise ValueError("an entry has no version")
            policy = AgentPolicy.model_validate(entry.get("policy"))
            state._policies[policy.agent_id] = policy
            state._versions[policy.agent_id] = entry["version"]
        return state
