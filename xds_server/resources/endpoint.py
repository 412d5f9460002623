"""EDS: the workers as Envoy dials them, weighted by declared capacity. Built on every change of the fleet.

The hot path of the xDS server, so it uses xds-protos: 1,000 endpoints take milliseconds.
"""

from collections.abc import Iterable
from ipaddress import ip_address

from envoy.config.core.v3.health_check_pb2 import DRAINING
from envoy.config.endpoint.v3.endpoint_components_pb2 import LbEndpoint
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment

from recursant import names
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from xds_server.resource import ENDPOINT, Resource
from xds_server.resources.offer import families_of
from xds_server.weights import endpoint_weight


def build_endpoints(workers: Iterable[WorkerRecord]) -> Resource:
    """The fleet's endpoints: every worker with an address.

    Only a ready one is healthy. The others are DRAINING: Envoy's own policy sends them nothing, what runs there goes
    on, and extproc's list reaches them. So a draining worker keeps its sessions, and one that comes back, or leaves
    its isolation, serves as soon as extproc knows, which may be before Envoy does. Two workers at one address are one
    endpoint, ready ones first, then by id.
    """
    load = ClusterLoadAssignment(cluster_name=names.FLEET_CLUSTER)
    locality = load.endpoints.add()
    taken: set[str] = set()
    for worker in sorted(workers, key=lambda worker: (worker.status is not WorkerStatus.READY, worker.worker_id)):
        if worker.endpoint is None or worker.endpoint in taken:
            continue
        address = _host_and_port(worker.endpoint)
        # One bad address makes Envoy refuse the whole resource: that worker is left out instead.
        if address is None:
            continue
        taken.add(worker.endpoint)
        _fill(locality.lb_endpoints.add(), worker, *address)
    return Resource.of(ENDPOINT, names.FLEET_CLUSTER, load.SerializeToString(deterministic=True))


def _fill(endpoint: LbEndpoint, worker: WorkerRecord, host: str, port: int) -> None:
    address = endpoint.endpoint.address.socket_address
    address.address = host
    address.port_value = port
    endpoint.load_balancing_weight.value = endpoint_weight(worker.state)
    if worker.status is not WorkerStatus.READY:
        endpoint.health_status = DRAINING
    # Exclusive workers match no subset: only extproc's list reaches them.
    if worker.state.exclusive:
        return
    fields = endpoint.metadata.filter_metadata[names.LB_NAMESPACE].fields
    fields[names.LB_POOL].string_value = names.LB_POOL_OPEN
    families = families_of(worker)
    if families:
        values = fields[names.LB_MODEL].list_value.values
        for family in families:
            values.add().string_value = family


def _host_and_port(endpoint: str) -> tuple[str, int] | None:
    host, _, port = endpoint.rpartition(":")
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
    except ValueError:
        return None
    return (str(address), number) if 0 < number < 65_536 else None
