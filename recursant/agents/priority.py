"""Priority classes (SPEC E1, DESIGN §9): Critical > High > Normal > Low."""

from enum import IntEnum
from typing import Final


class PriorityClass(IntEnum):
    """How urgent a request is; a larger value goes first."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3

    @property
    def label(self) -> str:
        """The lower-case name that headers, metrics and policies use."""
        return _LABELS[self]

    @property
    def engine_priority(self) -> int:
        """The number for vLLM's own `priority` field, where smaller runs sooner."""
        return -int(self)


# Looked up for every request, and an enumeration takes long to give its names.
_LABELS: Final = tuple(each.name.lower() for each in PriorityClass)

# Smallest policy priority of each class (DESIGN §9): >= 15 Critical, 8-14 High, 4-7 Normal, <= 3 Low.
CRITICAL_FROM: Final = 15
HIGH_FROM: Final = 8
NORMAL_FROM: Final = 4


def class_of_priority(priority: int) -> PriorityClass:
    """The class that follows from a policy's `priority` when the policy names no class of its own."""
    if priority >= CRITICAL_FROM:
        return PriorityClass.CRITICAL
    if priority >= HIGH_FROM:
        return PriorityClass.HIGH
    if priority >= NORMAL_FROM:
        return PriorityClass.NORMAL
    return PriorityClass.LOW
