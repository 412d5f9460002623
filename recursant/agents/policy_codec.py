"""AgentPolicy as protobuf, for xDS and for Redis, and the hash that names its content."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError
from pydantic import ValidationError

from recursant.agents.policy import AgentPolicy
from recursant.v1.agent_policy_pb2 import AgentPolicy as AgentPolicyMessage

TYPE_URL: Final = "type.googleapis.com/recursant.v1.AgentPolicy"
# A policy that names a hundred workers has some kilobytes.
MAX_POLICY_BYTES: Final = 65_536

_VERSION_DIGITS: Final = 16
# What the model calls by a word of Python's, protobuf calls differently.
_MESSAGE_FIELDS: Final = {"class": "priority_class"}


class PolicyError(ValueError):
    """A policy that cannot be used. The text names every field at fault and the reason.

    Attributes:
        field: the first field at fault; empty where it is the whole.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def policy_to_dict(policy: AgentPolicy) -> dict[str, Any]:
    """The policy as JSON and YAML spell it, every field written out."""
    return policy.model_dump(mode="json", by_alias=True)


def content_version(policy: AgentPolicy) -> str:
    """The hash of what the policy means: the same wherever and whenever it was set, however it was written down."""
    canonical = json.dumps(policy_to_dict(policy), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_VERSION_DIGITS]


def to_message(policy: AgentPolicy) -> AgentPolicyMessage:
    """The message, with its version; who set it is the caller's to add."""
    message = AgentPolicyMessage()
    for name, value in policy_to_dict(policy).items():
        field = _MESSAGE_FIELDS.get(name, name)
        if isinstance(value, list):
            getattr(message, field).extend(value)
        elif value is not None:
            setattr(message, field, value)
    message.version = content_version(policy)
    return message


def encode(policy: AgentPolicy) -> bytes:
    """The bytes for xDS: the same for the same policy."""
    return to_message(policy).SerializeToString(deterministic=True)


def parse(data: bytes) -> AgentPolicyMessage:
    """The message in `data`, not yet validated.

    Raises:
        PolicyError: it is none, or too large.
    """
    if len(data) > MAX_POLICY_BYTES:
        raise PolicyError(f"the policy has {len(data)} bytes, allowed are {MAX_POLICY_BYTES}")
    try:
        return AgentPolicyMessage.FromString(data)
    except DecodeError as error:
        raise PolicyError(f"not an AgentPolicy: {error}") from None


def from_message(message: AgentPolicyMessage) -> AgentPolicy:
    """The policy that the message holds.

    Raises:
        PolicyError: some field of it is not allowed.
    """
    try:
        return AgentPolicy.model_validate(dict(_fields_of(message)))
    except ValidationError as error:
        found = [(".".join(map(str, each["loc"])), str(each["msg"])) for each in error.errors(include_url=False)]
        text = "; ".join(f"{field}: {reason}" for field, reason in found)
        raise PolicyError(f"policy {message.agent_id[:64]!r}: {text}", found[0][0]) from None


def decode(data: bytes) -> AgentPolicy:
    """The policy in `data`.

    Raises:
        PolicyError: it is none, or some field of it is not allowed.
    """
    return from_message(parse(data))


def _fields_of(message: AgentPolicyMessage) -> Iterator[tuple[str, Any]]:
    """What the sender said; the rest is the reader's default."""
    yield "agent_id", message.agent_id
    yield "workers", list(message.workers)
    for name, info in AgentPolicy.model_fields.items():
        key = info.alias or name
        field = _MESSAGE_FIELDS.get(key, key)
        if key not in ("agent_id", "workers") and message.HasField(field):
            yield key, getattr(message, field)
