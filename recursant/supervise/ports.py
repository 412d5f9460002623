"""TCP ports: are they free, who has them, and which ones may be taken."""

import contextlib
import errno
import itertools
import random
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Ports from here up to where the kernel takes the ports of outgoing connections. One of those could be taken, as
# somebody's source port, while a child of ours is away between death and restart.
_FIRST_FREE_PORT: Final = 10_000
_EPHEMERAL_DEFAULT: Final = 32_768
_EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LAST_PORT: Final = 65_535
_RANGE_TRIES: Final = 1_000
_WILDCARDS: Final = ("", "0.0.0.0", "::")
_LISTENING: Final = "0A"  # Linux, include/net/tcp_states.h


class PortError(Exception):
    """A port that cannot be listened on. The text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Who wants to listen where.

    Attributes:
        who: for people: "the gateway".
        option: how to choose another port: "--gateway-port".
    """

    who: str
    host: str
    port: int
    option: str


def check_bindings(bindings: Sequence[Binding]) -> None:
    """See that every port is free now and wanted once.

    Raises:
        PortError: the first that is not, with its holder where that can be found out.
    """
    for index, binding in enumerate(bindings):
        for other in bindings[:index]:
            if binding.port == other.port and _overlap(binding.host, other.host):
                raise PortError(
                    f"port {binding.port} is given to {other.who} and to {binding.who}: change {binding.option}"
                )
    for binding in bindings:
        _check_free(binding)


def free_ports(host: str, count: int, *, taken: Iterable[int] = ()) -> list[int]:
    """Choose ports that nobody listens on now, and that no outgoing connection is given.

    Raises:
        PortError: none can be found.
    """
    last = _ephemeral_start() - 1
    if last - _FIRST_FREE_PORT < 1_000:  # The kernel's own range leaves no room: share it.
        last = _LAST_PORT
    avoid = set(taken)
    # From a random place on, so that two programs that look at the same time hardly meet.
    start = random.randint(_FIRST_FREE_PORT, last)
    chosen: list[int] = []
    for port in itertools.chain(range(start, last + 1), range(_FIRST_FREE_PORT, start)):
        if len(chosen) == count:
            break
        if port not in avoid and _bind_error(host, port) is None:
            chosen.append(port)
    if len(chosen) < count:
        raise PortError(f"no free port on {host}")
    return chosen


def free_range(host: str, count: int, *, taken: Iterable[int] = ()) -> int:
    """Choose the first of `count` ports in a row, each as `free_ports` would choose it.

    Raises:
        PortError: none can be found.
    """
    avoid = set(taken)
    for _ in range(_RANGE_TRIES):
        [first] = free_ports(host, 1, taken=avoid)
        wanted = range(first, first + count)
        if wanted[-1] <= _LAST_PORT and all(
            port not in avoid and _bind_error(host, port) is None for port in wanted[1:]
        ):
            return first
        avoid.add(first)
    raise PortError(f"no {count} free ports in a row on {host}")


def holder_of(port: int) -> str | None:
    """The process that listens on the port, as `nginx (pid 123)`; None if it cannot be found out."""
    inodes = {
        fields[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in _rows(Path(table))
        if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port
    }
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        # Processes end while we look, and those of others cannot be looked into.
        with contextlib.suppress(OSError):
            if any(str(descriptor.readlink()) in sockets for descriptor in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return None


def _check_free(binding: Binding) -> None:
    error = _bind_error(binding.host, binding.port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        holder = holder_of(binding.port)
        by = f" by {holder}" if holder else ""
        raise PortError(
            f"port {binding.port} for {binding.who} is in use{by}: stop that, or choose another with {binding.option}"
        )
    reason = error.strerror or str(error)
    raise PortError(f"cannot listen on {binding.host}:{binding.port} for {binding.who}: {reason}")


def _bind_error(host: str, port: int) -> OSError | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: connections that linger in TIME_WAIT do not hold the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


def _overlap(one: str, other: str) -> bool:
    return one == other or one in _WILDCARDS or other in _WILDCARDS


def _ephemeral_start() -> int:
    try:
        return int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError):
        return _EPHEMERAL_DEFAULT


def _rows(table: Path) -> list[list[str]]:
    try:
        return [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []
