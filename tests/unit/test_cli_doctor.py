"""`recursant doctor` and `recursant version`: what is here, and what to do about what is not."""

import json
import os
import socket
from pathlib import Path

import pytest
import yaml
from redis_server import RedisServer

from recursant import __version__
from recursant.cli.app import run
from recursant.hot_path import build
from recursant.supervise.endpoints import Endpoints
from recursant.supervise.ports import free_ports


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RECURSANT_API", "RECURSANT_RUN_DIR", "RECURSANT_ENVOY"):
        monkeypatch.delenv(name, raising=False)


def free_config(extra: str = "") -> str:
    ports = free_ports("127.0.0.1", 6)
    return (
        f"gateway: {{port: {ports[0]}, admin_port: {ports[1]}}}\napi: {{port: {ports[2]}}}\n"
        f"xds: {{port: {ports[3]}, metrics_port: {ports[4]}}}\nextproc: {{metrics_port: {ports[5]}}}\n{extra}"
    )


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    code = run(["doctor", "-o", "json", *arguments])
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)}


def test_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recursant.yaml").write_text(free_config())
    code, checks = doctor(capsys)
    assert code == 0
    assert {name: check["verdict"] for name, check in checks.items() if name != "open files"} == dict.fromkeys(
        [
            "python",
            "platform",
            "recursant",
            "packages",
            "envoy",
            "embedded redis",
            "files",
            "configuration",
            "run directory",
            "ports",
            "redis",
        ],
        "ok",
    )
    assert checks["envoy"]["found"].startswith("1.40.0 at ")
    assert not (tmp_path / "run").exists()  # it only looks


def test_table_names_each_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recursant.yaml").write_text(free_config())
    assert run(["doctor"]) == 0
    assert "embedded redis" in capsys.readouterr().out


def test_a_missing_binary(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RECURSANT_ENVOY", "/nowhere/envoy")
    code, checks = doctor(capsys)
    assert code == 1
    assert checks["envoy"]["verdict"] == "fail"
    assert "/nowhere/envoy" in checks["envoy"]["found"]
    assert checks["envoy"]["advice"]


def test_a_binary_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = tmp_path / "envoy"
    fake.write_text("#!/bin/sh\necho hello\n")
    fake.chmod(0o755)
    monkeypatch.setenv("RECURSANT_ENVOY", str(fake))
    code, checks = doctor(capsys)
    assert (code, checks["envoy"]["verdict"]) == (1, "fail")
    assert "does not run: hello" in checks["envoy"]["found"]


def test_another_version_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recursant.yaml").write_text(free_config())
    fake = tmp_path / "envoy"
    fake.write_text("#!/bin/sh\necho 'envoy  version: abc/1.29.3/Clean/RELEASE/BoringSSL'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("RECURSANT_ENVOY", str(fake))
    code, checks = doctor(capsys)
    assert (code, checks["envoy"]["verdict"]) == (0, "warn")


def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        (tmp_path / "recursant.yaml").write_text(f"gateway: {{port: {port}}}\n")
        code, checks = doctor(capsys)
    assert (code, checks["ports"]["verdict"]) == (1, "fail")
    assert f"port {port} for the gateway is in use" in checks["ports"]["found"]


def test_ports_of_a_running_product_are_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        (tmp_path / "recursant.yaml").write_text(f"gateway: {{port: {server.getsockname()[1]}}}\n")
        (tmp_path / "run").mkdir()
        running = Endpoints("1", "/r", os.getpid(), "g", "a", "api", "x", "redis://127.0.0.1:1/0", [], {})
        (tmp_path / "run" / "endpoints.json").write_text(running.to_json())
        _, checks = doctor(capsys)
    assert checks["ports"]["verdict"] == "ok"
    assert checks["run directory"]["found"].endswith(", running")
    assert checks["redis"]["verdict"] == "fail"  # it asks the one that runs


def test_a_bad_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("wat: 1\nhow: 2\n")
    code, checks = doctor(capsys, "--config", "mine.yaml")
    assert (code, checks["configuration"]["verdict"]) == (1, "fail")
    assert checks["configuration"]["found"].startswith("mine.yaml:1: wat")
    assert checks["configuration"]["found"].endswith("(and 1 more)")
    assert checks["configuration"]["advice"] == "recursant config check mine.yaml"
    assert "ports" not in checks


def test_redis_that_answers(redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recursant.yaml").write_text(free_config(f"redis: {{url: '{redis_server.url}'}}\n"))
    code, checks = doctor(capsys)
    assert (code, checks["redis"]["verdict"]) == (0, "ok")


def test_redis_that_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_ports("127.0.0.1", 1)[0]
    (tmp_path / "recursant.yaml").write_text(free_config(f"redis: {{url: 'redis://:hunter2@127.0.0.1:{port}/0'}}\n"))
    code, checks = doctor(capsys)
    assert (code, checks["redis"]["verdict"]) == (1, "fail")
    assert "hunter2" not in json.dumps(checks)


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_version_for_programs(form: str, read: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "-o", form]) == 0
    versions = read(capsys.readouterr().out)  # type: ignore[operator]
    assert versions["recursant"] == __version__
    assert versions["hot path"] in ("compiled", "not compiled")
    assert versions["envoy"] == "1.40.0"


def test_version_as_programs_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"recursant {build()}\n"


def test_version_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    assert ["recursant", __version__] in [line.split() for line in capsys.readouterr().out.splitlines()]
