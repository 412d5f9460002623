"""Where others reach this machine, for workers that nobody told."""

import asyncio
import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit

from recursant.fleet.address import join_address

# What a URL without a port means.
_PORTS: Final = {"redis": 6379, "rediss": 6379, "http": 80, "https": 443}


async def complete_address(address: str, control_plane: str) -> str:
    """The address with its host filled in where it is left out (":8000"): the one by which we reach the control plane.

    Args:
        address: "host:port" or ":port".
        control_plane: the URL of its Redis or its API.

    Raises:
        OSError: there is no way there now; try again later.
    """
    if not address.startswith(":"):
        return address
    return join_address(await _own_ip(control_plane), int(address[1:]))


async def _own_ip(control_plane: str) -> str:
    parts = urlsplit(control_plane)
    if not parts.hostname:
        # A Unix socket: the control plane is on this machine.
        return "127.0.0.1"
    port = parts.port or _PORTS.get(parts.scheme, 80)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, peer = found[0]
    with socket.socket(family, kind, protocol) as probe:
        # Connecting a datagram socket sends nothing: it only asks for the way.
        probe.connect(peer)
        ip = ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)
