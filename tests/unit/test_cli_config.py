"""`recursant config check`."""

import json
from pathlib import Path

import pytest
import yaml

from recursant.cli.app import run

GOOD = "agents: [{agent_id: a, model_family: qwen}]\nworkers: [{host: h}]\n"
BAD = "agents:\n  - {agent_id: a, priority: -1}\n  - {agent_id: b, wat: 1}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "recursant.yaml"


def test_a_good_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD)
    assert run(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: ok, 1 agents, 1 static workers\n"


def test_every_mistake_has_its_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(BAD)
    assert run(["config", "check", str(file)]) == 2
    head, first, second = capsys.readouterr().err.splitlines()
    assert head == f"error: 2 problems in {file}"
    assert first.startswith(f"{file}:2: agents[0].priority: ")
    assert second.startswith(f"{file}:3: agents[1].wat: ")


def test_one_mistake_is_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("wat: 1")
    assert run(["config", "check", str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {file}:1: wat: ")


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_for_programs(file: Path, form: str, read: object, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(BAD)
    assert run(["config", "check", str(file), "-o", form]) == 2
    document = read(capsys.readouterr().out)  # type: ignore[operator]
    assert document["valid"] is False
    assert [(each["line"], each["field"]) for each in document["problems"]] == [
        (2, "agents[0].priority"),
        (3, "agents[1].wat"),
    ]
    file.write_text(GOOD)
    assert run(["config", "check", str(file), "-o", form]) == 0
    assert read(capsys.readouterr().out)["valid"] is True  # type: ignore[operator]
