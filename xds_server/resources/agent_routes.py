"""The routes to the fleet: the path table, one route for each agent, and one for everybody else.

A route says where a request goes while extproc is away (`metadata_match` for the subset, Lua's context for the body)
and names the agent of a path. With extproc at work, its list and its metadata win over all of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

from betterproto2 import Message
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.extensions.filters.http.lua import v3 as lua
from envoy_data_plane.envoy.type.matcher import v3 as matcher

from recursant import names
from recursant.agents.policy import AgentPolicy
from recursant.config.model import Config, PathEntry
from recursant.fleet.worker import WorkerRecord
from xds_server.resources.offer import Offer, offer_of
from xds_server.resources.proto import Json, metadata, packed, struct


@dataclass(frozen=True, slots=True)
class Target:
    """Where an agent's requests go, and what their bodies become, while nobody picks.

    Attributes:
        family: of the workers; None for every worker that is not exclusive.
        model: what "auto" becomes.
        allowed_models: the names that a body may use, joined by ","; None for any.
        priority: vLLM's own, where every worker of the family schedules by it.
        max_tokens: the most tokens of output that a body may ask for.
        fail_closed: refuse instead.
    """

    family: str | None = None
    model: str | None = None
    allowed_models: str | None = None
    priority: int | None = None
    max_tokens: int | None = None
    fail_closed: bool = False

    @classmethod
    def of_agent(cls, agent: AgentPolicy, offer: Offer) -> "Target":
        """The target of an agent, from what its family (or, without one, the whole fleet) offers."""
        family = agent.model_family
        allowed = None
        if family is not None and not agent.allow_other_models:
            allowed = ",".join(sorted({*offer.names, *([agent.model] if agent.model else [])}))
        return cls(
            family=family,
            # Within a family any worker does; among all of them only a model that is everywhere.
            model=agent.model or (offer.auto if family is not None or offer.everywhere else None),
            allowed_models=allowed,
            priority=agent.priority_class.engine_priority if offer.priority_scheduling else None,
            max_tokens=agent.max_new_tokens,
            fail_closed=agent.failure_mode == "closed",
        )

    @classmethod
    def of_nobody(cls, offer: Offer, *, rejected: bool) -> "Target":
        """The target of requests that name no known agent; `rejected`: they are refused, extproc or not."""
        return cls(model=offer.auto if offer.everywhere else None, fail_closed=rejected)

    def subset(self) -> dict[str, Json]:
        """The endpoint metadata to match."""
        return {names.LB_MODEL: self.family} if self.family else {names.LB_POOL: names.LB_POOL_OPEN}

    def body_context(self) -> dict[str, Json]:
        """What Lua reads in place of extproc's metadata."""
        context: dict[str, Json] = {}
        if self.model is not None:
            context[names.METADATA_MODEL] = self.model
        if self.allowed_models is not None:
            context[names.METADATA_ALLOWED_MODELS] = f",{self.allowed_models},"
        if self.priority is not None:
            context[names.METADATA_PRIORITY] = self.priority
        if self.max_tokens is not None:
            context[names.METADATA_MAX_TOKENS] = self.max_tokens
        return context


def fleet_routes(config: Config, workers: Sequence[WorkerRecord]) -> Iterator[bytes]:
    """The serialised routes, the more special ones first."""
    families = {agent.model_family for agent in config.agents if agent.model_family}
    offers = {family: offer_of(workers, family) for family in families}
    everyone = offer_of(workers)
    targets = {
        agent.agent_id: Target.of_agent(agent, offers[agent.model_family] if agent.model_family else everyone)
        for agent in sorted(config.agents, key=lambda agent: agent.agent_id)
    }
    anyone = Target.of_nobody(everyone, rejected=config.routing.default_fallback == "reject")
    request_id_bytes = config.limits.request_id_bytes
    for entry in config.path_entries:
        yield from _path_routes(entry, targets, anyone, request_id_bytes)
    for agent_id, target in targets.items():
        yield _route(agent_id, None, target, request_id_bytes)
    yield _route(None, None, anyone, request_id_bytes)


def _path_routes(
    entry: PathEntry, targets: Mapping[str, Target], anyone: Target, request_id_bytes: int
) -> Iterator[bytes]:
    """The routes of one path: where a client may name its agent, one for each; then the path's own agent."""
    if entry.allow_client_agent:
        for agent_id, target in targets.items():
            yield _route(agent_id, entry, target, request_id_bytes)
    yield _route(None, entry, targets.get(entry.agent_id, anyone), request_id_bytes)


@lru_cache(maxsize=8_192)
def _route(client_agent: str | None, entry: PathEntry | None, target: Target, request_id_bytes: int) -> bytes:
    """One route, serialised. Kept: a change of the fleet or of one agent leaves most routes as they were.

    Args:
        client_agent: the agent that the client must name; None for any, and none.
        entry: the path; None for all.
        target: where it goes without extproc.
        request_id_bytes: the longest request id that passes.
    """
    agent_context: dict[str, Json] = {"request_id_bytes": request_id_bytes}
    if entry is not None:
        agent_context |= {"agent_id": entry.agent_id, "allow_client_agent": entry.allow_client_agent}
    filters: dict[str, Message] = {
        names.LUA_AGENT_FILTER: lua.LuaPerRoute(filter_context=struct(agent_context)),
        names.LUA_BODY_FILTER: lua.LuaPerRoute(filter_context=struct(target.body_context())),
    }
    if target.fail_closed:
        overrides = ext_proc.ExtProcOverrides(failure_mode_allow=False)
        filters[names.EXTPROC_FILTER] = ext_proc.ExtProcPerRoute(overrides=overrides)
    built = route.Route(
        name=" ".join(
            [
                *(["path", entry.path] if entry else []),
                *(["agent", client_agent] if client_agent else []),
            ]
        )
        or "default",
        match=route.RouteMatch(
            path=entry.path if entry else None,
            prefix=None if entry else "/",
            headers=[_agent_is(client_agent)] if client_agent else [],
        ),
        route=route.RouteAction(
            cluster=names.FLEET_CLUSTER,
            # A generation takes as long as it takes; what stalls is cut by the idle timeout.
            timeout=timedelta(0),
            metadata_match=metadata(names.LB_NAMESPACE, target.subset()),
            # Of the whole path, since an entry matches all of it; the query stays.
            prefix_rewrite=entry.rewrite if entry else "",
        ),
        typed_per_filter_config=packed(filters),
    )
    return bytes(built)


def _agent_is(agent_id: str) -> route.HeaderMatcher:
    return route.HeaderMatcher(name=names.AGENT_ID, string_match=matcher.StringMatcher(exact=agent_id))
