"""The gateways that ours is measured beside: installing each into an environment of its own, and running it."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench import fleets
from bench.gateway.cases import HEADERS_AGENT
from bench.gateway.rig import free_port
from bench.processes import Child, child, cpu_seconds, tree
from recursant.names import AGENT_ID, LOOPBACK

OUT = Path(__file__).parent / "out"
PINNED = Path(__file__).parent / "peers.txt"
_START_S = 90.0

Command = Callable[[Path, int, Sequence[str], Path], list[str]]


def _router(executable: str, *arguments: str, quiet: str = "warn") -> Command:
    """The three routers in Rust share their flags."""

    def command(binaries: Path, port: int, urls: Sequence[str], _folder: Path) -> list[str]:
        return [
            *(str(binaries / executable), *arguments, "--host", LOOPBACK, "--port", str(port)),
            *("--worker-urls", *urls, "--policy", "round_robin"),
            *("--prometheus-host", LOOPBACK, "--prometheus-port", str(free_port()), "--log-level", quiet),
        ]

    return command


def _litellm(binaries: Path, port: int, urls: Sequence[str], folder: Path) -> list[str]:
    models = [
        {
            "model_name": fleets.MODEL,
            "litellm_params": {"model": f"openai/{fleets.MODEL}", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for url in urls
    ]
    config = folder / "litellm.yaml"
    # Without a key, as ours: checking one would be added to what it costs.
    settings = {"dangerously_permit_weak_or_unset_master_key": True}
    config.write_text(yaml.safe_dump({"model_list": models, "general_settings": settings}))
    return [
        *(str(binaries / "litellm"), "--config", str(config), "--host", LOOPBACK, "--port", str(port)),
        *("--num_workers", "1"),
    ]


COMMANDS: dict[str, Command] = {
    "vllm-router": _router("vllm-router", quiet="warning"),
    "smg": _router("smg", "launch"),
    "sglang-router": _router("python", "-m", "sglang_router.launch_router"),
    "litellm": _litellm,
}
# No peer asks the internet for anything while it is measured, nor goes through a proxy to the backend.
_ENVIRONMENT = {"NO_PROXY": "*", "no_proxy": "*", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}


def pinned() -> dict[str, str]:
    """What bench/peers.txt asks for, by name."""
    lines = PINNED.read_text().split()
    return {line.split("==")[0].split("[")[0]: line for line in lines}


def install(name: str, requirement: str) -> str | None:
    """Install a peer into its own environment, once; what went wrong, or None."""
    folder = OUT / "peers" / name
    done = folder / f"installed-{requirement.split('==')[1]}"
    if done.exists():
        return None
    print(f"installing {requirement}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    result = subprocess.run([*pip, "--only-binary", ":all:", requirement], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        return "does not install: " + (result.stderr.strip().splitlines() or ["no reason given"])[-1]
    done.touch()
    return None


@dataclass
class Peer:
    """A running gateway: where it is reached, and the processes whose trees are measured."""

    name: str
    version: str
    port: int
    roots: list[int]

    def cpu(self) -> float:
        return sum(cpu_seconds(pid) for root in self.roots for pid in tree(root))

    def resident_mib(self) -> float:
        """Proportional: what several processes share is counted once."""
        total = 0
        for root in self.roots:
            for pid in tree(root):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1])
        return total / 1_024


def request() -> str:
    """A chat request of 300 bytes."""
    document = {"model": fleets.MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "fox " * 50}]}
    body = json.dumps(document)
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nuser-agent: bench\r\n{AGENT_ID}: {HEADERS_AGENT}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    )


def answers(port: int) -> bool:
    """Does a chat request get its 200?"""
    body = request().partition("\r\n\r\n")[2]
    asked = urllib.request.Request(
        f"http://{LOOPBACK}:{port}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


@contextlib.asynccontextmanager
async def running(name: str, version: str, urls: Sequence[str], folder: Path) -> AsyncIterator[Peer]:
    """A peer that answers.

    Raises:
        RuntimeError: it does not start; with the last line that it wrote.
    """
    port = free_port()
    log = folder / "logs" / name
    command = COMMANDS[name](OUT / "peers" / name / "bin", port, urls, folder)
    async with child(command, log, env={**os.environ, **_ENVIRONMENT}) as process:
        if (problem := await _no_answer(process, port)) is not None:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise RuntimeError(f"does not start: {problem}: {(lines or ['no output'])[-1][:200]}")
        yield Peer(name, version, port, [process.pid])


async def _no_answer(process: Child, port: int) -> str | None:
    """What is wrong, once it is known; None as soon as it answers."""
    deadline = asyncio.get_running_loop().time() + _START_S
    while not await asyncio.to_thread(answers, port):
        if process.ended:
            return "it ended"
        if asyncio.get_running_loop().time() > deadline:
            return f"no answer within {_START_S:g} s"
        await asyncio.sleep(0.5)
    return None
