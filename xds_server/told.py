"""What a client was told of one resource, and what it lacks of a type."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from xds_server.resource import Resource

# The version of what does not exist.
ABSENT: Final = ""
# The version that a client holds after it refused one that is not to be served any more.
UNKNOWN: Final = "?"


class Verdict(Enum):
    """What the client said to the last version it was told."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


class Phase(Enum):
    """The two halves of a push."""

    # New and changed resources, what they refer to first.
    MAKE = "make"
    # What nothing refers to any more goes away.
    BREAK = "break"


@dataclass(slots=True)
class Told:
    """The last that the client was told of one name.

    Attributes:
        version: `ABSENT` where it was told that there is no such resource.
        verdict: its answer.
        resource: what was sent; None where we know of it by the client's word only.
        accepted: the last that it accepted on this stream.
    """

    version: str
    verdict: Verdict
    resource: Resource | None = None
    accepted: Resource | None = None

    @property
    def kept(self) -> Resource | None:
        """What the client runs until it is told of an end; None where we do not know, or it refused all it got."""
        return self.accepted if self.verdict is Verdict.REJECTED else self.resource


@dataclass(frozen=True, slots=True)
class Due:
    """What the client lacks.

    Attributes:
        upserts: resources to send.
        absent: names to be called absent.
        leaving: names whose removal waits for the second phase.
    """

    upserts: Sequence[Resource] = ()
    absent: Sequence[str] = ()
    leaving: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.upserts or self.absent or self.leaving)
