"""CDS: the fleet behind its override list, and the extproc processes."""

from datetime import timedelta
from typing import Final

from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.load_balancing_policies.common import v3 as common
from envoy_data_plane.envoy.extensions.load_balancing_policies.maglev import v3 as maglev
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host import v3 as override_host
from envoy_data_plane.envoy.extensions.load_balancing_policies.subset import v3 as subset
from envoy_data_plane.envoy.extensions.upstreams.http import v3 as upstream
from envoy_data_plane.envoy.type.metadata import v3 as metadata
from envoy_data_plane.envoy.type.v3 import Percent

from recursant import names
from recursant.config.model import Config
from xds_server.resources.addresses import parse_address
from xds_server.resources.breakers import Breakers
from xds_server.resources.filters import attempt_filters
from xds_server.resources.proto import address_of, assignment, extension, from_ads, packed

_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
# A worker that is gone without a word (no RST) costs a retry this much.
_CONNECT_TIMEOUT: Final = timedelta(seconds=1)
# uvicorn, under vLLM, closes idle connections after 5 s. Closing first avoids meeting that moment with a request.
_WORKER_IDLE: Final = timedelta(seconds=4)
# extproc streams live as long as generations; a limit here would fail the rest open silently.
_UNLIMITED: Final = 1_000_000
# How often an extproc process is asked for its health, and how late its answer may be. One that is so late has let
# every message of a request run out of time; much less would leave out a process for being busy.
_CHECK_EVERY: Final = timedelta(milliseconds=500)
_CHECK_TIMEOUT: Final = timedelta(seconds=1)


def fleet_cluster(breakers: Breakers) -> cluster.Cluster:
    """All workers: extproc's list first; without it a subset by family, Maglev by session, weights by capacity."""
    return cluster.Cluster(
        name=names.FLEET_CLUSTER,
        type=cluster.ClusterDiscoveryType.EDS,
        eds_cluster_config=cluster.ClusterEdsClusterConfig(eds_config=from_ads()),
        connect_timeout=_CONNECT_TIMEOUT,
        load_balancing_policy=_policy("envoy.load_balancing_policies.override_host", _override_host()),
        common_lb_config=cluster.ClusterCommonLbConfig(
            # Panic mode would send requests to workers that are draining.
            healthy_panic_threshold=Percent(value=0.0),
        ),
        circuit_breakers=cluster.CircuitBreakers(
            thresholds=[
                cluster.CircuitBreakersThresholds(
                    max_connections=breakers.fleet,
                    max_pending_requests=breakers.fleet,
                    max_requests=breakers.fleet,
                    max_retries=breakers.fleet,
                )
            ],
            per_host_thresholds=[cluster.CircuitBreakersThresholds(max_connections=breakers.worker)],
        ),
        upstream_connection_options=cluster.UpstreamConnectionOptions(
            # A node that died without a word is noticed in the middle of a generation too.
            tcp_keepalive=core.TcpKeepalive(keepalive_time=15, keepalive_interval=5, keepalive_probes=3),
        ),
        typed_extension_protocol_options=packed(
            {
                _HTTP_OPTIONS: upstream.HttpProtocolOptions(
                    common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=_WORKER_IDLE),
                    explicit_http_config=upstream.HttpProtocolOptionsExplicitHttpConfig(
                        http_protocol_options=core.Http1ProtocolOptions()
                    ),
                    http_filters=attempt_filters(),
                )
            }
        ),
    )


def _override_host() -> override_host.OverrideHost:
    return override_host.OverrideHost(
        override_host_sources=[
            override_host.OverrideHostOverrideHostSource(metadata=_own_key(names.METADATA_ENDPOINTS))
        ],
        selected_host_key=_own_key(names.METADATA_SELECTED),
        fallback_policy=_policy(
            "envoy.load_balancing_policies.subset",
            subset.Subset(
                fallback_policy=subset.SubsetLbSubsetFallbackPolicy.NO_FALLBACK,
                # A worker's families are a list: it belongs to the subset of each.
                list_as_any=True,
                subset_selectors=[_selector(names.LB_MODEL), _selector(names.LB_POOL)],
                subset_lb_policy=_policy("envoy.load_balancing_policies.maglev", _maglev()),
            ),
        ),
    )


def _maglev() -> maglev.Maglev:
    by_session = route.RouteActionHashPolicy(header=route.RouteActionHashPolicyHeader(header_name=names.SESSION_ID))
    return maglev.Maglev(
        consistent_hashing_lb_config=common.ConsistentHashingLbConfig(hash_policy=[by_session]),
    )


def _selector(key: str) -> subset.SubsetLbSubsetSelector:
    return subset.SubsetLbSubsetSelector(
        keys=[key],
        fallback_policy=subset.SubsetLbSubsetSelectorLbSubsetSelectorFallbackPolicy.NO_FALLBACK,
    )


def _own_key(key: str) -> metadata.MetadataKey:
    return metadata.MetadataKey(key=names.METADATA_NAMESPACE, path=[metadata.MetadataKeyPathSegment(key=key)])


def _policy(
    name: str, message: override_host.OverrideHost | subset.Subset | maglev.Maglev
) -> cluster.LoadBalancingPolicy:
    return cluster.LoadBalancingPolicy(
        policies=[cluster.LoadBalancingPolicyPolicy(typed_extension_config=extension(name, message))]
    )


def extproc_cluster(config: Config) -> cluster.Cluster:
    """The extproc processes: one endpoint for each listening address, HTTP/2, least loaded first."""
    addresses = [parse_address(text) for text in config.extproc.listen]
    by_name = any(address.needs_dns for address in addresses)
    # One socket on this machine refuses at once when its process is gone, and is dialled again with the next
    # request: watching it would only delay that. Several, or one far away, would cost a request each time.
    watched = len(addresses) > 1 or not addresses[0].path
    return cluster.Cluster(
        name=names.EXTPROC_CLUSTER,
        type=cluster.ClusterDiscoveryType.STRICT_DNS if by_name else cluster.ClusterDiscoveryType.STATIC,
        connect_timeout=timedelta(milliseconds=config.extproc.message_timeout_ms),
        # A stream is a request in flight, so this is the process with the fewest requests.
        lb_policy=cluster.ClusterLbPolicy.LEAST_REQUEST,
        load_assignment=assignment(names.EXTPROC_CLUSTER, [address_of(address) for address in addresses]),
        circuit_breakers=cluster.CircuitBreakers(
            thresholds=[
                cluster.CircuitBreakersThresholds(
                    max_connections=_UNLIMITED,
                    max_pending_requests=_UNLIMITED,
                    max_requests=_UNLIMITED,
                    max_retries=_UNLIMITED,
                )
            ]
        ),
        health_checks=[_answers()] if watched else [],
        outlier_detection=_refuses() if len(addresses) > 1 else None,
        common_lb_config=cluster.ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0)),
        typed_extension_protocol_options=packed(
            {
                _HTTP_OPTIONS: upstream.HttpProtocolOptions(
                    explicit_http_config=upstream.HttpProtocolOptionsExplicitHttpConfig(
                        http2_protocol_options=core.Http2ProtocolOptions()
                    )
                )
            }
        ),
    )


def _refuses() -> cluster.OutlierDetection:
    """A process that cannot be reached is left out at once, not from its next check on; the check brings it back."""
    return cluster.OutlierDetection(
        split_external_local_origin_errors=True,
        consecutive_local_origin_failure=1,
        enforcing_consecutive_local_origin_failure=100,
        enforcing_local_origin_success_rate=0,
        enforcing_consecutive_5xx=0,
        enforcing_consecutive_gateway_failure=0,
        enforcing_success_rate=0,
        interval=_CHECK_EVERY,
        base_ejection_time=_CHECK_EVERY,
        max_ejection_time=_CHECK_EVERY,
        max_ejection_percent=100,
    )


def _answers() -> core.HealthCheck:
    """A process that hangs still takes connections, so it is asked (grpc.health.v1)."""
    return core.HealthCheck(
        grpc_health_check=core.HealthCheckGrpcHealthCheck(),
        timeout=_CHECK_TIMEOUT,
        interval=_CHECK_EVERY,
        no_traffic_interval=_CHECK_EVERY,
        unhealthy_threshold=1,
        healthy_threshold=1,
    )
