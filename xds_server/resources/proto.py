"""Small helpers around envoy-data-plane's typed messages: packing, durations, addresses, stable order.

betterproto2 writes a map in the order of its dict, so every dict that ends in a map is sorted here: the same input
gives the same bytes, and so the same version, on every replica.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import TypeAlias

import betterproto2
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.google.protobuf import Any, Struct

Json: TypeAlias = "str | bool | int | float | None | Sequence[Json] | Mapping[str, Json]"


def extension(name: str, message: betterproto2.Message) -> core.TypedExtensionConfig:
    """An extension by its name, with its configuration."""
    return core.TypedExtensionConfig(name=name, typed_config=Any.pack(message))


def packed(messages: Mapping[str, betterproto2.Message]) -> dict[str, Any]:
    """Messages by name, packed, in the order of their names."""
    return {name: Any.pack(messages[name]) for name in sorted(messages)}


def struct(fields: Mapping[str, Json]) -> Struct:
    """A Struct with its keys in order, at every level."""
    built: Struct = Struct.from_dict(_ordered(fields))
    return built


def _ordered(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_ordered(item) for item in value]
    return value


def metadata(namespace: str, fields: Mapping[str, Json]) -> core.Metadata:
    """Metadata of one namespace."""
    return core.Metadata(filter_metadata={namespace: struct(fields)})


def milliseconds(value: int) -> timedelta:
    """A duration."""
    return timedelta(milliseconds=value)


def from_ads(*, wait: bool = False) -> core.ConfigSource:
    """A resource of its own, over the same ADS stream.

    Args:
        wait: warm until it has come, however long that takes, rather than start without it after Envoy's 15 s.
    """
    return core.ConfigSource(
        ads=core.AggregatedConfigSource(),
        initial_fetch_timeout=timedelta(0) if wait else None,
        resource_api_version=core.ApiVersion.V3,
    )


def socket_address(host: str, port: int) -> core.Address:
    """A TCP address."""
    return core.Address(socket_address=core.SocketAddress(address=host, port_value=port))


def listen_address(text: str) -> tuple[core.Address, bool]:
    """The address in `unix:/path` or `host:port` (`[v6]:port`), and whether its host is a name to be resolved.

    Raises:
        ValueError: it is neither.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path:
            raise ValueError(f"{text!r} names no socket path")
        return core.Address(pipe=core.Pipe(path=path)), False
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"{text!r} is neither unix:/path nor host:port")
    return socket_address(host, int(port)), not is_ip(host)


def is_ip(host: str) -> bool:
    """Is it an address rather than a name?"""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def assignment(cluster: str, addresses: Sequence[core.Address]) -> endpoint.ClusterLoadAssignment:
    """Fixed endpoints for a cluster that does not use EDS."""
    return endpoint.ClusterLoadAssignment(
        cluster_name=cluster,
        endpoints=[
            endpoint.LocalityLbEndpoints(
                lb_endpoints=[
                    endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=address)) for address in addresses
                ]
            )
        ],
    )
