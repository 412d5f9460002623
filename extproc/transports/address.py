"""Listening addresses, and the care that Unix sockets need: stale files, permissions, removal."""

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

# `sockaddr_un.sun_path` holds 108 bytes on Linux, the closing NUL included.
_MAX_UNIX_PATH = 107
# Whoever can connect decides where prompts go: the owner alone.
_SOCKET_UMASK = 0o177


class AddressError(Exception):
    """A listening address that cannot be parsed or bound. The text is for the operator."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """`unix:/path`."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """`host:port`; IPv6 in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> UnixAddress | TcpAddress:
    """Parse `unix:/path`, `host:port` or `[v6]:port`.

    Raises:
        AddressError: it is none of them.
    """
    if text.startswith("unix:"):
        raw = text.removeprefix("unix:")
        if not raw.startswith("/"):
            raise AddressError(f"{text!r}: a Unix socket needs an absolute path, as in unix:/run/extproc.sock")
        if len(os.fsencode(raw)) > _MAX_UNIX_PATH:
            raise AddressError(f"{text!r}: the path of a Unix socket has at most {_MAX_UNIX_PATH} bytes")
        return UnixAddress(Path(raw))
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise AddressError(f"{text!r}: expected unix:/path or host:port")
    if ":" in bare and bare == host:
        raise AddressError(f"{text!r}: an IPv6 address needs brackets, as in [::1]:9002")
    return TcpAddress(bare, int(port))


def claim_unix_path(path: Path) -> None:
    """Make `path` free to bind: create its folder, remove a socket file that nobody listens on.

    Raises:
        AddressError: somebody listens there, it is not a socket, or the system refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise AddressError(f"unix:{path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise AddressError(f"unix:{path}: the file exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A full backlog must not block the start: that socket is in use as well.
        probe.setblocking(False)
        outcome = probe.connect_ex(str(path))
    if outcome in (0, errno.EAGAIN):
        raise AddressError(f"unix:{path}: in use, another process listens there")
    if outcome != errno.ECONNREFUSED:
        raise AddressError(f"unix:{path}: {os.strerror(outcome)}")
    path.unlink(missing_ok=True)


class SocketUmask:
    """While active, a socket file is created for its owner alone; without it, there is a moment for others.

    The umask belongs to the whole process: hold this around the bind only.
    """

    def __enter__(self) -> None:
        self._before = os.umask(_SOCKET_UMASK)

    def __exit__(self, *_: object) -> None:
        os.umask(self._before)


@dataclass(frozen=True, slots=True)
class SocketFile:
    """A socket file as we made it, so that we remove ours and never a successor's."""

    path: Path
    inode: tuple[int, int]

    @classmethod
    def of(cls, path: Path) -> "SocketFile":
        """The file now at `path`."""
        found = path.lstat()
        return cls(path, (found.st_dev, found.st_ino))

    def remove(self) -> None:
        """Remove it if it is still ours."""
        try:
            found = self.path.lstat()
        except FileNotFoundError:
            return
        if (found.st_dev, found.st_ino) == self.inode:
            self.path.unlink(missing_ok=True)
