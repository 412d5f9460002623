"""The command line's frame: help, options, exit codes, what an error looks like, and how quickly it starts."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_kit import commands, parse, recursant
from typer.main import get_command

from recursant.cli.app import app, run
from recursant.cli.options import split_commas

HEAVY = ("envoy", "envoy_data_plane", "fastapi", "google", "grpc", "httpx", "numpy", "pydantic", "redis", "uvicorn")


def test_the_commands_there_are() -> None:
    assert {" ".join(path) for path in commands()} == {
        "",
        "config",
        "config check",
        "decisions",
        "doctor",
        "explain",
        "plan",
        "policy",
        "policy apply",
        "policy delete",
        "policy diff",
        "policy get",
        "policy validate",
        "serve",
        "serve api",
        "serve envoy",
        "serve extproc",
        "serve xds",
        "sim",
        "status",
        "up",
        "version",
        "worker",
        "worker sidecar",
        "workers",
        "workers drain",
        "workers isolate",
        "workers list",
        "workers release",
        "workers resume",
        "workers undrain",
    }


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_help_teaches(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Usage: recursant" in text
    if not hasattr(find(path), "commands"):
        assert f"recursant {' '.join(path)}" in text.split("Usage:")[1].split("\n", 2)[2], "no example"


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_options_are_kebab_case_and_described(path: tuple[str, ...]) -> None:
    for parameter in find(path).params:
        long = [name for name in parameter.opts if name.startswith("--")]
        assert all(re.fullmatch(r"--[a-z]+(-[a-z]+)*", name) for name in long), parameter.opts


def find(path: tuple[str, ...]) -> Any:
    command: Any = get_command(app)
    for name in path:
        command = command.commands[name]
    return command


def test_the_module_and_the_script_are_the_same_command() -> None:
    script = Path(sys.executable).with_name("recursant")
    done = subprocess.run([script, "version"], capture_output=True, text=True, check=True)
    assert done.stdout == recursant("version", env={"COLUMNS": "80"}).out


def test_without_a_command_it_shows_help() -> None:
    done = recursant()
    assert "Usage: recursant" in done.out + done.err


@pytest.mark.parametrize(
    "arguments",
    [["no-such-command"], ["up", "--no-such-option"], ["up", "--workers", "many"], ["up", "--gateway-port", "65536"]],
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "Usage: recursant" in capsys.readouterr().err


def test_an_expected_error_is_one_line_without_a_traceback() -> None:
    done = recursant("config", "check", "/nowhere.yaml")
    assert (done.exit_code, done.out) == (2, "")
    assert done.err == "error: /nowhere.yaml: no such file\n"


def test_debug_shows_where_an_error_came_from() -> None:
    done = recursant("--debug", "config", "check", "/nowhere.yaml")
    assert done.exit_code == 2
    assert "Traceback (most recent call last)" in done.err
    assert done.err.endswith("error: /nowhere.yaml: no such file\n")


def test_a_reader_that_has_gone_is_no_error() -> None:
    script = f"{sys.executable} -P -m recursant.cli version | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("0", "1")  # whether it wrote before or after that
    assert done.stderr == ""


def test_nothing_heavy_is_imported_for_help() -> None:
    code = f"import sys, recursant.cli.app; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Only names of namespaces that other distributions share may appear: none does.
    assert done.stdout == "[]\n"


def test_comma_lists_and_repeats_are_the_same() -> None:
    assert split_commas(["a,b", " c ", ""]) == ("a", "b", "c")
    assert split_commas(None) == ()


def test_environment_variables_stand_in_for_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECURSANT_API", "http://there")
    monkeypatch.setenv("RECURSANT_RUN_DIR", "/there")
    _, options = parse(["workers", "list"])
    assert (options["api"], options["run_dir"]) == ("http://there", Path("/there"))
