"""Refused resources: held until something changes, then tried once more apart from what was wrong.

A NACK names a whole response, not the resource at fault, and nothing of the response may have been applied. So
resources refused together form a group: as long as none of them changes, sending any again would only be refused again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping


class Holds:
    """The groups of one type on one stream. Bounded by the resources that were sent."""

    def __init__(self) -> None:
        self._groups: list[dict[str, str]] = []
        self._retries: deque[str] = deque()

    def __bool__(self) -> bool:
        """Is a retry waiting?"""
        return bool(self._retries)

    def hold(self, group: Mapping[str, str]) -> None:
        """These names were refused together at these versions."""
        self._groups.append(dict(group))

    def retry(self, names: Iterable[str]) -> None:
        """Their group has changed: they may have been refused for another's fault."""
        self._retries.extend(names)

    def release(self, current: Callable[[str], str | None]) -> list[str]:
        """Let those go whose group has changed; returns the names by which it did.

        Args:
            current: the version of a name that is both the one last sent and the one to be served; else None.
        """
        waiting = []
        changed: list[str] = []
        for group in self._groups:
            same = [name for name, version in group.items() if current(name) == version]
            if len(same) == len(group):
                waiting.append(group)
            else:
                self.retry(same)
                changed.extend(group.keys() - same)
        self._groups = waiting
        return changed

    def sent(self, names: Iterable[str]) -> None:
        """These are being sent again, so their next answer decides."""
        gone = set(names)
        kept = ({name: version for name, version in group.items() if name not in gone} for group in self._groups)
        self._groups = [group for group in kept if group]

    def take(self) -> str | None:
        """The next name to be tried again."""
        return self._retries.popleft() if self._retries else None

    def take_all(self) -> set[str]:
        """All names to be tried again."""
        names = set(self._retries)
        self._retries.clear()
        return names
