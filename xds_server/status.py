"""Where a client stands, for people and for metrics; and what happened on its stream, for logs and counters."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class SyncState(StrEnum):
    """How far a client follows what it wants of one type."""

    # It accepted everything that we have for it.
    SYNCED = "SYNCED"
    # It has not answered the last push, and need not have yet.
    PENDING = "PENDING"
    # It has not answered for longer than it may. Envoy withholds its answer while a cluster cannot warm.
    STALE = "STALE"
    # It refused something that we still hold for right.
    NACK = "NACK"


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """One type on one stream.

    Attributes:
        type_url: the type.
        state: see `SyncState`.
        sent: version of the last response; empty before the first.
        accepted: version of the last response that was accepted.
        reason: why it was refused, in the client's words; empty unless the state is NACK.
        refused: names of the refused resources.
        last_seen: the caller's clock, in seconds, at the client's last request of this type.
    """

    type_url: str
    state: SyncState
    sent: str
    accepted: str
    reason: str
    refused: tuple[str, ...]
    last_seen: float


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """One stream.

    Attributes:
        node_id: as the client calls itself; empty before its first request.
        protocol: "delta" or "sotw".
        since: the caller's clock, in seconds, when the stream began.
        types: every type that it has asked for, in push order.
    """

    node_id: str
    protocol: str
    since: float
    types: tuple[TypeStatus, ...]


@dataclass(frozen=True, slots=True)
class Pushed:
    """A response was made."""

    type_url: str
    version: str
    resources: int
    removed: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The client sent a NACK."""

    type_url: str
    version: str
    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Overdue:
    """The client has not answered a push for the whole ACK timeout. Said once for each silence."""

    type_url: str
    version: str
    waited_s: float


Event: TypeAlias = Pushed | Refused | Overdue
