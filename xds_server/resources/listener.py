"""LDS: the gateway's listener, its connection manager and what happens to headers before anything else."""

from datetime import timedelta
from typing import Final

from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.listener import v3 as listener
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation import v3 as early
from envoy_data_plane.envoy.extensions.request_id.uuid import v3 as request_id
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from envoy_data_plane.google.protobuf import Any

from recursant import names
from recursant.config.model import Config
from xds_server.resources.access_log import fail_open_log
from xds_server.resources.filters import http_filters
from xds_server.resources.local_reply import local_replies
from xds_server.resources.proto import extension, from_ads, milliseconds, socket_address

# Keep-alive connections of clients; a running request is never idle in this sense.
_CONNECTION_IDLE: Final = timedelta(minutes=15)
# A burst of new connections waits in the kernel rather than being refused.
_BACKLOG: Final = 4_096


def gateway_listener(config: Config) -> listener.Listener:
    """The listener that clients talk to."""
    manager = Any.pack(_connection_manager(config))
    chain = listener.FilterChain(
        filters=[listener.Filter(name="envoy.filters.network.http_connection_manager", typed_config=manager)]
    )
    return listener.Listener(
        name=names.GATEWAY_LISTENER,
        address=socket_address(config.gateway.host, config.gateway.port),
        filter_chains=[chain],
        tcp_backlog_size=_BACKLOG,
    )


def _connection_manager(config: Config) -> hcm.HttpConnectionManager:
    return hcm.HttpConnectionManager(
        stat_prefix="gateway",
        rds=hcm.Rds(route_config_name=names.GATEWAY_ROUTES, config_source=from_ads(wait=True)),
        http_filters=http_filters(config),
        server_name="recursant",
        use_remote_address=True,
        normalize_path=True,
        merge_slashes=True,
        common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=_CONNECTION_IDLE),
        # What nginx speaks to its upstreams unless told otherwise.
        http_protocol_options=core.Http1ProtocolOptions(accept_http_10=True),
        # Cuts what sends nothing for that long: a stalled upload, a silent generation.
        stream_idle_timeout=milliseconds(config.limits.idle_timeout_ms),
        request_headers_timeout=milliseconds(config.limits.body_timeout_ms),
        # For the whole upload. Envoy stops this clock when the last byte is in, so neither a hold by extproc nor a
        # generation is cut by it; only a request without a body that is held for that long is.
        request_timeout=milliseconds(config.limits.body_timeout_ms),
        # A client's own id is kept, whatever its form; the trace decision is not written into it.
        generate_request_id=True,
        preserve_external_request_id=True,
        request_id_extension=hcm.RequestIdExtension(
            typed_config=Any.pack(request_id.UuidRequestIdConfig(pack_trace_reason=False))
        ),
        early_header_mutation_extensions=[_strip_routing_headers()],
        local_reply_config=local_replies(),
        access_log=[fail_open_log()],
    )


def _strip_routing_headers() -> core.TypedExtensionConfig:
    """Remove what only the gateway may say, before routes, filters and Envoy itself look at the request."""
    return extension(
        "envoy.http.early_header_mutation.header_mutation",
        early.HeaderMutation(
            mutations=[
                _remove(matcher.StringMatcher(prefix=names.OWN_HEADER_PREFIX, ignore_case=True)),
                _remove(matcher.StringMatcher(prefix=names.ENVOY_HEADER_PREFIX, ignore_case=True)),
                _remove(matcher.StringMatcher(exact=names.DESTINATION_ENDPOINT, ignore_case=True)),
            ]
        ),
    )


def _remove(key: matcher.StringMatcher) -> mutation.HeaderMutation:
    return mutation.HeaderMutation(remove_on_match=mutation.HeaderMutationRemoveOnMatch(key_matcher=key))
