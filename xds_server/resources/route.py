"""RDS: health, models, the path table, one route for each agent, and the rest.

A route says where a request goes while extproc is away (`metadata_match` for the subset, Lua's context for the body)
and names the agent of a path. With extproc at work, its list and its metadata win over all of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
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
from recursant.agents.policy import AgentPolicy
from recursant.config.model import Config, Cors, PathEntry
from recursant.fleet.worker import WorkerRecord
from xds_server.resources.filters import BUFFER_FILTER, CORS_FILTER
from xds_server.resources.models import model_cards, model_list, paths_of
from xds_server.resources.offer import Offer, offer_of
from xds_server.resources.proto import Json, metadata, packed, struct

# Before the response began, whatever happened to the worker; and its own "not now".
_RETRY_ON: Final = "connect-failure,refused-stream,reset,retriable-status-codes"
_RETRIABLE_STATUS: Final = 503
# A retry goes to another worker, so there is nothing to wait for but a burst of retries.
_RETRY_BACK_OFF: Final = (timedelta(milliseconds=5), timedelta(milliseconds=50))
_OTHER_HOST_ATTEMPTS: Final = 5
# An empty body for streams without end would make no sense here; Envoy's default bound on static answers is 4 KiB.
_DIRECT_RESPONSE_FLOOR: Final = 4_096

_EXPOSED: Final = (
    names.SERVED_BY,
    names.SERVED_AGENT,
    names.FALLBACK,
    names.CLAMPED,
    names.RETRY_AFTER,
    names.REQUEST_ID,
)


def gateway_routes(config: Config, workers: Sequence[WorkerRecord]) -> route.RouteConfiguration:
    """All routes, the more special ones first."""
    models = model_cards(workers)
    listed = model_list(models.values())
    return route.RouteConfiguration(
        name=names.GATEWAY_ROUTES,
        virtual_hosts=[
            route.VirtualHost(
                name="gateway",
                domains=["*"],
                routes=[
                    *_health_routes(),
                    *_model_routes(models, listed),
                    *_fleet_routes(config, workers),
                ],
                retry_policy=_retry_policy(config),
                # What a retry must be able to send again.
                request_body_buffer_limit=config.limits.body_bytes,
                typed_per_filter_config=packed(_cors(config.gateway.cors)),
            )
        ],
        max_direct_response_body_size_bytes=max(_DIRECT_RESPONSE_FLOOR, len(listed.encode())),
    )


# --- answered by Envoy itself ---


def _health_routes() -> Iterator[route.Route]:
    yield _answer("healthz", route.RouteMatch(path="/healthz"), 200, '{"status":"ok"}')
    # extproc answers this one itself; what is here is the answer without it.
    yield route.Route(
        name="readyz",
        match=route.RouteMatch(path="/readyz"),
        direct_response=_direct(503, "the ext_proc service is away"),
        typed_per_filter_config=packed({names.LUA_BODY_FILTER: lua.LuaPerRoute(disabled=True)}),
    )


def _model_routes(models: Mapping[str, str], listed: str) -> Iterator[route.Route]:
    get = route.HeaderMatcher(name=":method", string_match=matcher.StringMatcher(exact="GET"))
    yield _answer("models", route.RouteMatch(path="/v1/models", headers=[get]), 200, listed)
    for name, card in models.items():
        for path in paths_of(name):
            yield _answer(f"model {name}", route.RouteMatch(path=path, headers=[get]), 200, card)
    unknown = "no model of this name in the fleet; GET /v1/models lists those that are"
    yield _answer("no model", route.RouteMatch(prefix="/v1/models/", headers=[get]), 404, unknown)


def _answer(name: str, match: route.RouteMatch, status: int, body: str) -> route.Route:
    """A static answer that neither extproc nor Lua sees."""
    return route.Route(
        name=name,
        match=match,
        direct_response=_direct(status, body),
        typed_per_filter_config=packed(
            {
                BUFFER_FILTER: buffer.BufferPerRoute(disabled=True),
                names.EXTPROC_FILTER: ext_proc.ExtProcPerRoute(disabled=True),
                names.LUA_AGENT_FILTER: lua.LuaPerRoute(disabled=True),
                names.LUA_BODY_FILTER: lua.LuaPerRoute(disabled=True),
            }
        ),
        response_headers_to_add=[_json_type()] if status == 200 else [],
    )


def _direct(status: int, body: str) -> route.DirectResponseAction:
    return route.DirectResponseAction(status=status, body=core.DataSource(inline_string=body))


def _json_type() -> core.HeaderValueOption:
    return core.HeaderValueOption(
        header=core.HeaderValue(key="content-type", value="application/json"),
        append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


# --- to the fleet ---


def _fleet_routes(config: Config, workers: Sequence[WorkerRecord]) -> Iterator[route.Route]:
    offers = {
        family: offer_of(workers, family)
        for family in sorted({agent.model_family for agent in config.agents if agent.model_family})
    }
    everyone = offer_of(workers)
    targets = {
        agent.agent_id: _Target.of_agent(agent, offers[agent.model_family] if agent.model_family else everyone)
        for agent in sorted(config.agents, key=lambda agent: agent.agent_id)
    }
    anyone = _Target.of_nobody(everyone)
    for entry in config.path_entries:
        yield from _path_routes(config, entry, targets, anyone)
    for agent_id, target in targets.items():
        match = route.RouteMatch(prefix="/", headers=[_agent_is(agent_id)])
        yield _to_fleet(config, f"agent {agent_id}", match, target)
    yield _to_fleet(config, "default", route.RouteMatch(prefix="/"), anyone)


def _path_routes(
    config: Config, entry: PathEntry, targets: "Mapping[str, _Target]", anyone: "_Target"
) -> Iterator[route.Route]:
    """The routes of one path: where a client may name its agent, one for each; then the path's own agent."""
    if entry.allow_client_agent:
        for agent_id, target in targets.items():
            match = route.RouteMatch(path=entry.path, headers=[_agent_is(agent_id)])
            yield _to_fleet(config, f"path {entry.path} agent {agent_id}", match, target, entry)
    match = route.RouteMatch(path=entry.path)
    yield _to_fleet(config, f"path {entry.path}", match, targets.get(entry.agent_id, anyone), entry)


class _Target:
    """What a route to the fleet needs of its agent while extproc is away."""

    def __init__(self, subset: Mapping[str, Json], body: Mapping[str, Json], *, fail_closed: bool = False) -> None:
        self.subset = subset
        self.body = body
        self.fail_closed = fail_closed

    @classmethod
    def of_agent(cls, agent: AgentPolicy, offer: Offer) -> "_Target":
        body: dict[str, Json] = {}
        model = agent.model or (offer.auto if agent.model_family or offer.everywhere else None)
        if model is not None:
            body[names.METADATA_MODEL] = model
        if agent.model_family and not agent.allow_other_models:
            allowed = sorted({*offer.names, *([agent.model] if agent.model else [])})
            body[names.METADATA_ALLOWED_MODELS] = f",{','.join(allowed)},"
        if offer.priority_scheduling:
            body[names.METADATA_PRIORITY] = agent.priority_class.engine_priority
        family = agent.model_family
        subset = {names.LB_MODEL: family} if family else {names.LB_POOL: names.LB_POOL_OPEN}
        return cls(subset, body, fail_closed=agent.failure_mode == "closed")

    @classmethod
    def of_nobody(cls, offer: Offer) -> "_Target":
        body: dict[str, Json] = {names.METADATA_MODEL: offer.auto} if offer.everywhere else {}
        return cls({names.LB_POOL: names.LB_POOL_OPEN}, body)


def _to_fleet(
    config: Config, name: str, match: route.RouteMatch, target: _Target, entry: PathEntry | None = None
) -> route.Route:
    agent_context: dict[str, Json] = {"request_id_bytes": config.limits.request_id_bytes}
    if entry is not None:
        agent_context |= {"agent_id": entry.agent_id, "allow_client_agent": entry.allow_client_agent}
    filters: dict[str, Message] = {
        names.LUA_AGENT_FILTER: lua.LuaPerRoute(filter_context=struct(agent_context)),
        names.LUA_BODY_FILTER: lua.LuaPerRoute(filter_context=struct(target.body)),
    }
    if target.fail_closed:
        filters[names.EXTPROC_FILTER] = ext_proc.ExtProcPerRoute(
            overrides=ext_proc.ExtProcOverrides(failure_mode_allow=False)
        )
    return route.Route(
        name=name,
        match=match,
        route=route.RouteAction(
            cluster=names.FLEET_CLUSTER,
            # A generation takes as long as it takes; what stalls is cut by the idle timeout.
            timeout=timedelta(0),
            metadata_match=metadata(names.LB_NAMESPACE, target.subset),
            prefix_rewrite="" if entry is None else entry.rewrite,
        ),
        typed_per_filter_config=packed(filters),
    )


def _agent_is(agent_id: str) -> route.HeaderMatcher:
    return route.HeaderMatcher(name=names.AGENT_ID, string_match=matcher.StringMatcher(exact=agent_id))


def _retry_policy(config: Config) -> route.RetryPolicy:
    base, longest = _RETRY_BACK_OFF
    return route.RetryPolicy(
        retry_on=_RETRY_ON,
        retriable_status_codes=[_RETRIABLE_STATUS],
        # As long as extproc's list; with extproc at work its x-envoy-max-retries says it for each request.
        num_retries=config.routing.candidates - 1,
        retry_host_predicate=[
            route.RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts",
                typed_config=Any.pack(previous_hosts.PreviousHostsPredicate()),
            )
        ],
        host_selection_retry_max_attempts=_OTHER_HOST_ATTEMPTS,
        retry_back_off=route.RetryPolicyRetryBackOff(base_interval=base, max_interval=longest),
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
