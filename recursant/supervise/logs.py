"""Log files of children: one each, the last run's kept beside it, bounded while running."""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

# A file over this many bytes starts anew; what it held is kept once more as NAME.log.1.
MAX_BYTES: Final = 32 * 1024 * 1024
_TAIL_BYTES: Final = 16 * 1024


class LogFile:
    """`DIRECTORY/NAME.log`, which children append to through a descriptor they inherit."""

    def __init__(self, directory: Path, name: str, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = directory / f"{name}.log"
        self._previous = directory / f"{name}.log.1"
        self._max_bytes = max_bytes
        self._run_began_at = 0

    def begin(self) -> None:
        """Keep the last run's file as `NAME.log.1` and begin a new one."""
        if self.path.exists():
            self.path.replace(self._previous)
        self.path.touch(mode=0o600)

    def open_for_child(self) -> BinaryIO:
        """Open it for appending, with a line that says when this start was. The caller closes it."""
        file = self.path.open("ab")
        file.write(f"--- started {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} ---\n".encode())
        file.flush()
        self._run_began_at = file.tell()
        return file

    def bound(self) -> None:
        """Start the file anew if it grew too large. Lines written meanwhile may be lost.

        The children hold its descriptor, so it is copied and cut; they append, so they go on at the beginning.
        """
        if self.path.stat().st_size > self._max_bytes:
            shutil.copyfile(self.path, self._previous)
            with self.path.open("r+b") as file:
                file.truncate(0)
            self._run_began_at = 0

    def last_line(self) -> str:
        """The last line that was written since the last start and is not empty; empty if there is none."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(self._run_began_at, size - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
