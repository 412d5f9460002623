"""docker-compose.yml and the Dockerfile, as far as they can be tested without a Docker engine."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_kit import parse

from recursant import __version__, names
from recursant.config.load import load_config

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
CONFIG = load_config(ROOT / "deploy/compose/recursant.yaml")
CONFIG_IN_CONTAINER = "/etc/recursant/recursant.yaml"
# Of the configuration for containers alone; by itself extproc listens on a socket file.
EXTPROC_PORT = 9002


def instructions(word: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line.removeprefix(word).strip() for line in joined.splitlines() if line.startswith(f"{word} ")]


def copied() -> set[str]:
    """What the image is built from."""
    return {source for line in instructions("COPY") if "--from" not in line for source in shlex.split(line)[:-1]}


def test_the_services_there_are() -> None:
    always = {name for name, service in SERVICES.items() if "profiles" not in service}
    assert always == {"redis", "xds", "extproc", "api", "envoy"}
    assert {profile for service in SERVICES.values() for profile in service.get("profiles", [])} == {"sim", "gpu"}
    assert set(OURS) == {"xds", "extproc", "api", "envoy", "sim-1", "sim-2", "sim-3"}


@pytest.mark.parametrize("name", OURS)
def test_every_command_exists(name: str) -> None:
    path, options = parse(OURS[name]["command"])
    expected = "recursant sim" if name.startswith("sim-") else f"recursant serve {name}"
    assert path == expected
    if "config" in options:
        assert options["config"] == Path(CONFIG_IN_CONTAINER)


@pytest.mark.parametrize("name", OURS)
def test_every_file_named_exists_and_is_mounted_read_only(name: str) -> None:
    for volume in OURS[name]["volumes"]:
        source, target, mode = volume.split(":")
        assert (ROOT / source).is_file()
        assert (target, mode) == (CONFIG_IN_CONTAINER, "ro")
    assert (ROOT / OURS[name]["build"] / "Dockerfile").is_file()


@pytest.mark.parametrize("name", SERVICES)
def test_everything_waited_for_exists_and_can_be_healthy(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    for other, condition in service.get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[other]
        assert "profiles" not in SERVICES[other], "would not be started"


def test_health_is_asked_in_python_that_compiles_of_the_ports_that_the_code_uses() -> None:
    asked = {}
    for name, service in OURS.items():
        python, flag, code = service["healthcheck"]["test"][1:]
        assert (python, flag) == ("python", "-c")
        compile(code, name, "exec")
        asked[name] = code
    assert f"('xds', {names.XDS_PORT})" in asked["xds"]
    assert f"('extproc', {EXTPROC_PORT})" in asked["extproc"]
    assert f"http://api:{names.API_PORT}/v1/health" in asked["api"]
    assert f"http://127.0.0.1:{names.GATEWAY_PORT}/healthz" in asked["envoy"]
    for name in ("sim-1", "sim-2", "sim-3"):
        assert f"http://127.0.0.1:{names.WORKER_PORT}/health" in asked[name]


def test_published_ports_are_the_code_s() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    gateway, api = names.GATEWAY_PORT, names.API_PORT
    # The control API has no keys: only this machine may reach it.
    assert published == {"envoy": [f"{gateway}:{gateway}"], "api": [f"127.0.0.1:{api}:{api}"]}


@pytest.mark.parametrize("name", ["sim-1", "sim-2", "sim-3"])
def test_simulated_workers_are_reachable_from_other_containers(name: str) -> None:
    _, options = parse(OURS[name]["command"])
    assert options["host"] == "0.0.0.0"
    assert options["advertise"] == f"{name}:{options['port']}"
    assert options["port"] == names.WORKER_PORT
    assert options["worker_id"] == name
    assert OURS[name]["environment"] == {"RECURSANT_REDIS_URL": CONFIG.redis.url}


def test_the_configuration_names_the_services() -> None:
    assert CONFIG.redis.url == "redis://redis:6379/0"
    assert CONFIG.extproc.listen == (f"extproc:{EXTPROC_PORT}",)
    hosts = {CONFIG.xds.host, CONFIG.xds.metrics_host, CONFIG.extproc.metrics_host, CONFIG.api.host}
    assert hosts | {worker.host for worker in CONFIG.workers} <= set(SERVICES)
    assert CONFIG.gateway.host == "0.0.0.0"
    assert CONFIG.gateway.admin_host == names.LOOPBACK  # Whoever reaches it can stop Envoy.
    # Everything else by default: the code's ports.
    assert (CONFIG.gateway.port, CONFIG.xds.port, CONFIG.api.port) == (
        names.GATEWAY_PORT,
        names.XDS_PORT,
        names.API_PORT,
    )


def test_a_worker_for_each_family_of_the_agents() -> None:
    models = [model for name in OURS if name.startswith("sim-") for model in parse(OURS[name]["command"])[1]["model"]]
    for agent in CONFIG.agents:
        assert any(agent.model_family and agent.model_family in model.lower() for model in models)


def test_vllm_listens_where_it_is_scraped() -> None:
    [worker] = CONFIG.workers
    vllm = SERVICES[worker.host]
    command = vllm["command"]
    assert vllm["profiles"] == ["gpu"]
    assert command[command.index("--port") + 1] == str(worker.port)
    assert command[command.index("--model") + 1] in worker.models
    assert f":{worker.port}/health" in vllm["healthcheck"]["test"][-1]


def test_containers_may_end_their_requests() -> None:
    _, options = parse(OURS["envoy"]["command"])
    assert int(OURS["envoy"]["stop_grace_period"].removesuffix("s")) > options["drain_timeout"]


def test_the_image_is_built_from_files_that_exist_and_are_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert ignored[0] == "*"
    assert all((ROOT / source).exists() for source in copied())
    assert copied() == sent


def test_the_image_holds_all_that_the_wheel_is_built_from() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"]} <= copied()


def test_the_image_runs_our_command_without_root() -> None:
    [entrypoint] = instructions("ENTRYPOINT")
    assert yaml.safe_load(entrypoint) == ["recursant"]
    assert instructions("USER") == ["10001:10001"]
    [command] = instructions("CMD")
    assert yaml.safe_load(command) == ["--help"]
    assert ".[gateway]" in instructions("RUN")[-1]


def test_the_image_s_ports_and_version_are_the_code_s() -> None:
    [exposed] = instructions("EXPOSE")
    assert {int(port) for port in exposed.split()} == {
        names.GATEWAY_PORT,
        names.API_PORT,
        names.WORKER_PORT,
        EXTPROC_PORT,
        names.EXTPROC_METRICS_PORT,
        names.XDS_PORT,
        names.XDS_METRICS_PORT,
    }
    assert {service["image"] for service in OURS.values()} == {f"recursant:{__version__}"}


def test_other_images_are_pinned() -> None:
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[a-z0-9/-]+:v?\d+\.\d[\w.-]*", service["image"]), name


def test_the_image_is_compiled_and_has_no_compiler() -> None:
    _, builder, image = DOCKERFILE.split("\nFROM ")
    [environment] = [line.removeprefix("ENV ") for line in builder.splitlines() if line.startswith("ENV ")]
    settings = dict(each.split("=") for each in shlex.split(environment))
    # As `make compiled` has it; and what the build requires is pinned like everything else, with any pip.
    assert settings.pop("RECURSANT_COMPILE") == "1"
    assert "RECURSANT_COMPILE=1 " in (ROOT / "Makefile").read_text()
    [workdir] = [line.removeprefix("WORKDIR ") for line in builder.splitlines() if line.startswith("WORKDIR ")]
    assert settings == dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), f"{workdir}/constraints.txt")
    assert "gcc" in builder
    assert "apt-get" not in image
    assert "RUN" not in image
