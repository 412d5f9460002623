"""docs/workers.md: its names exist, its files are read, and its shell line does what it says."""

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from sim_kit import running

from recursant.cli.app import run
from recursant.config.load import parse_config
from recursant.worker import settings

DOCUMENT = (Path(__file__).parents[2] / "docs" / "workers.md").read_text()
VARIABLES = {value for value in vars(settings).values() if isinstance(value, str) and value.startswith("RECURSANT_")}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


def manifest() -> dict[str, Any]:
    (found,) = [block for block in map(yaml.safe_load, blocks("yaml")) if block.get("kind") == "StatefulSet"]
    return dict(found)


def containers() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in manifest()["spec"]["template"]["spec"]["containers"]}


def test_every_variable_is_described_and_exists() -> None:
    assert set(re.findall(r"`(RECURSANT_\w+)`", DOCUMENT)) == VARIABLES


def test_every_option_exists(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["worker", "sidecar", "--help"]) == 0
    shown = capsys.readouterr().out
    options = re.findall(r"\| `(--[a-z-]+)` \|", DOCUMENT)
    assert len(options) == len(VARIABLES) + 1  # and vLLM's own key
    used = [word for word in map(str, containers()["recursant"]["args"]) if word.startswith("--")]
    for option in {*options, *used, "--model", "--priority-scheduling", "--drain-timeout", "--scrape-interval-ms"}:
        assert option in shown, option


def test_the_static_workers_are_a_configuration() -> None:
    (text,) = [block for block in blocks("yaml") if "workers:" in block]
    assert [worker.port for worker in parse_config(text, "docs/workers.md").config.workers] == [8000, 8000]


def test_the_manifest_tells_the_sidecar_what_it_reads() -> None:
    given = {entry["name"]: entry.get("value", "") for entry in containers()["recursant"]["env"]}
    environment = {name: value.replace("$(POD_IP)", "10.0.0.9") for name, value in given.items() if name in VARIABLES}
    annotations = manifest()["spec"]["template"]["metadata"]["annotations"]
    told = settings.from_environment(
        environment,
        hostname="vllm-qwen-0",
        annotations="\n".join(f'{name}="{value}"' for name, value in annotations.items()),
    )
    assert told is not None
    assert (told.address, told.capacity_tokens) == ("10.0.0.9:8000", 128_000)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
async def test_the_pre_stop_hook_waits_for_what_runs() -> None:
    line = containers()["vllm"]["lifecycle"]["preStop"]["exec"]["command"][2]
    async with running() as sim:
        request = asyncio.create_task(sim.complete(max_tokens=100, ignore_eos=True))
        await sim.fault("freeze")
        hook = await asyncio.create_subprocess_shell(
            line.replace("127.0.0.1:8000", f"127.0.0.1:{sim.service.port}").replace("sleep 3", "sleep 0.2")
        )
        await asyncio.sleep(1.5)
        assert hook.returncode is None
        await sim.client.delete("/sim/faults")
        assert (await request).is_success
        async with asyncio.timeout(20):
            assert await hook.wait() == 0
