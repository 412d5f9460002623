"""When a process that died is started again."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Delays grow from death to death and are bounded; a process that ran well starts over. All in seconds.

    Attributes:
        first_delay_s: before the first restart.
        max_delay_s: the longest delay.
        factor: from one delay to the next.
        stable_after_s: one that ran this long is no longer held to its past.
    """

    first_delay_s: float = 0.2
    max_delay_s: float = 10.0
    factor: float = 2.0
    stable_after_s: float = 30.0


SERVICE: Final = RestartPolicy()
# A worker that dies must be seen to leave the fleet before it comes back: three beats of 200 ms, and some air for
# whoever watches. A real vLLM needs far longer to load its model.
WORKER: Final = RestartPolicy(first_delay_s=2.5)


class Backoff:
    """The delays of one process."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._next_s = policy.first_delay_s

    def delay_after(self, ran_s: float) -> float:
        """Seconds to wait before the next start, for a process that has just died after `ran_s` seconds."""
        if ran_s >= self._policy.stable_after_s:
            self._next_s = self._policy.first_delay_s
        delay = self._next_s
        self._next_s = min(self._policy.max_delay_s, self._next_s * self._policy.factor)
        return delay
