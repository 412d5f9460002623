"""What a replica knows of the rules: xDS responses in, rules out, and what is wrong with a response. Pure."""

import json
from collections.abc import Mapping
from typing import Any, Final

from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse

from recursant.config.live import GatewayRules
from recursant.config.rules_codec import (
    RESOURCE_NAME,
    TYPE_URL,
    RulesError,
    decode_rules,
    rules_from_dict,
    rules_to_dict,
    rules_version,
)

_FORMAT: Final = 1


class RulesState:
    """The last good rules. A removal leaves them in force: there is nothing to go by without them.

    Args:
        rules: those to start with.
        version: that a server gave them; by default the hash of their content, which it gives them, too.
    """

    def __init__(self, rules: GatewayRules, version: str | None = None) -> None:
        self.rules = rules
        self._version = rules_version(rules) if version is None else version

    @property
    def versions(self) -> Mapping[str, str]:
        """For `initial_resource_versions`."""
        return {RESOURCE_NAME: self._version}

    def take(self, response: DeltaDiscoveryResponse) -> str:
        """Take what a response brings; the reasons for a NACK, empty for an ACK."""
        problems = []
        for resource in response.resources:
            try:
                if resource.name != RESOURCE_NAME or resource.resource.type_url != TYPE_URL:
                    raise RulesError(f"{resource.name[:64]!r} of {resource.resource.type_url[:128]!r} is unknown here")
                self.rules = decode_rules(resource.resource.value)
            except RulesError as error:
                problems.append(f"rules: {error}")
                continue
            self._version = resource.version
        return "; ".join(problems)

    def dump(self) -> str:
        """The state as text, for the disk."""
        document = {"format": _FORMAT, "version": self._version, "rules": rules_to_dict(self.rules)}
        return json.dumps(document, indent=1)

    @classmethod
    def parse(cls, text: str) -> "RulesState":
        """The state in `text`.

        Raises:
            ValueError: it is none.
        """
        data: Any = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != _FORMAT or not isinstance(data.get("version"), str):
            raise ValueError("it is not of a format that is known here")
        return cls(rules_from_dict(data.get("rules")), data["version"])
