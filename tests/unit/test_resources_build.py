import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from fleet_kit import PHI, QWEN, record

from recursant import data, names
from recursant.agents.policy import AgentPolicy
from recursant.config.model import Config, ExtProc, Gateway, Limits, Xds
from xds_server.resource import CLUSTER, ENDPOINT, EXTENSION_CONFIG, LISTENER, ROUTE, Resource
from xds_server.resources.addresses import Address, parse_address
from xds_server.resources.bootstrap import render
from xds_server.resources.build import build, build_endpoints

ROOT = Path(__file__).parents[2]
AGENTS = [
    AgentPolicy(agent_id="chat-web", model_family="qwen", priority=10),
    AgentPolicy(agent_id="batch-summary", model_family="phi", priority=1),
]
WORKERS = [
    record("w1", models=(QWEN, PHI), lora_adapters=["sql", "code"], max_queue=64),
    record("w2", models=(PHI,), max_queue=64),
]


def named(resources: list[Resource]) -> dict[tuple[str, str], Resource]:
    found = {(resource.type_url, resource.name): resource for resource in resources}
    assert len(found) == len(resources)
    return found


def changed(before: list[Resource], after: list[Resource]) -> set[tuple[str, str]]:
    old, new = named(before), named(after)
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


def connection_manager(config: Config) -> HttpConnectionManager:
    listener = Listener.FromString(named(build(config, []))[(LISTENER, "gateway")].body)
    return HttpConnectionManager.FromString(listener.filter_chains[0].filters[0].typed_config.value)


# --- the whole ---


def test_all_there_is() -> None:
    assert list(named(build(Config(agents=AGENTS), WORKERS))) == [
        (CLUSTER, "extproc"),
        (CLUSTER, "fleet"),
        (EXTENSION_CONFIG, names.EXTPROC_FILTER),
        (EXTENSION_CONFIG, names.LUA_AGENT_FILTER),
        (EXTENSION_CONFIG, names.LUA_BODY_FILTER),
        (ENDPOINT, "fleet"),
        (LISTENER, "gateway"),
        (ROUTE, "gateway"),
    ]


def test_the_order_of_workers_and_agents_does_not_show() -> None:
    assert build(Config(agents=AGENTS), WORKERS) == build(Config(agents=AGENTS[::-1]), WORKERS[::-1])


def test_every_process_builds_the_same_bytes() -> None:
    """Versions are hashes of the bytes; hash seeds and caches differ from replica to replica."""
    script = (
        "import sys; sys.path[:0] = ['tests', 'tests/unit']\n"
        "from test_resources_build import AGENTS, WORKERS, Config, build\n"
        "if sys.argv[1] == 'warm': build(Config(agents=AGENTS[:1]), WORKERS[:1])\n"
        "print([resource.version for resource in build(Config(agents=AGENTS), WORKERS)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script, state],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed, state in (("1", "cold"), ("2", "warm"))
    }
    assert said == {f"{[resource.version for resource in build(Config(agents=AGENTS), WORKERS)]}\n".encode()}


# --- what a change touches: a listener that changes drains its connections ---


def test_a_worker_that_joins_changes_endpoints_and_routes_at_most() -> None:
    config = Config(agents=AGENTS)
    joined = [*WORKERS, record("w3", models=(PHI,), max_queue=64)]
    same_models = changed(build(config, WORKERS), build(config, joined))
    assert same_models == {(ENDPOINT, "fleet")}
    new_model = changed(build(config, WORKERS[1:]), build(config, WORKERS))
    assert new_model == {(ENDPOINT, "fleet"), (ROUTE, "gateway")}


def test_a_new_agent_or_path_changes_the_routes_alone() -> None:
    before, after = build(Config(agents=AGENTS[:1]), WORKERS), build(Config(agents=AGENTS), WORKERS)
    assert changed(before, after) == {(ROUTE, "gateway")}


def test_extproc_options_and_lua_travel_without_the_listener() -> None:
    def of(message_timeout_ms: int) -> list[Resource]:
        return build(Config(extproc=ExtProc(message_timeout_ms=message_timeout_ms)), WORKERS)

    assert changed(of(250), of(300)) == {(EXTENSION_CONFIG, names.EXTPROC_FILTER), (CLUSTER, "extproc")}
    listener = named(build(Config(), []))[(LISTENER, "gateway")].body
    for script in ("agent", "body"):
        assert data.envoy_file(f"lua/{script}.lua").read_bytes() not in listener


def test_build_endpoints_is_the_same_resource() -> None:
    assert named(build(Config(), WORKERS))[(ENDPOINT, "fleet")] == build_endpoints(WORKERS)


# --- the connection manager ---


def test_the_filters_in_order() -> None:
    assert [each.name for each in connection_manager(Config()).http_filters] == [
        "envoy.filters.http.cors",
        "envoy.filters.http.buffer",
        names.LUA_AGENT_FILTER,
        names.EXTPROC_FILTER,
        names.LUA_BODY_FILTER,
        "envoy.filters.http.router",
    ]


def test_ext_proc_is_off_where_there_is_no_route() -> None:
    filters = connection_manager(Config()).http_filters
    assert [each.name for each in filters if each.disabled] == [names.EXTPROC_FILTER]


def test_timeouts_and_limits_are_the_configured_ones() -> None:
    limits = Limits(body_timeout_ms=1_234, idle_timeout_ms=5_678)
    manager = connection_manager(Config(limits=limits))
    assert manager.request_timeout.ToMilliseconds() == 1_234
    assert manager.stream_idle_timeout.ToMilliseconds() == 5_678


# --- extproc's cluster ---


def extproc_cluster(*listen: str) -> Cluster:
    resources = named(build(Config(extproc=ExtProc(listen=listen)), []))
    return Cluster.FromString(resources[(CLUSTER, "extproc")].body)


def test_each_extproc_process_is_an_endpoint() -> None:
    cluster = extproc_cluster("unix:/run/a.sock", "unix:/run/b.sock")
    assert [e.endpoint.address.pipe.path for e in cluster.load_assignment.endpoints[0].lb_endpoints] == [
        "/run/a.sock",
        "/run/b.sock",
    ]
    assert cluster.type == Cluster.STATIC
    # Streams live as long as generations.
    assert cluster.circuit_breakers.thresholds[0].max_requests.value >= 1_000_000
    assert len(cluster.health_checks) == 1
    # Dialled with the next request, which is sooner than any check.
    assert not extproc_cluster("unix:/run/a.sock").health_checks
    # Where another one can serve, a process that cannot be reached is left out at the first failure.
    refusing = cluster.outlier_detection
    assert refusing.split_external_local_origin_errors
    assert refusing.consecutive_local_origin_failure.value == 1
    assert refusing.enforcing_consecutive_local_origin_failure.value == 100
    assert refusing.max_ejection_percent.value == 100
    assert not extproc_cluster("unix:/run/a.sock").HasField("outlier_detection")
    assert len(extproc_cluster("10.0.0.1:9002").health_checks) == 1


@pytest.mark.parametrize(
    ("listen", "host", "port", "kind"),
    [
        ("127.0.0.1:9002", "127.0.0.1", 9002, Cluster.STATIC),
        ("[::1]:9002", "::1", 9002, Cluster.STATIC),
        ("extproc:9002", "extproc", 9002, Cluster.STRICT_DNS),
        # What listens on every address is dialled on this machine.
        ("0.0.0.0:9002", "127.0.0.1", 9002, Cluster.STATIC),
    ],
)
def test_extproc_over_tcp(listen: str, host: str, port: int, kind: int) -> None:
    cluster = extproc_cluster(listen)
    address = cluster.load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address
    assert (address.address, address.port_value, cluster.type) == (host, port, kind)


@pytest.mark.parametrize("bad", ["", "unix:", "9002", ":9002", "host:", "host:0", "host:65536", "host:x"])
def test_bad_addresses_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="neither unix:/path nor host:port"):
        parse_address(bad)


def test_good_addresses() -> None:
    assert parse_address("unix:/a b") == Address(path="/a b")
    assert parse_address("[fd00::1]:1") == Address(host="fd00::1", port=1)


# --- the bootstrap ---


def test_the_bootstrap_as_it_stands_has_the_default_ports() -> None:
    plain = yaml.safe_load(data.envoy_file("bootstrap.yaml").read_text())
    assert yaml.safe_load(render(Config(), "gateway-1")) == plain
    assert plain["admin"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": names.ENVOY_ADMIN_PORT}


@pytest.mark.parametrize(
    ("listens_on", "dialled", "kind"),
    [("10.1.1.1", "10.1.1.1", "STATIC"), ("xds", "xds", "STRICT_DNS"), ("0.0.0.0", "127.0.0.1", "STATIC")],
)
def test_the_bootstrap_takes_the_configured_addresses(listens_on: str, dialled: str, kind: str) -> None:
    config = Config(gateway=Gateway(admin_host="127.0.0.2", admin_port=1_111), xds=Xds(host=listens_on, port=2_222))
    rendered = yaml.safe_load(render(config, "gw-7"))
    assert rendered["node"]["id"] == "gw-7"
    assert rendered["admin"]["address"]["socket_address"] == {"address": "127.0.0.2", "port_value": 1_111}
    (cluster,) = rendered["static_resources"]["clusters"]
    assert cluster["type"] == kind
    address = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
    assert address["socket_address"] == {"address": dialled, "port_value": 2_222}


def test_rendering_the_bootstrap_loads_no_xds_messages() -> None:
    script = (
        "import sys; from recursant.config.model import Config; from xds_server.resources.bootstrap import render\n"
        "render(Config(), 'x'); sys.exit('envoy_data_plane' in sys.modules or 'grpc' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
