"""What one stream wants of one resource type: a pure machine, no I/O.

https://www.envoyproxy.io/docs/envoy/latest/api-docs/xds_protocol, "How the client specifies what resources to return".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from xds_server.problems import LimitExceededError

WILDCARD: Final = "*"
_NOTHING: Final[frozenset[str]] = frozenset()


class Mode(Enum):
    """Whether a subscription covers everything, and why."""

    # No request of this type has come.
    SILENT = "silent"
    # No request has ever named anything: everything is wanted, as if by "*".
    LEGACY = "legacy"
    # "*" was named.
    WILDCARD = "wildcard"
    # Only names.
    NAMED = "named"


_COVERS_ALL: Final = (Mode.LEGACY, Mode.WILDCARD)


@dataclass(frozen=True, slots=True)
class Change:
    """What a request changed. "*" among the names stands for everything.

    Attributes:
        asked: names to be answered even if the client was told before: it may have forgotten them.
        released: names that the client explicitly wants no more.
    """

    asked: frozenset[str] = _NOTHING
    released: frozenset[str] = _NOTHING


class Subscription:
    """The names that one stream wants of one type.

    Args:
        max_names: the most names that a client may subscribe to.
    """

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self.mode = Mode.SILENT
        self.names: frozenset[str] = _NOTHING

    @property
    def covers_all(self) -> bool:
        """Is everything wanted, whatever its name?"""
        return self.mode in _COVERS_ALL

    def wants(self, name: str) -> bool:
        """Is this resource wanted?"""
        return (self.covers_all and name != WILDCARD) or name in self.names

    def replace(self, names: Iterable[str]) -> Change:
        """State of the world: every request brings the whole list.

        Raises:
            LimitExceededError: the list is too long.
        """
        listed = frozenset(names)
        self._bound(listed)
        if not listed and self.mode in (Mode.SILENT, Mode.LEGACY):
            first = self.mode is Mode.SILENT
            self.mode = Mode.LEGACY
            return Change(asked=frozenset({WILDCARD}) if first else _NOTHING)
        before, covered_all = self.names, self.covers_all
        self.names = listed - {WILDCARD}
        # Once a name was given, an empty list means nothing at all.
        self.mode = Mode.WILDCARD if WILDCARD in listed else Mode.NAMED
        # What the wildcard covered, the client has.
        asked = _NOTHING if covered_all else self.names - before
        released = before - self.names
        if self.covers_all and not covered_all:
            asked |= {WILDCARD}
        if covered_all and not self.covers_all:
            released |= {WILDCARD}
        return Change(asked, released)

    def narrow(self, names: Iterable[str]) -> Change:
        """State of the world, a request that was overtaken by our last response: take only what it no longer lists.

        Another request with the whole list is on its way. But names may leave in this one and be back in that one,
        and then the client, which has dropped their resources, needs them again.
        """
        if self.mode is not Mode.NAMED:
            return Change()
        released = self.names.difference(names)
        self.names -= released
        return Change(released=released)

    def update(self, subscribe: Iterable[str], unsubscribe: Iterable[str]) -> Change:
        """Delta: a request brings what comes and what goes.

        Raises:
            LimitExceededError: together the names are too many.
        """
        coming, going = frozenset(subscribe), frozenset(unsubscribe)
        started = self.mode is not Mode.SILENT
        # The implicit wildcard outlives later names; only unsubscribing "*" ends it.
        if not started and not coming:
            self.mode = Mode.LEGACY
            coming_for_all = frozenset({WILDCARD})
        else:
            coming_for_all = coming & {WILDCARD}
            if coming_for_all:
                self.mode = Mode.WILDCARD
            elif not started:
                self.mode = Mode.NAMED
        names = self.names | (coming - {WILDCARD})
        # A name that never was subscribed may be unsubscribed: it changes nothing.
        released = names & going
        names -= going
        self._bound(names)
        self.names = names
        if WILDCARD in going and self.covers_all:
            self.mode = Mode.NAMED
            released |= {WILDCARD}
        return Change(((coming - {WILDCARD}) | coming_for_all) - going, released)

    def _bound(self, names: frozenset[str]) -> None:
        if len(names) > self._max_names:
            raise LimitExceededError(f"{len(names)} names in one subscription, allowed are {self._max_names}")
