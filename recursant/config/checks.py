"""Checks between entries: ids given twice, references to what does not exist, addresses that collide.

They read the plain document, not the model, so that they also speak where some other value is wrong: whoever
corrects a file wants to hear everything at once. Whatever has the wrong type here is the model's to refuse.
"""

import ipaddress
from collections.abc import Iterator
from typing import Any, Final

from recursant.config.model import MAX_EXTPROC_PROCESSES, Config
from recursant.config.problem import Finding, Location, shown

# Paths that the gateway answers itself.
RESERVED_PATHS: Final = ("/healthz", "/readyz", "/v1/models")

_NAMES_SHOWN: Final = 20
_LAST_PORT: Final = 65_535
_LISTENERS: Final = (
    ("gateway", "host", "port"),
    ("gateway", "admin_host", "admin_port"),
    ("extproc", "metrics_host", "metrics_port"),
    ("xds", "host", "port"),
    ("xds", "metrics_host", "metrics_port"),
    ("api", "host", "port"),
)

Data = dict[str, Any]


def errors(data: Data) -> Iterator[Finding]:
    """What makes the document unusable."""
    yield from _repeated(data, "agents", "agent_id")
    yield from _repeated(data, "paths", "path")
    yield from _workers(data)
    yield from _paths(data)
    yield from _listen(data)
    yield from _processes(data)


def warnings(data: Data) -> Iterator[Finding]:
    """What is doubtful and perhaps meant so."""
    yield from _unknown_workers(data)
    yield from _collisions(data)
    yield from _open_listeners(data)


def _repeated(data: Data, section: str, key: str) -> Iterator[Finding]:
    seen: dict[str, Location] = {}
    for location, entry in _entries(data, section):
        value = entry.get(key)
        if not isinstance(value, str):
            continue
        first = seen.setdefault(value, location)
        if first != location:
            yield Finding((*location, key), f"{key} given twice", shown(value), first=first)


def _workers(data: Data) -> Iterator[Finding]:
    ids: dict[str, Location] = {}
    addresses: dict[tuple[str, int], Location] = {}
    for location, entry in _entries(data, "workers"):
        address = _address(entry.get("host"), entry.get("port", 8000))
        if address is not None and (first := addresses.setdefault(address, location)) != location:
            text = shown(f"{address[0]}:{address[1]}")
            yield Finding((*location, "host"), "worker address given twice", text, first=first)
        given = entry.get("id")
        name = given or (f"{entry['host']}:{address[1]}" if address is not None else None)
        if isinstance(name, str) and (first := ids.setdefault(name, location)) != location:
            # Without an id of its own, the same id follows from the same address: said above.
            if given:
                yield Finding((*location, "id"), "worker id given twice", shown(name), first=first)
            elif address is not None and addresses[address] == location:
                yield Finding(location, "worker id given twice", shown(name), first=first)


def _paths(data: Data) -> Iterator[Finding]:
    agents = {entry.get("agent_id") for _, entry in _entries(data, "agents") if isinstance(entry.get("agent_id"), str)}
    known = _some(agents) or "none, there are no agents"
    for location, entry in _entries(data, "paths"):
        agent_id, path = entry.get("agent_id"), entry.get("path")
        if isinstance(agent_id, str) and agent_id not in agents:
            yield Finding((*location, "agent_id"), "no such agent", shown(agent_id), known)
        if path in RESERVED_PATHS:
            yield Finding((*location, "path"), "the gateway answers this path itself", shown(path))


def _listen(data: Data) -> Iterator[Finding]:
    extproc = _section(data, "extproc")
    listen = extproc.get("listen")
    if isinstance(listen, list):
        seen: dict[str, Location] = {}
        for index, address in enumerate(listen):
            location: Location = ("extproc", "listen", index)
            if isinstance(address, str) and (first := seen.setdefault(address, location)) != location:
                yield Finding(location, "address given twice", shown(address), first=first)
    defaults = Config().extproc
    shortest = extproc.get("message_timeout_ms", defaults.message_timeout_ms)
    longest = extproc.get("max_message_timeout_ms", defaults.max_message_timeout_ms)
    if _is_number(shortest) and _is_number(longest) and longest < shortest:
        yield Finding(
            ("extproc", "max_message_timeout_ms"),
            "shorter than extproc.message_timeout_ms",
            shown(longest),
            f"a whole number of at least {shortest}",
        )


def _processes(data: Data) -> Iterator[Finding]:
    extproc = _section(data, "extproc")
    defaults = Config().extproc
    processes = extproc.get("processes", defaults.processes)
    if not _is_number(processes) or not 1 < processes <= MAX_EXTPROC_PROCESSES:
        return
    listen = extproc.get("listen")
    # `recursant up` gives addresses of its own: without any here there is nothing to compare with.
    if isinstance(listen, list) and len(listen) < processes:
        yield Finding(
            ("extproc", "processes"),
            "each process needs an address of its own in extproc.listen",
            shown(processes),
            f"at most {len(listen)}, as many as extproc.listen has",
        )
    port = extproc.get("metrics_port", defaults.metrics_port)
    if _is_number(port) and port <= _LAST_PORT < port + processes - 1:
        yield Finding(
            ("extproc", "metrics_port"),
            f"the {processes} processes take ports from here on, and the last of them does not exist",
            shown(port),
            f"at most {_LAST_PORT - processes + 1}",
        )


def _unknown_workers(data: Data) -> Iterator[Finding]:
    exclusive: set[str] = set()
    for _, entry in _entries(data, "workers"):
        if entry.get("exclusive") is True:
            name = entry.get("id") or f"{entry.get('host')}:{entry.get('port', 8000)}"
            exclusive.add(str(name))
    for location, entry in _entries(data, "agents"):
        names = entry.get("workers")
        for index, name in enumerate(names if isinstance(names, list) else ()):
            if isinstance(name, str) and name not in exclusive:
                message = "no exclusive worker of this file has that id; one that reports itself may"
                yield Finding((*location, "workers", index), message, shown(name))


def _collisions(data: Data) -> Iterator[Finding]:
    defaults = Config().model_dump()
    seen: dict[tuple[str, int], str] = {}
    for section, host_key, port_key in _LISTENERS:
        given = _section(data, section)
        host = given.get(host_key, defaults[section][host_key])
        port = given.get(port_key, defaults[section][port_key])
        address = _address(host, port)
        if address is None:
            continue
        name = f"{section}.{port_key}"
        for more in range(_ports(section, given)):
            first = seen.setdefault((address[0], address[1] + more), name)
            if first != name:
                message = f"the same address as {first}; both on one machine cannot listen"
                yield Finding((section, port_key), message, shown(port))
                break


def _ports(section: str, given: Data) -> int:
    """How many ports a listener takes, from its own on."""
    processes = given.get("processes", 1) if section == "extproc" else 1
    return processes if _is_number(processes) and 1 <= processes <= MAX_EXTPROC_PROCESSES else 1


def _open_listeners(data: Data) -> Iterator[Finding]:
    for section, host_key, _ in _LISTENERS:
        host = _section(data, section).get(host_key)
        if isinstance(host, str) and not is_loopback(host):
            message = "other machines can reach this address, and neither TLS nor tokens protect it"
            yield Finding((section, host_key), message, shown(host))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`. Of names, only `localhost` counts."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


def _entries(data: Data, section: str) -> Iterator[tuple[Location, Data]]:
    entries = data.get(section)
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            yield (section, index), entry


def _section(data: Data, name: str) -> Data:
    section = data.get(name)
    return section if isinstance(section, dict) else {}


def _address(host: Any, port: Any) -> tuple[str, int] | None:
    """The address in one spelling, or None where it is none."""
    if not isinstance(host, str) or not _is_number(port):
        return None
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        return host.lower().removesuffix("."), port


def _some(names: set[Any]) -> str:
    """A few of the names, for people."""
    printable = sorted(name for name in names if name.isprintable())
    more = len(printable) - _NAMES_SHOWN
    return ", ".join(printable[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
