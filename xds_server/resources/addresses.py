"""Addresses as the configuration writes them. Light: the command renders the bootstrap without loading xDS messages."""

from dataclasses import dataclass
from ipaddress import ip_address


@dataclass(frozen=True, slots=True)
class Address:
    """A Unix socket (`path`), or a host and a port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def needs_dns(self) -> bool:
        """Is the host a name?"""
        return bool(self.host) and not is_ip(self.host)


def parse_address(text: str) -> Address:
    """Read `unix:/path` or `host:port` (`[v6]:port`).

    Raises:
        ValueError: it is neither.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if path:
            return Address(path=path)
    else:
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if host and port.isdigit() and 0 < int(port) < 65_536:
            return Address(host=host, port=int(port))
    raise ValueError(f"{text!r} is neither unix:/path nor host:port")


def is_ip(host: str) -> bool:
    """Is it an address rather than a name?"""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def reachable(host: str) -> str:
    """Where to dial a server that listens on `host`: on this machine, if it listens on all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
