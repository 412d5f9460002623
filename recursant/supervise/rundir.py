"""The run directory: who runs here, what was started where, logs, sockets."""

import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

ENDPOINTS_FILE: Final = "endpoints.json"
CONFIG_FILE: Final = "recursant.yaml"
BOOTSTRAP_FILE: Final = "envoy.yaml"
COUNTS_FILE: Final = "inflight"
# Of the names of what belongs to the queue that the processes share; beside the counts.
QUEUE_SUFFIX: Final = "-queue"
# `sockaddr_un.sun_path` holds 108 bytes on Linux, the closing NUL included; names of sockets need some of them.
_MAX_SOCKET_DIRECTORY: Final = 107 - len("/extproc-99.sock")


class RunDirectoryError(Exception):
    """The run directory cannot be used. The text is one line for the operator."""


class RunDirectory:
    """A folder for one `recursant up`, for its owner's eyes only: addresses in it may hold passwords."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.logs = self.path / "logs"
        self.redis = self.path / "redis"
        self.endpoints = self.path / ENDPOINTS_FILE
        self.config = self.path / CONFIG_FILE
        self.bootstrap = self.path / BOOTSTRAP_FILE
        self.counts = self.path / COUNTS_FILE
        self._lock: int | None = None

    def claim(self) -> None:
        """Create it and hold it until `release()`, or until this process ends in whatever way.

        Raises:
            RunDirectoryError: another `recursant up` holds it, or it cannot be written.
        """
        try:
            for folder in (self.path, self.logs, self.redis):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise RunDirectoryError(f"cannot use the run directory {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 32).decode(errors="replace").strip()
            os.close(lock)
            raise RunDirectoryError(
                f"`recursant up` (pid {holder or 'unknown'}) already runs in {self.path}: "
                "stop it, or choose another folder with --run-dir"
            ) from error
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock
        self.endpoints.unlink(missing_ok=True)  # Of a run that was killed hard.
        # Of a run that may have had another number of processes.
        self.counts.unlink(missing_ok=True)
        self.counts.with_name(COUNTS_FILE + QUEUE_SUFFIX).unlink(missing_ok=True)

    def release(self) -> None:
        """Let another `recursant up` have it; logs and configuration stay for reading."""
        if self._lock is None:
            return
        self.endpoints.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None

    def write(self, path: Path, text: str) -> None:
        """Write a file of it so that readers see the old or the new text, never a part, and only its owner reads it."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        temporary.replace(path)

    def socket_directory(self) -> Path:
        """A folder for Unix sockets: this one, or a short one in the temporary folder when this one's path is too long.

        Raises:
            RunDirectoryError: the short one belongs to somebody else.
        """
        if len(os.fsencode(self.path)) <= _MAX_SOCKET_DIRECTORY:
            return self.path
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        short = Path(tempfile.gettempdir()) / f"recursant-{os.getuid()}-{digest}"
        short.mkdir(mode=0o700, exist_ok=True)
        found = short.lstat()
        # The temporary folder is everybody's: whoever owns the socket's folder can take our place.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise RunDirectoryError(f"{short} is not ours alone: remove it, or choose a shorter --run-dir")
        return short
