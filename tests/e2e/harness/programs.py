"""Commands of ours, run to their end or in the background."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recursant.supervise import launch
from recursant.supervise.plan import recursant_command

STOP_S = 40.0
# More than any command takes; only a hang takes this long.
COMMAND_S = 60.0


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    exit_code: int
    out: str
    err: str


def recursant(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = COMMAND_S
) -> Done:
    """Run a command of ours to its end, wide enough that no line is folded."""
    done = subprocess.run(
        recursant_command(*arguments),
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Program:
    """A command of ours in the background, its output in files; killed with the test process at the latest."""

    def __init__(
        self,
        directory: Path,
        name: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = recursant_command(),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.out = directory / f"{name}.out"
        self.err = directory / f"{name}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *command, *arguments],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """Standard output so far."""
        return self.out.read_text()

    @property
    def errors(self) -> str:
        """Standard error so far."""
        return self.err.read_text()

    def send(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, timeout: float = STOP_S) -> int:
        """Wait for its end; the exit status."""
        return self.process.wait(timeout)

    def kill(self) -> int:
        """SIGKILL; the exit status."""
        self.process.kill()
        return self.process.wait()

    def end(self) -> int:
        """SIGTERM, and SIGKILL if that does not help in time."""
        self.send(signal.SIGTERM)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
