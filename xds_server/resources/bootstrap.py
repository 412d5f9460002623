"""`envoy/bootstrap.yaml` with the configured addresses."""

from typing import Any

import yaml

from recursant.config.model import Config
from recursant.data import envoy_file
from recursant.names import XDS_CLUSTER
from xds_server.resources.addresses import is_ip, reachable


def render(config: Config, node_id: str) -> str:
    """The bootstrap of one Envoy, as YAML.

    Args:
        config: gives the admin address and where the control plane listens.
        node_id: unique among the Envoys of the control plane.
    """
    bootstrap: dict[str, Any] = yaml.safe_load(envoy_file("bootstrap.yaml").read_text(encoding="utf-8"))
    bootstrap["node"]["id"] = node_id
    _place(bootstrap["admin"]["address"], config.gateway.admin_host, config.gateway.admin_port)
    for cluster in bootstrap["static_resources"]["clusters"]:
        if cluster["name"] == XDS_CLUSTER:
            host = reachable(config.xds.host)
            cluster["type"] = "STATIC" if is_ip(host) else "STRICT_DNS"
            endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
            _place(endpoint["address"], host, config.xds.port)
    return yaml.safe_dump(bootstrap, sort_keys=False)


def _place(address: dict[str, Any], host: str, port: int) -> None:
    address["socket_address"] = {"address": host, "port_value": port}
