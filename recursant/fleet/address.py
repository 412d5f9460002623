"""Worker addresses: "host:port", "1.2.3.4:port", "[v6]:port"."""

import ipaddress
from functools import lru_cache
from typing import Final

_MAX_HOST: Final = 253  # RFC 1035: a name in text form


# Every beat of every worker asks, always for the same few thousand addresses.
@lru_cache(maxsize=16_384)
def split_address(address: str) -> tuple[str, int]:
    """The host (IPv6 without its brackets) and the port of an address that somebody can dial.

    Raises:
        ValueError: it is not "host:port", or nobody can dial it.
    """
    host, separator, digits = address.rpartition(":")
    if not separator or not host:
        raise ValueError(f'expected "host:port", got {address[:300]!r}')
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits[:6]) <= 65_535):
        raise ValueError(f"port must be 1 to 65535, got {digits[:20]!r}")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    _check_host(host, bracketed=bracketed)
    return host, int(digits)


def join_address(host: str, port: int) -> str:
    """The address of a host, given with or without brackets, and a port."""
    bare = bare_host(host)
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def bare_host(host: str) -> str:
    """The host without the brackets that IPv6 addresses wear in URLs."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def as_ip(host: str) -> str | None:
    """The host in the canonical form of an IP address; None where it is a name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _check_host(host: str, *, bracketed: bool) -> None:
    if not 1 <= len(host) <= _MAX_HOST:
        raise ValueError(f"host must have 1 to {_MAX_HOST} characters, got {len(host)}")
    if bracketed or ":" in host:
        if not bracketed:
            raise ValueError(f'an IPv6 address needs brackets ("[::1]:8000"), got {host!r}')
        try:
            ip = ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"not an IPv6 address: {host!r}") from None
        # A zone names an interface of the worker's own machine; it means nothing on Envoy's.
        if ip.scope_id is not None:
            raise ValueError(f"an IPv6 address must not have a zone, got {host!r}")
    if not all(char.isascii() and (char.isalnum() or char in "-_.:") for char in host):
        raise ValueError(f"not a host name: {host!r}")
    # "0.0.0.0" and "::" say where to listen, not where to dial.
    if (ip_text := as_ip(host)) and ipaddress.ip_address(ip_text).is_unspecified:
        raise ValueError(f"{host} is an address to listen on; say the one that clients reach")
