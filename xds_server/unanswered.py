"""The responses of one type that a client has not answered yet, by nonce."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

# A client that reads but never answers must not make us remember for ever: beyond this the oldest are forgotten.
MAX_UNANSWERED: Final = 64


@dataclass(slots=True)
class Push:
    """One response on its way.

    Attributes:
        version: as the response says.
        told: versions by name.
        absent: names that it calls absent.
        sent_at: the caller's clock, in seconds.
    """

    version: str
    told: Mapping[str, str]
    absent: Sequence[str]
    sent_at: float


class Unanswered:
    """Open responses, oldest first, and the alarm about a client that is silent for too long."""

    def __init__(self) -> None:
        self._pushes: dict[str, Push] = {}
        self._alarmed = False

    def __len__(self) -> int:
        return len(self._pushes)

    def add(self, nonce: str, push: Push) -> None:
        """A response was made."""
        self._pushes[nonce] = push
        if len(self._pushes) > MAX_UNANSWERED:
            oldest, second = list(self._pushes)[:2]
            # The silence began with the oldest.
            self._pushes[second].sent_at = self._pushes.pop(oldest).sent_at

    def get(self, nonce: str) -> Push | None:
        """An open response; None for an unknown, answered or forgotten nonce."""
        return self._pushes.get(nonce)

    def pop(self, nonce: str) -> Push:
        """It was answered.

        Raises:
            KeyError: it is not open.
        """
        push = self._pushes.pop(nonce)
        self._alarmed = self._alarmed and bool(self._pushes)
        return push

    def before(self, nonce: str) -> Iterator[str]:
        """The nonces of the open responses that are older than this one."""
        for older in list(self._pushes):
            if older == nonce:
                return
            yield older

    @property
    def oldest(self) -> Push | None:
        """The response that is open the longest."""
        return next(iter(self._pushes.values()), None)

    def overdue_at(self, timeout_s: float) -> float | None:
        """When the silence is to be said; None where nothing is open or it was said already."""
        oldest = self.oldest
        return None if oldest is None or self._alarmed else oldest.sent_at + timeout_s

    def alarm(self) -> None:
        """The silence was said: once is enough until the client speaks again."""
        self._alarmed = True
