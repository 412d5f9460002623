"""What ends a stream or refuses a snapshot.

XdsError
  ProtocolError          the client broke the protocol: INVALID_ARGUMENT
  LimitExceededError     the client asked for too much: RESOURCE_EXHAUSTED
  InconsistentSnapshotError   resources refer to what does not exist
"""

from collections.abc import Sequence


class XdsError(Exception):
    """Root of this package's errors."""


class ProtocolError(XdsError):
    """The client broke the protocol. Its stream ends."""


class LimitExceededError(XdsError):
    """The client asked for more than it may. Its stream ends."""


class InconsistentSnapshotError(XdsError):
    """Resources refer to others that do not exist.

    Attributes:
        problems: one sentence for each.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)
