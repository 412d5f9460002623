"""Processes as data: what to run, when it is ready, how it ends, and what can be told about it."""

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from recursant.supervise.probe import Probe
from recursant.supervise.restart import SERVICE, RestartPolicy


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to keep alive.

    Attributes:
        name: unique; names the log file too.
        command: program and arguments.
        ready: asked until it passes, after every start.
        address: where it listens, for people.
        after: names of processes that must be ready before this one starts; they are stopped after it.
        env: added to our own environment.
        restart: when it is started again after it died; None: never.
        quiesce: run before it is told to stop, to let running work end. It bounds itself in time.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    name: str
    command: tuple[str, ...]
    ready: Probe
    address: str = ""
    after: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    restart: RestartPolicy | None = SERVICE
    quiesce: Callable[[], Awaitable[None]] | None = None
    grace_s: float = 8.0


@dataclass(frozen=True, slots=True)
class Started:
    """It runs, and is not ready yet."""

    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Its probe passed, `after_s` seconds after its start. `again`: it had been ready before."""

    name: str
    pid: int
    after_s: float
    again: bool


@dataclass(frozen=True, slots=True)
class Died:
    """It ended, and nobody asked it to. `restart_in_s`: seconds to the next start, None if there is none."""

    name: str
    pid: int
    exit_status: int
    restart_in_s: float | None


@dataclass(frozen=True, slots=True)
class Stopped:
    """It ended as it was told to."""

    name: str


Event = Started | Ready | Died | Stopped


def describe_exit(status: int) -> str:
    """An exit status as `subprocess` gives it, for people: `exit code 1`, `signal 9 (SIGKILL)`."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:  # A real-time signal has no name.
        return f"signal {-status}"
