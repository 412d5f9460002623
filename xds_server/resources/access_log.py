"""The access log towards the control plane: requests that Envoy served without extproc (DESIGN §4.8).

The Lua after ext_proc marks them, because only it knows that a request came past ext_proc with nothing decided.
"""

from typing import Final

from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.access_loggers.grpc import v3 as grpc_log
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from envoy_data_plane.google.protobuf import Any

from recursant import names
from xds_server.resources.proto import milliseconds

_FLUSH_MS: Final = 500


def fail_open_log() -> accesslog.AccessLog:
    """One entry for each request that was served without a decision, batched, to the xDS server."""
    return accesslog.AccessLog(
        name="envoy.access_loggers.http_grpc",
        filter=accesslog.AccessLogFilter(
            metadata_filter=accesslog.MetadataFilter(
                matcher=matcher.MetadataMatcher(
                    filter=names.METADATA_NAMESPACE,
                    path=[matcher.MetadataMatcherPathSegment(key=names.METADATA_FAIL_OPEN)],
                    value=matcher.ValueMatcher(bool_match=True),
                ),
                match_if_key_not_found=False,
            )
        ),
        typed_config=Any.pack(
            grpc_log.HttpGrpcAccessLogConfig(
                common_config=grpc_log.CommonGrpcAccessLogConfig(
                    log_name=names.FAIL_OPEN_LOG,
                    grpc_service=core.GrpcService(envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=names.XDS_CLUSTER)),
                    transport_api_version=core.ApiVersion.V3,
                    buffer_flush_interval=milliseconds(_FLUSH_MS),
                )
            )
        ),
    )
