"""Where others reach this machine, for workers that nobody told."""

import asyncio
import ipaddress
import logging
import socket
from typing import Final
from urllib.parse import urlsplit

from recursant.fleet.address import join_address

# Between two tries. Seconds.
RETRY_S: Final = 1.0
# What a URL without a port means.
_PORTS: Final = {"redis": 6379, "rediss": 6379, "http": 80, "https": 443}


async def complete_address(address: str, control_plane: str, log: logging.Logger) -> str:
    """The address with its host filled in where it is left out (":8000"): the one by which we reach the control plane.

    Waits for as long as there is no way there.

    Args:
        address: "host:port" or ":port".
        control_plane: the URL of its Redis or its API.
        log: where to say that it waits.
    """
    if not address.startswith(":"):
        return address
    said = False
    while True:
        try:
            return join_address(await _own_ip(control_plane), int(address[1:]))
        except OSError as error:
            if not said:
                log.warning("no way to the control plane yet, trying on: %s", error)
            said = True
            await asyncio.sleep(RETRY_S)


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
