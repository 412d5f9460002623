"""What an edit of the configuration file comes to: live now, waiting for a restart, or refused and why. Pure.

An edit counts as a whole. One mistake anywhere in the file, and nothing of it is used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from recursant.config.live import live_changes, live_onto, needs_restart
from recursant.config.model import Config
from recursant.config.problem import ConfigError, Problem

_MOST_NAMED: Final = 12


class Outcome(StrEnum):
    """What happened to an edit; also the label of the metric."""

    APPLIED = "applied"
    # Only what a restart puts in force differs.
    WAITS = "needs_restart"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of the file.

    Attributes:
        outcome: what happened to it.
        running: the configuration in force from now on.
        live: the fields that changed with it.
        restart: the fields that differ from the start and wait for a restart.
        problems: why it is refused.
    """

    outcome: Outcome
    running: Config
    live: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def lines(self, file: str) -> list[str]:
        """For the operator, in words; `file` is its name. Names fields, never values of a file that is good."""
        if self.outcome is Outcome.REFUSED:
            return [f"{file}: the edit is refused, the configuration before it stays", *map(str, self.problems)]
        lines = []
        if self.live:
            lines.append(f"{file}: in force now: {_some(self.live)}")
        if self.restart:
            lines.append(f"{file}: needs a restart: {_some(self.restart)}")
        return lines or [f"{file}: the edit changes nothing"]


class Reloader:
    """Holds the running configuration and takes edits.

    Args:
        running: the configuration in force, with whatever was merged into the file at the start.
        started: the file as it was at the start; None: as it is at the first good look.
    """

    def __init__(self, running: Config, started: Config | None) -> None:
        self._running = running
        self._started = started

    @property
    def running(self) -> Config:
        """The configuration in force."""
        return self._running

    def take(self, read: Config | ConfigError) -> Edit:
        """The file was read, or could not be."""
        if isinstance(read, ConfigError):
            return Edit(Outcome.REFUSED, self._running, problems=read.problems)
        if self._started is None:
            self._started = read
        live = live_changes(self._running, read)
        restart = needs_restart(self._started, read)
        self._running = live_onto(self._running, read)
        outcome = Outcome.APPLIED if live else Outcome.WAITS if restart else Outcome.UNCHANGED
        return Edit(outcome, self._running, live, restart)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
