"""The processes of `recursant up`, as data."""

import dataclasses
import sys
from pathlib import Path

from cli_kit import parse

from recursant.config.load import parse_config
from recursant.supervise.endpoints import ProcessEndpoint, WorkerEndpoint
from recursant.supervise.layout import Layout, UpOptions, lay_out
from recursant.supervise.plan import RunChoices, endpoints, plan
from recursant.supervise.probe import HttpProbe, RedisProbe, TcpProbe, UnixProbe
from recursant.supervise.process import ProcessSpec
from recursant.supervise.restart import SERVICE, WORKER
from recursant.supervise.rundir import RunDirectory

RUN = RunDirectory(Path("/r"))
CHOICES = RunChoices(envoy_binary=Path("/bin/envoy"))
SECRET = "redis://:hunter2@r:1/0"


def layout(text: str = "agents: [{agent_id: a, model_family: qwen}]", **options: object) -> Layout:
    return lay_out(parse_config(text, "test.yaml").config, UpOptions(**options), RUN)  # type: ignore[arg-type]


def specs(choices: RunChoices = CHOICES, **options: object) -> dict[str, ProcessSpec]:
    return {spec.name: spec for spec in plan(layout(**options), RUN, choices)}


def test_order_of_start_and_so_of_the_end() -> None:
    found = specs(workers=2)
    assert list(found) == ["redis", "xds", "api", "extproc", "sim-8101", "sim-8102", "envoy"]
    middle = ("xds", "api", "extproc", "sim-8101", "sim-8102")
    assert found["redis"].after == ()
    assert all(found[name].after == ("redis",) for name in middle)
    assert found["envoy"].after == middle


def test_an_external_redis_is_not_waited_for() -> None:
    found = specs(redis_url=SECRET)
    assert "redis" not in found
    assert found["xds"].after == ()


def test_our_own_commands_exist_with_these_options() -> None:
    prefix = (sys.executable, "-P", "-m", "recursant.cli")
    lines = {
        name: parse(spec.command[len(prefix) :])
        for name, spec in specs(dataclasses.replace(CHOICES, transport="grpcio", log_level="debug")).items()
        if spec.command[: len(prefix)] == prefix
    }
    assert {name: path for name, (path, _) in lines.items()} == {
        "xds": "recursant serve xds",
        "api": "recursant serve api",
        "extproc": "recursant serve extproc",
        **{f"sim-{port}": "recursant sim" for port in (8101, 8102, 8103, 8104)},
    }
    for name in ("xds", "api", "extproc"):
        assert lines[name][1]["config"] == Path("/r/recursant.yaml")
    assert lines["extproc"][1]["transport"] == "grpcio"
    assert {options["log_level"] for _, options in lines.values()} == {"debug"}
    sim = lines["sim-8102"][1]
    assert (sim["port"], sim["worker_id"], sim["model"]) == (8102, "sim-8102", ["Qwen/Qwen2.5-7B-Instruct"])


def test_the_control_plane_watches_the_operators_file_and_reads_the_effective_one() -> None:
    found = specs(dataclasses.replace(CHOICES, watched=Path("recursant.yaml")))
    watching = {name: spec.command for name, spec in found.items() if "--watch" in spec.command}
    assert set(watching) == {"xds", "api"}
    for command in watching.values():
        # The same file, whatever folder they run in.
        assert command[command.index("--watch") + 1] == str(Path("recursant.yaml").absolute())
        assert command[command.index("--config") + 1] == str(RUN.config)
        parse(command[4:])
    assert not any("--watch" in spec.command for spec in specs().values())


def test_passwords_are_not_on_command_lines() -> None:
    found = specs(redis_url=SECRET, workers=1)
    assert not any("hunter2" in argument for spec in found.values() for argument in spec.command)
    assert found["sim-8101"].env == {"RECURSANT_REDIS_URL": SECRET}


def test_what_ready_means() -> None:
    found = specs(workers=1)
    redis = found["redis"].ready
    assert isinstance(redis, RedisProbe)
    assert found["redis"].address == f"127.0.0.1:{redis.port}"
    assert found["xds"].ready == TcpProbe("127.0.0.1", 18000)
    assert found["api"].ready == HttpProbe("127.0.0.1", 8001, "/v1/health")
    assert found["extproc"].ready == UnixProbe("/r/extproc.sock")
    assert found["sim-8101"].ready == HttpProbe("127.0.0.1", 8101, "/health")
    assert found["envoy"].ready == HttpProbe("127.0.0.1", 9901, "/ready")


def test_everything_is_started_again_and_workers_later() -> None:
    found = specs(workers=1)
    assert {name: spec.restart for name, spec in found.items()} == {
        **dict.fromkeys(("redis", "xds", "api", "extproc", "envoy"), SERVICE),
        "sim-8101": WORKER,
    }


def test_only_envoy_has_running_requests_to_wait_for() -> None:
    assert [name for name, spec in specs().items() if spec.quiesce is not None] == ["envoy"]


def test_servers_on_all_addresses_are_reached_on_this_machine() -> None:
    text = "gateway: {host: '0.0.0.0', admin_host: '::'}\nxds: {host: '0.0.0.0'}\napi: {host: '0.0.0.0'}"
    wide = layout(text, workers=0)
    found = {spec.name: spec for spec in plan(wide, RUN, CHOICES)}
    assert found["xds"].ready == TcpProbe("127.0.0.1", 18000)
    assert found["envoy"].ready == HttpProbe("::1", 9901, "/ready")
    told = endpoints(wide, RUN, list(found.values()), {})
    assert (told.gateway, told.admin) == ("http://127.0.0.1:8000", "http://[::1]:9901")


def test_endpoints_tell_what_runs_now() -> None:
    chosen = layout(workers=2, worker_urls=("http://gpu:9000",))
    told = endpoints(chosen, RUN, plan(chosen, RUN, CHOICES), {"envoy": 7, "sim-8102": 8})
    assert told.workers == [
        WorkerEndpoint("gpu:9000", "http://gpu:9000", None),
        WorkerEndpoint("sim-8101", "http://127.0.0.1:8101", None),
        WorkerEndpoint("sim-8102", "http://127.0.0.1:8102", 8),
    ]
    assert ProcessEndpoint("envoy", 7, "127.0.0.1:8000") in told.processes
    assert ProcessEndpoint("xds", None, "127.0.0.1:18000") in told.processes
    assert told.pids == {"envoy": 7, "sim-8102": 8}
    assert told.run_dir == "/r"
    assert told.redis == chosen.config.redis.url
    assert told.metrics == {
        "extproc": "http://127.0.0.1:9003/metrics",
        "xds": "http://127.0.0.1:18001/metrics",
        "api": "http://127.0.0.1:8001/metrics",
    }
