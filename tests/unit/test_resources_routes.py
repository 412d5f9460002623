import json

import pytest
from envoy.config.route.v3.route_components_pb2 import Route, VirtualHost
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.http.ext_proc.v3.ext_proc_pb2 import ExtProcPerRoute
from envoy.extensions.filters.http.lua.v3.lua_pb2 import LuaPerRoute
from fleet_kit import PHI, QWEN, record
from google.protobuf.json_format import MessageToDict

from recursant import names
from recursant.agents.policy import AgentPolicy
from recursant.config.model import Config, Cors, Gateway, Limits, PathEntry, Routing
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from xds_server.resources.models import model_cards, paths_of
from xds_server.resources.route import gateway_routes

CHAT = AgentPolicy(agent_id="chat-web", model_family="qwen", priority=10)
BATCH = AgentPolicy(agent_id="batch-summary", model_family="phi", priority=1)


def virtual_host(config: Config, *workers: WorkerRecord) -> VirtualHost:
    built = RouteConfiguration.FromString(gateway_routes(config, workers))
    assert built.name == "gateway"
    (host,) = built.virtual_hosts
    return host


def routes(config: Config, *workers: WorkerRecord) -> dict[str, Route]:
    found = virtual_host(config, *workers).routes
    return {route.name: route for route in found if route.WhichOneof("action") == "route"}


def context(route: Route, name: str) -> dict[str, object]:
    per_route = LuaPerRoute.FromString(route.typed_per_filter_config[name].value)
    return MessageToDict(per_route.filter_context)


def subset(route: Route) -> dict[str, object]:
    return MessageToDict(route.route.metadata_match.filter_metadata["envoy.lb"])


# --- agents ---


def test_an_agents_route_knows_its_family_and_its_body() -> None:
    found = routes(Config(agents=[CHAT]), record("w1", models=(QWEN, PHI), priority_scheduling=True))
    route = found["agent chat-web"]
    assert route.match.prefix == "/"
    assert route.match.headers[0].name == "x-agent-id"
    assert route.match.headers[0].string_match.exact == "chat-web"
    assert subset(route) == {"model": "qwen"}
    assert context(route, names.LUA_BODY_FILTER) == {
        "model": QWEN.name,
        "allowed_models": f",{QWEN.name},",
        # Priority 10 is High, and vLLM runs smaller numbers sooner.
        "priority": -2,
    }
    assert route.route.cluster == "fleet"
    assert not route.route.prefix_rewrite


def test_a_policys_own_model_and_freedom_count() -> None:
    named = CHAT.model_copy(update={"model": "Qwen/Qwen3"})
    assert context(routes(Config(agents=[named]), record("w1"))["agent chat-web"], names.LUA_BODY_FILTER) == {
        "model": "Qwen/Qwen3",
        "allowed_models": f",{QWEN.name},Qwen/Qwen3,",
    }
    free = CHAT.model_copy(update={"allow_other_models": True})
    assert context(routes(Config(agents=[free]), record("w1"))["agent chat-web"], names.LUA_BODY_FILTER) == {
        "model": QWEN.name
    }


def test_an_agent_without_a_family_goes_to_the_open_pool() -> None:
    route = routes(Config(agents=[AgentPolicy(agent_id="any")]), record("w1"), record("w2", models=(PHI,)))["agent any"]
    assert subset(route) == {"pool": "open"}
    # No model is on both workers, and nobody knows yet which of them it will be.
    assert context(route, names.LUA_BODY_FILTER) == {}


def test_the_default_route_comes_last_and_takes_all() -> None:
    found = virtual_host(Config(agents=[CHAT, BATCH]), record("w1")).routes
    assert found[-1].name == "default"
    assert found[-1].match.prefix == "/"
    assert not found[-1].match.headers
    assert subset(found[-1]) == {"pool": "open"}
    assert context(found[-1], names.LUA_BODY_FILTER) == {"model": QWEN.name}


def test_an_agent_that_fails_closed_says_so_to_ext_proc() -> None:
    closed = CHAT.model_copy(update={"failure_mode": "closed"})
    found = routes(Config(agents=[closed, BATCH]))
    per_route = ExtProcPerRoute.FromString(found["agent chat-web"].typed_per_filter_config[names.EXTPROC_FILTER].value)
    assert per_route.overrides.HasField("failure_mode_allow")
    assert per_route.overrides.failure_mode_allow.value is False
    assert names.EXTPROC_FILTER not in found["agent batch-summary"].typed_per_filter_config


# --- the path table (SPEC A6) ---


def test_requests_without_an_agent_are_rejected_without_extproc_too() -> None:
    config = Config.model_validate({"agents": [], "routing": {"default_fallback": "reject"}})
    found = routes(config, record("w1"))
    per_route = ExtProcPerRoute.FromString(found["default"].typed_per_filter_config[names.EXTPROC_FILTER].value)
    assert per_route.overrides.failure_mode_allow.value is False
    assert names.EXTPROC_FILTER not in routes(Config(), record("w1"))["default"].typed_per_filter_config


def test_a_path_is_its_agents_route_with_the_workers_path() -> None:
    found = routes(Config(agents=[CHAT, BATCH]), record("w1", models=(QWEN, PHI)))
    route = found["path /api/chat"]
    assert route.match.path == "/api/chat"
    assert not route.match.headers
    assert route.route.prefix_rewrite == "/v1/chat/completions"
    assert subset(route) == {"model": "qwen"}
    assert context(route, names.LUA_AGENT_FILTER) == {
        "agent_id": "chat-web",
        "allow_client_agent": False,
        "request_id_bytes": 128,
    }
    assert subset(found["path /api/summary"]) == {"model": "phi"}


def test_where_a_client_may_name_its_agent_each_has_a_route() -> None:
    entry = PathEntry(path="/api/any", agent_id="chat-web", rewrite="/v1/completions", allow_client_agent=True)
    found = routes(Config(agents=[CHAT, BATCH], paths=[entry]))
    route = found["path /api/any agent batch-summary"]
    assert route.match.path == "/api/any"
    assert route.match.headers[0].string_match.exact == "batch-summary"
    assert route.route.prefix_rewrite == "/v1/completions"
    assert subset(route) == {"model": "phi"}
    assert list(found).index("path /api/any agent batch-summary") < list(found).index("path /api/any")
    assert subset(found["path /api/any"]) == {"model": "qwen"}


def test_paths_come_before_agents() -> None:
    """A client's own agent must not carry it past a path that names another."""
    order = list(routes(Config(agents=[CHAT, BATCH])))
    assert order == ["path /api/chat", "path /api/summary", "agent batch-summary", "agent chat-web", "default"]


def test_a_path_of_an_unknown_agent_still_has_a_route() -> None:
    entry = PathEntry(path="/api/new", agent_id="not-yet")
    assert subset(routes(Config(agents=[CHAT], paths=[entry]))["path /api/new"]) == {"pool": "open"}


# --- for every route ---


def test_no_route_cuts_a_long_generation() -> None:
    for route in routes(Config(agents=[CHAT])).values():
        assert route.route.HasField("timeout")
        assert route.route.timeout.ToMilliseconds() == 0


def test_retries_walk_the_list_and_no_further() -> None:
    policy = virtual_host(Config(routing=Routing(candidates=4))).retry_policy
    assert policy.num_retries.value == 3
    reasons = {"connect-failure", "refused-stream", "reset", "retriable-status-codes", "retriable-headers"}
    assert set(policy.retry_on.split(",")) == reasons
    # A 500 is not among the codes: Lua marks the first one only.
    assert list(policy.retriable_status_codes) == [503]
    assert [header.name for header in policy.retriable_headers] == [names.RETRY_MARK]
    assert names.RETRY_MARK in virtual_host(Config()).response_headers_to_remove
    assert list(policy.retriable_status_codes) == [503]
    # A generation may take longer than any such bound.
    assert not policy.HasField("per_try_timeout")
    assert not policy.HasField("per_try_idle_timeout")


def test_the_request_id_bound_is_configured() -> None:
    found = routes(Config(agents=[CHAT], limits=Limits(request_id_bytes=64)))
    for route in found.values():
        assert context(route, names.LUA_AGENT_FILTER)["request_id_bytes"] == 64


def test_cors_can_be_switched_off() -> None:
    assert "envoy.filters.http.cors" in virtual_host(Config()).typed_per_filter_config
    off = Config(gateway=Gateway(cors=Cors(allow_origins=[])))
    assert "envoy.filters.http.cors" not in virtual_host(off).typed_per_filter_config


# --- models ---


def test_models_are_the_union_over_the_ready_workers() -> None:
    cards = model_cards(
        [
            record("w1", models=(Model("a/x", "", 4_096), Model("b", ""))),
            record("w2", models=(Model("a/x", "", 2_048),), lora_adapters=["sql"]),
            record("w3", models=(Model("gone", ""),), status=WorkerStatus.MISSING),
            record("w4", models=(Model("own", ""),), exclusive=True),
        ]
    )
    assert list(cards) == ["a/x", "auto", "b", "own", "sql"]
    assert json.loads(cards["a/x"]) == {
        "id": "a/x",
        "object": "model",
        "created": 0,
        "owned_by": "recursant",
        # What any of them takes.
        "max_model_len": 2_048,
    }
    assert "max_model_len" not in json.loads(cards["b"])


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("phi-4", ["/v1/models/phi-4"]),
        ("Q/q 2.5", ["/v1/models/Q%2Fq%202.5", "/v1/models/Q%2fq%202.5", "/v1/models/Q/q%202.5"]),
    ],
)
def test_a_slash_in_a_name_may_come_escaped(name: str, paths: list[str]) -> None:
    assert paths_of(name) == paths


def test_a_long_list_of_models_is_not_too_long_for_envoy() -> None:
    worker = record("w1", models=tuple(Model(f"model-{index}", "") for index in range(500)))
    built = RouteConfiguration.FromString(gateway_routes(Config(), [worker]))
    (listed,) = [route for route in built.virtual_hosts[0].routes if route.name == "models"]
    body = listed.direct_response.body.inline_string
    assert len(json.loads(body)["data"]) == 501
    assert built.max_direct_response_body_size_bytes.value >= len(body) > 4_096
