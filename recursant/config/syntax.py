"""Checks of single values that a type and a range cannot express. Each returns the value or raises ValueError."""

import ipaddress
import os
import re
from typing import Final
from urllib.parse import urlsplit

# `sockaddr_un.sun_path` holds 108 bytes on Linux, the closing NUL included.
_MAX_UNIX_PATH: Final = 107
_MAX_HOST: Final = 253
_MAX_WORKER_ID: Final = 128
_MAX_NAME: Final = 256
# RFC 1123, and the underscore that container networks allow.
_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_REDIS_SCHEMES: Final = ("redis", "rediss", "unix")


def check_worker_id(value: str) -> str:
    """The id of a worker: it becomes a header value and a metric label."""
    if not (1 <= len(value) <= _MAX_WORKER_ID and value.isascii() and value.isprintable() and " " not in value):
        raise ValueError("not allowed")
    return value


def check_name(value: str) -> str:
    """The name of a model or a family: names are told to Envoy in one line, with commas between them."""
    if not (1 <= len(value) <= _MAX_NAME and value.isprintable() and "," not in value):
        raise ValueError("not allowed")
    return value


def check_host(value: str) -> str:
    """A host name or an IP address, without scheme, port or brackets."""
    if (ip := _as_ip(value)) is not None:
        # A zone names an interface of one machine; it means nothing on another.
        if isinstance(ip, ipaddress.IPv6Address) and ip.scope_id is not None:
            raise ValueError("an IPv6 address must not have a zone")
        return value
    labels = value.removesuffix(".").split(".")
    if len(value) > _MAX_HOST or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise ValueError("not a host name and not an IP address; give it without scheme, port and brackets")
    return value


def check_dialled_host(value: str) -> str:
    """A host that somebody can connect to."""
    if (ip := _as_ip(value)) is not None and ip.is_unspecified:
        raise ValueError("an address to listen on; name the one that others reach")
    return value


def check_listen_address(value: str) -> str:
    """`unix:/absolute/path`, `host:port` or `[IPv6]:port`."""
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        if not path.startswith("/"):
            raise ValueError("the path of a Unix socket must be absolute")
        if len(os.fsencode(path)) > _MAX_UNIX_PATH:
            raise ValueError(f"the path of a Unix socket has at most {_MAX_UNIX_PATH} bytes")
        return value
    host, _, port = value.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535):
        raise ValueError("no port from 1 to 65535 at its end")
    bare = host.removeprefix("[").removesuffix("]")
    if (":" in bare) != (host != bare):
        raise ValueError("an IPv6 address needs brackets, nothing else may have them")
    check_host(bare)
    return value


def check_redis_url(value: str) -> str:
    """A URL of Redis. The error never repeats it: it may hold a password."""
    try:
        url = urlsplit(value)
        port_is_right = url.port is None or url.port > 0
    except ValueError:
        raise ValueError("not a URL") from None
    if url.scheme not in _REDIS_SCHEMES or not port_is_right:
        raise ValueError("not a URL of Redis")
    if url.scheme == "unix" and not url.path:
        raise ValueError("unix:// needs the path of the socket")
    if url.scheme != "unix" and not url.hostname:
        raise ValueError("the URL names no host")
    return value


def check_regex(value: str) -> str:
    """A regular expression that compiles."""
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


def check_some(value: tuple[str, ...]) -> tuple[str, ...]:
    """A list that is not empty."""
    if not value:
        raise ValueError("needs at least one entry")
    return value


def _as_ip(value: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(value)
    except ValueError:
        return None
