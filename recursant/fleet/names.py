"""The workers' host names and the IP addresses that they have now."""

import ipaddress
from collections.abc import Collection, Sequence

from recursant.fleet.address import as_ip, join_address, split_address


class NameTable:
    """Which worker is at which host name, and where that is. Bounded by the workers it is told of."""

    def __init__(self) -> None:
        self._workers: dict[str, set[str]] = {}
        self._address_of: dict[str, str | None] = {}
        # Worker -> its address as said, its host where that is a name, and its port.
        self._said: dict[str, tuple[str, str | None, str, int]] = {}

    def names(self) -> list[str]:
        """The host names in use."""
        return list(self._workers)

    def workers(self, name: str) -> Collection[str]:
        """The workers at a host name in use."""
        return self._workers[name]

    def endpoint(self, worker_id: str, address: str) -> str | None:
        """`ip:port` of a worker that says it is at `address`; None while that has no IP address.

        Raises:
            ValueError: `address` is none. Reports and the configuration are checked before they come here.
        """
        said = self._said.get(worker_id)
        if said is None or said[0] != address:
            said = self._enter(worker_id, address)
        _, name, ip, port = said
        if name is None:
            return join_address(ip, port)
        found = self._address_of.get(name)
        return join_address(found, port) if found else None

    def answer(self, name: str, addresses: Sequence[str]) -> list[str]:
        """Take the addresses of a name; returns the workers there."""
        if name not in self._workers:
            return []
        self._address_of[name] = choose_address(self._address_of.get(name), addresses)
        return list(self._workers[name])

    def drop(self, worker_id: str) -> None:
        """Forget a worker, and its name with the last worker there."""
        said = self._said.pop(worker_id, None)
        if said is None or said[1] is None:
            return
        name = said[1]
        workers = self._workers[name]
        workers.discard(worker_id)
        if not workers:
            del self._workers[name]
            self._address_of.pop(name, None)

    def _enter(self, worker_id: str, address: str) -> tuple[str, str | None, str, int]:
        self.drop(worker_id)
        host, port = split_address(address)
        ip = as_ip(host)
        said: tuple[str, str | None, str, int] = (address, None, ip, port) if ip else (address, host, "", port)
        self._said[worker_id] = said
        if said[1] is not None:
            self._workers.setdefault(said[1], set()).add(worker_id)
        return said


def choose_address(current: str | None, addresses: Sequence[str]) -> str | None:
    """The one of a name's addresses to dial: the current one while it is still valid, else the first in order.

    IPv4 before IPv6, then by number: a name server hands them out in changing order, and every replica should choose
    the same.
    """
    # An address with a zone means nothing on another machine.
    usable = {ip for address in addresses if (ip := as_ip(address)) is not None and "%" not in ip}
    if current in usable:
        return current
    return min(usable, key=_order, default=None)


def _order(address: str) -> tuple[int, int]:
    ip = ipaddress.ip_address(address)
    return ip.version, int(ip)
