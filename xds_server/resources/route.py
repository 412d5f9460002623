"""RDS: what Envoy answers itself (health, models), then the routes to the fleet, and what holds for all of them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Final

from betterproto2 import Message
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.filters.http.buffer import v3 as buffer
from envoy_data_plane.envoy.extensions.filters.http.cors import v3 as cors
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.extensions.filters.http.lua import v3 as lua
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts import v3 as previous_hosts
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from envoy_data_plane.google.protobuf import Any

from recursant import names
from recursant.config.model import Config, Cors
from recursant.fleet.worker import WorkerRecord
from xds_server.resources.agent_routes import fleet_routes
from xds_server.resources.filters import BUFFER_FILTER, CORS_FILTER
from xds_server.resources.local_reply import retry_after_where_due
from xds_server.resources.models import model_cards, model_list, paths_of
from xds_server.resources.proto import embedded, packed

# Whatever happened to the worker before the response began; its own "not now"; and the first 500, by Lua's mark
# (docs/adr/0004-retries.md).
_RETRY_ON: Final = "connect-failure,refused-stream,reset,retriable-status-codes,retriable-headers"
_RETRIABLE_STATUS: Final = 503
# A retry goes to another worker, so there is nothing to wait for; the jitter only spreads a burst of them.
_BACK_OFF: Final = timedelta(milliseconds=5)
_LONGEST_BACK_OFF: Final = timedelta(milliseconds=50)
# Maglev hashes anew at each attempt and may draw the same dead host: with one dead of three, five attempts left
# 1 retry in 80 on it (measured). A draw is one lookup; this many leave 1 in 800 where nine tenths of the weight died.
_OTHER_HOST_ATTEMPTS: Final = 64
# Envoy's own bound on a static answer, which a long list of models passes.
_DIRECT_RESPONSE_BYTES: Final = 4_096
_ANY_ORIGIN: Final = "*"
# What Envoy adds for workers, who have no use for it.
_INTERNAL_HEADERS: Final = ("x-envoy-external-address", "x-envoy-internal")
# Field numbers, for routes that are serialised already.
_VIRTUAL_HOSTS: Final = 2
_ROUTES: Final = 3

_EXPOSED: Final = (
    names.SERVED_BY,
    names.SERVED_AGENT,
    names.FALLBACK,
    names.AFFINITY,
    names.CLAMPED,
    names.RETRY_AFTER,
    names.REQUEST_ID,
)


def gateway_routes(config: Config, workers: Sequence[WorkerRecord]) -> bytes:
    """The serialised RouteConfiguration."""
    settings = config.gateway.cors
    cards = model_cards(workers)
    listed = model_list(cards.values())
    routes = [*_health_routes(settings), *_model_routes(cards, listed, settings), *fleet_routes(config, workers)]
    host = bytes(_virtual_host(config)) + b"".join(embedded(_ROUTES, built) for built in routes)
    shell = route.RouteConfiguration(
        name=names.GATEWAY_ROUTES,
        max_direct_response_body_size_bytes=max(_DIRECT_RESPONSE_BYTES, len(listed.encode())),
    )
    return bytes(shell) + embedded(_VIRTUAL_HOSTS, host)


def _virtual_host(config: Config) -> route.VirtualHost:
    return route.VirtualHost(
        name="gateway",
        domains=["*"],
        retry_policy=_retry_policy(config),
        request_headers_to_remove=list(_INTERNAL_HEADERS),
        response_headers_to_add=[retry_after_where_due()],
        response_headers_to_remove=[names.RETRY_MARK],
        # An empty configuration enables a filter that is off unless a route is found.
        typed_per_filter_config=packed(
            {**_cors(config.gateway.cors), names.EXTPROC_FILTER: route.FilterConfig(config=Any())}
        ),
    )


# --- answered by Envoy itself ---


def _health_routes(settings: Cors) -> Iterator[bytes]:
    yield _answer("healthz", "/healthz", 200, '{"status":"ok"}', settings, any_method=True)
    yield _readyz()


@lru_cache(maxsize=1)
def _readyz() -> bytes:
    """extproc answers this one itself; what is here is the answer without it."""
    disabled = lua.LuaPerRoute(disabled=True)
    return bytes(
        route.Route(
            name="readyz",
            match=route.RouteMatch(path="/readyz"),
            direct_response=_direct(503, "the ext_proc service is away"),
            typed_per_filter_config=packed({names.LUA_AGENT_FILTER: disabled, names.LUA_BODY_FILTER: disabled}),
        )
    )


def _model_routes(cards: Mapping[str, str], listed: str, settings: Cors) -> Iterator[bytes]:
    yield _answer("models", "/v1/models", 200, listed, settings)
    for name, card in cards.items():
        for path in paths_of(name):
            yield _answer("model", path, 200, card, settings)
    yield _answer("no model", "/v1/models/", 404, "no worker serves a model of this name", settings, prefix=True)


@lru_cache(maxsize=8_192)
def _answer(
    name: str,
    path: str,
    status: int,
    body: str,
    settings: Cors,
    *,
    prefix: bool = False,
    any_method: bool = False,
) -> bytes:
    """A static answer that neither extproc nor Lua sees. Kept: most models stay from change to change."""
    get = route.HeaderMatcher(name=":method", string_match=matcher.StringMatcher(exact="GET"))
    disabled = lua.LuaPerRoute(disabled=True)
    filters: dict[str, Message] = {
        BUFFER_FILTER: buffer.BufferPerRoute(disabled=True),
        names.EXTPROC_FILTER: ext_proc.ExtProcPerRoute(disabled=True),
        names.LUA_AGENT_FILTER: disabled,
        names.LUA_BODY_FILTER: disabled,
    }
    return bytes(
        route.Route(
            name=name,
            match=route.RouteMatch(
                path=None if prefix else path,
                prefix=path if prefix else None,
                headers=[] if any_method else [get],
            ),
            direct_response=_direct(status, body),
            typed_per_filter_config=packed(filters),
            response_headers_to_add=[
                # An error gets its shape, and its type, as a local reply.
                *([_set_header("content-type", "application/json")] if status < 400 else []),
                *([_allow_origin(settings)] if settings.allow_origins else []),
            ],
        )
    )


def _direct(status: int, body: str) -> route.DirectResponseAction:
    return route.DirectResponseAction(status=status, body=core.DataSource(inline_string=body))


def _set_header(name: str, value: str) -> core.HeaderValueOption:
    return core.HeaderValueOption(
        header=core.HeaderValue(key=name, value=value),
        append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _allow_origin(settings: Cors) -> core.HeaderValueOption:
    """Let a browser read a static answer, which the CORS filter passes over."""
    if _ANY_ORIGIN in settings.allow_origins:
        return _set_header("access-control-allow-origin", _ANY_ORIGIN)
    known = ", ".join(json.dumps(origin) for origin in settings.allow_origins)
    # An empty value, for every other origin, adds nothing.
    origin = f"%CEL(request.headers['origin'] in [{known}] ? request.headers['origin'] : '')%"
    return _set_header("access-control-allow-origin", origin)


# --- for every route ---


def _retry_policy(config: Config) -> route.RetryPolicy:
    return route.RetryPolicy(
        retry_on=_RETRY_ON,
        retriable_status_codes=[_RETRIABLE_STATUS],
        retriable_headers=[route.HeaderMatcher(name=names.RETRY_MARK, present_match=True)],
        # As long as extproc's list; with extproc at work its x-envoy-max-retries says it for each request.
        num_retries=config.routing.candidates - 1,
        retry_host_predicate=[
            route.RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts",
                typed_config=Any.pack(previous_hosts.PreviousHostsPredicate()),
            )
        ],
        host_selection_retry_max_attempts=_OTHER_HOST_ATTEMPTS,
        retry_back_off=route.RetryPolicyRetryBackOff(base_interval=_BACK_OFF, max_interval=_LONGEST_BACK_OFF),
    )


def _cors(settings: Cors) -> dict[str, Message]:
    if not settings.allow_origins:
        return {}
    return {
        CORS_FILTER: cors.CorsPolicy(
            allow_origin_string_match=[matcher.StringMatcher(exact=origin) for origin in settings.allow_origins],
            allow_methods="GET, POST, OPTIONS",
            # "*" does not cover Authorization.
            allow_headers="*, Authorization",
            expose_headers=", ".join(_EXPOSED),
            max_age=str(settings.max_age_s),
            # A preflight is never a worker's business, whatever its origin.
            forward_not_matching_preflights=False,
        )
    }
