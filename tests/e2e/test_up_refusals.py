"""What `recursant up` refuses: one clear line, the right exit code, and nothing was started."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.programs import Done, recursant
from harness.stack import ANY_PORTS, Stack
from harness.waiting import alive

pytestmark = pytest.mark.e2e


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def refused(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Done:
    """Run `up`, which must end by itself, and see that it started nothing."""
    done = recursant("up", "--run-dir", str(folder / "run"), *arguments, cwd=folder, env=env)
    assert done.out == ""
    assert list((folder / "run").glob("logs/*.log")) == [], "a process was started"
    assert not (folder / "run" / "endpoints.json").exists()
    return done


@pytest.mark.parametrize(
    ("option", "who"),
    [
        ("--gateway-port", "the gateway"),
        ("--admin-port", "Envoy's admin interface"),
        ("--xds-port", "the xDS server"),
        ("--api-port", "the control API"),
        ("--worker-port", "simulated worker 1"),
    ],
)
def test_a_port_in_use(tmp_path: Path, busy_port: int, option: str, who: str) -> None:
    done = refused(tmp_path, *ANY_PORTS, option, str(busy_port))
    assert done.exit_code == 1
    me = f"{Path('/proc/self/comm').read_text().strip()} (pid {os.getpid()})"
    assert done.err == (
        f"error: port {busy_port} for {who} is in use by {me}: stop that, or choose another with {option}\n"
    )


def test_a_bad_configuration(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("gateway:\n  prot: 8000\nagents: [{agent_id: a, priority: -1}]\n")
    done = refused(tmp_path, "--config", "bad.yaml")
    assert done.exit_code == 2
    head, *problems = done.err.splitlines()
    assert head == "error: 2 problems in bad.yaml"
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["bad.yaml:2", "gateway.prot"],
        ["bad.yaml:3", "agents[0].priority"],
    ]


def test_the_configuration_of_the_current_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "recursant.yaml").write_text("wat: 1")
    assert refused(tmp_path).err.startswith("error: recursant.yaml:1: wat: ")


def test_a_missing_binary(tmp_path: Path) -> None:
    done = refused(tmp_path, *ANY_PORTS, env={"RECURSANT_ENVOY": "/nowhere/envoy"})
    assert (done.exit_code, done.err) == (
        1,
        "error: RECURSANT_ENVOY names /nowhere/envoy, which is not an executable file\n",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--worker-urls", "gpu-1:8000"], "error: --worker-urls: 'gpu-1:8000' must look like http://host:port\n"),
        (
            ["--worker-port", "65535"],
            "error: 4 workers from port 65535 on go past 65535: lower --worker-port\n",
        ),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = refused(tmp_path, *ANY_PORTS, *arguments)
    assert (done.exit_code, done.err) == (2, said)


def test_a_run_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    done = recursant("up", "--run-dir", "run", cwd=tmp_path)
    assert done.exit_code == 1
    assert done.err.startswith("error: cannot use the run directory ")
    assert done.err.count("\n") == 1


def test_a_second_up_on_the_same_run_directory(stack: Stack) -> None:
    before = stack.endpoints
    done = recursant("up", "--run-dir", str(stack.run_dir), *ANY_PORTS)
    assert (done.exit_code, done.out) == (1, "")
    assert done.err == (
        f"error: `recursant up` (pid {stack.up.pid}) already runs in {stack.run_dir}: "
        "stop it, or choose another folder with --run-dir\n"
    )
    assert stack.endpoints == before
    assert alive(stack.up.pid)


def test_a_service_that_does_not_come_up(tmp_path: Path) -> None:
    """Envoy here is a program that ends at once; the others are stopped again."""
    fake = tmp_path / "envoy"
    fake.write_text("#!/bin/sh\necho 'no licence'\nexit 3\n")
    fake.chmod(0o755)
    done = recursant(
        *("up", "--run-dir", "run", "--workers", "1", *ANY_PORTS), cwd=tmp_path, env={"RECURSANT_ENVOY": str(fake)}
    )
    assert done.exit_code == 1
    assert done.err.splitlines()[-1] == (
        f"error: envoy ended by itself (exit code 3): no licence [{tmp_path}/run/logs/envoy.log]"
    )
    assert "Traceback" not in done.err
    assert not (tmp_path / "run" / "endpoints.json").exists()
