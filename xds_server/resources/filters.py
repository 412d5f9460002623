"""The HTTP filters of the gateway, in order, and the three of them that travel by ECDS.

ext_proc and both Lua filters are discovered: a release with other Lua, or another timeout towards extproc, reaches
new requests only, and no listener drains (docs/adr/0002-data-path.md).
"""

from collections.abc import Iterable
from functools import cache
from typing import Final

from betterproto2 import Message
from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.filters.http.buffer import v3 as buffer
from envoy_data_plane.envoy.extensions.filters.http.cors import v3 as cors
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.extensions.filters.http.lua import v3 as lua
from envoy_data_plane.envoy.extensions.filters.http.router import v3 as router
from envoy_data_plane.envoy.extensions.filters.http.upstream_codec import v3 as upstream_codec
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.type import v3 as envoy_type
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from envoy_data_plane.google.protobuf import Any

from recursant import names
from recursant.config.model import Config
from recursant.data import envoy_file
from xds_server.resources.proto import extension, from_ads, milliseconds

CORS_FILTER: Final = "envoy.filters.http.cors"
BUFFER_FILTER: Final = "envoy.filters.http.buffer"
# What the body's Lua may add to a body of the largest size: a model's name for "auto", and a priority. extproc holds
# to `limits.body_bytes` exactly; without it a body may be this much longer.
EDIT_MARGIN_BYTES: Final = 1_024
ROUTER_FILTER: Final = "envoy.filters.http.router"
# Envoy offers the address of the host that really answered, after any retry, under this name.
_UPSTREAM_ADDRESS: Final = "upstream.address"


def http_filters(config: Config) -> list[hcm.HttpFilter]:
    """The chain: nothing reaches extproc before its body is whole and within bounds, nor the body's Lua before it."""
    return [
        _here(CORS_FILTER, cors.Cors()),
        _here(BUFFER_FILTER, buffer.Buffer(max_request_bytes=config.limits.body_bytes + EDIT_MARGIN_BYTES)),
        _discovered(names.LUA_AGENT_FILTER, lua.Lua()),
        # The virtual host enables it. What no codec could read has no route, and Envoy's answer to it, which would
        # wait for ext_proc while the connection closes, arrives.
        _discovered(names.EXTPROC_FILTER, ext_proc.ExternalProcessor(), disabled=True),
        _discovered(names.LUA_BODY_FILTER, lua.Lua()),
        _here(ROUTER_FILTER, router.Router(suppress_envoy_headers=True)),
    ]


def attempt_filters() -> list[hcm.HttpFilter]:
    """What each attempt at a worker passes: Lua that sees every answer, those that are tried again included."""
    return [
        _here(names.LUA_ATTEMPT_FILTER, _lua("attempt")),
        _here("envoy.filters.http.upstream_codec", upstream_codec.UpstreamCodec()),
    ]


def discovered_filters(config: Config) -> dict[str, core.TypedExtensionConfig]:
    """The ECDS resources by name."""
    return {
        names.EXTPROC_FILTER: extension(names.EXTPROC_FILTER, _ext_proc(config)),
        names.LUA_AGENT_FILTER: extension(names.LUA_AGENT_FILTER, _lua("agent")),
        names.LUA_BODY_FILTER: extension(names.LUA_BODY_FILTER, _lua("body")),
    }


def _here(name: str, message: Message) -> hcm.HttpFilter:
    return hcm.HttpFilter(name=name, typed_config=Any.pack(message))


def _discovered(name: str, kind: Message, *, disabled: bool = False) -> hcm.HttpFilter:
    type_url = Any.pack(kind).type_url
    # Without its filters the gateway would let everything through: rather not listen until they have come.
    source = core.ExtensionConfigSource(config_source=from_ads(wait=True), type_urls=[type_url])
    return hcm.HttpFilter(name=name, config_discovery=source, disabled=disabled)


@cache
def _source(script: str) -> str:
    return envoy_file(f"lua/{script}.lua").read_text(encoding="utf-8")


def _lua(script: str) -> lua.Lua:
    return lua.Lua(
        default_source_code=core.DataSource(inline_string=_source(script)),
        stat_prefix=script,
        # Routes do not depend on what the scripts change: a path that names an agent is that agent's route already.
        clear_route_cache=False,
    )


def _ext_proc(config: Config) -> ext_proc.ExternalProcessor:
    own = ext_proc.MetadataOptionsMetadataNamespaces(untyped=[names.METADATA_NAMESPACE])
    send = ext_proc.ProcessingModeHeaderSendMode.SEND
    skip = ext_proc.ProcessingModeHeaderSendMode.SKIP
    none = ext_proc.ProcessingModeBodySendMode.NONE
    return ext_proc.ExternalProcessor(
        stat_prefix="recursant",
        # No timeout of its own: the stream lives as long as the request.
        # No retries: they would bring another process the stream without the message that was sent on it already.
        grpc_service=core.GrpcService(envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=names.EXTPROC_CLUSTER)),
        failure_mode_allow=True,
        # For agents whose policy fails closed.
        status_on_error=envoy_type.HttpStatus(code=envoy_type.StatusCode.ServiceUnavailable),
        message_timeout=milliseconds(config.extproc.message_timeout_ms),
        max_message_timeout=milliseconds(config.extproc.max_message_timeout_ms),
        processing_mode=ext_proc.ProcessingMode(
            request_header_mode=send,
            response_header_mode=send,
            request_body_mode=none,
            response_body_mode=none,
            request_trailer_mode=skip,
            # Keeps the stream open until the response ends or the client hangs up (DESIGN §4.3).
            response_trailer_mode=send,
        ),
        allow_mode_override=True,
        forward_rules=ext_proc.HeaderForwardingRules(allowed_headers=_exactly(names.EXTPROC_HEADERS)),
        response_attributes=[_UPSTREAM_ADDRESS],
        # x-envoy-max-retries bounds the walk along the list of candidates.
        mutation_rules=mutation.HeaderMutationRules(allow_envoy=True),
        metadata_options=ext_proc.MetadataOptions(forwarding_namespaces=own, receiving_namespaces=own),
        # The route follows from the path and the agent's id, both settled before.
        route_cache_action=ext_proc.ExternalProcessorRouteCacheAction.RETAIN,
    )


def _exactly(headers: Iterable[str]) -> matcher.ListStringMatcher:
    return matcher.ListStringMatcher(patterns=[matcher.StringMatcher(exact=header) for header in headers])
