"""Small helpers around envoy-data-plane's typed messages: packing, durations, addresses, stable order.

betterproto2 writes a map in the order of its dict, so every dict that ends in a map is sorted here: the same input
gives the same bytes, and so the same version, on every replica.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypeAlias

import betterproto2
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.google.protobuf import Any, Struct

from xds_server.resources.addresses import Address, reachable

Json: TypeAlias = "str | bool | int | float | Sequence[Json] | Mapping[str, Json] | None"


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


def address_of(address: Address) -> core.Address:
    """An address as Envoy dials it."""
    if address.path:
        return core.Address(pipe=core.Pipe(path=address.path))
    return socket_address(reachable(address.host), address.port)


def embedded(field: int, message: bytes) -> bytes:
    """An already serialised message as a field of another: protobuf messages concatenate."""
    head = _varint(field << 3 | 2) + _varint(len(message))
    return head + message


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def assignment(cluster: str, addresses: Sequence[core.Address]) -> endpoint.ClusterLoadAssignment:
    """Fixed endpoints for a cluster that does not use EDS."""
    return endpoint.ClusterLoadAssignment(
        cluster_name=cluster,
        endpoints=[
            endpoint.LocalityLbEndpoints(
                lb_endpoints=[endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=address)) for address in addresses]
            )
        ],
    )
