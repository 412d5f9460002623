"""GatewayRules as protobuf, for xDS, and the hash that names their content.

The message has the form of the configuration: section by section, key by key, by the same names.
"""

import hashlib
import json
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from pydantic import ValidationError

from recursant.config.live import LIVE_LIMITS, GatewayRules
from recursant.v1.gateway_rules_pb2 import GatewayRules as GatewayRulesMessage

TYPE_URL: Final = "type.googleapis.com/recursant.v1.GatewayRules"
# There is one resource of the type.
RESOURCE_NAME: Final = "gateway"
# Some hundred words have some kilobytes.
MAX_RULES_BYTES: Final = 262_144

_VERSION_DIGITS: Final = 16


class RulesError(ValueError):
    """Rules that cannot be used. The text names every field at fault and the reason."""


def rules_to_dict(rules: GatewayRules) -> dict[str, Any]:
    """The rules as the message spells them, every field that counts written out."""
    data = rules.model_dump(mode="json", by_alias=True)
    data["limits"] = {name: data["limits"][name] for name in LIVE_LIMITS}
    return data


def rules_from_dict(data: Any) -> GatewayRules:
    """The rules in a document of that form; what it does not say is the default.

    Raises:
        RulesError: some field of it is not allowed.
    """
    try:
        return GatewayRules.model_validate(data)
    except ValidationError as error:
        found = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
        raise RulesError("; ".join(found)) from None


def rules_version(rules: GatewayRules) -> str:
    """The hash of what the rules mean: the same wherever they were read."""
    canonical = json.dumps(rules_to_dict(rules), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_VERSION_DIGITS]


def encode_rules(rules: GatewayRules) -> bytes:
    """The bytes for xDS: the same for the same rules."""
    message = json_format.ParseDict(rules_to_dict(rules), GatewayRulesMessage())
    return message.SerializeToString(deterministic=True)


def decode_rules(data: bytes) -> GatewayRules:
    """The rules in `data`.

    Raises:
        RulesError: there are none, or some field of them is not allowed.
    """
    if len(data) > MAX_RULES_BYTES:
        raise RulesError(f"the rules have {len(data)} bytes, allowed are {MAX_RULES_BYTES}")
    try:
        message = GatewayRulesMessage.FromString(data)
    except DecodeError as error:
        raise RulesError(f"not GatewayRules: {error}") from None
    return rules_from_dict(json_format.MessageToDict(message, preserving_proto_field_name=True))
