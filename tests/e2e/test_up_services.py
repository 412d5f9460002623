"""Every service as a command of its own, as containers run them (docker-compose.yml): one configuration for all."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from harness.programs import Program
from harness.waiting import wait_until
from redis_server import RedisServer

from recursant.supervise.ports import free_ports

pytestmark = pytest.mark.e2e

MODEL = "Qwen/Qwen2.5-7B-Instruct"
CONFIG = ("--config", "recursant.yaml")
SERVICES = ("xds", "extproc", "api", "envoy")


class Services:
    """The services of docker-compose.yml, and one simulated worker, without containers."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        names = ("gateway", "admin", "api", "xds", "xds_metrics", "extproc", "extproc_metrics", "worker")
        self.ports = dict(zip(names, free_ports("127.0.0.1", len(names)), strict=True))
        ports = self.ports
        (folder / "recursant.yaml").write_text(
            f"agents: [{{agent_id: chat-web, model_family: qwen}}]\nredis: {{url: '{redis_url}'}}\n"
            f"gateway: {{port: {ports['gateway']}, admin_port: {ports['admin']}}}\napi: {{port: {ports['api']}}}\n"
            f"xds: {{port: {ports['xds']}, metrics_port: {ports['xds_metrics']}}}\n"
            f"extproc: {{listen: ['127.0.0.1:{ports['extproc']}'], metrics_port: {ports['extproc_metrics']}}}\n"
        )
        self.gateway = f"http://127.0.0.1:{ports['gateway']}"
        self.programs = {name: Program(folder, name, ["serve", name, *CONFIG]) for name in SERVICES}
        self.programs["sim"] = Program(
            folder,
            "sim",
            ["sim", "--port", str(ports["worker"]), "--worker-id", "w1", "--model", MODEL],
            env={"RECURSANT_REDIS_URL": redis_url},
        )

    def chat(self) -> httpx.Response:
        body = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        url = f"{self.gateway}/v1/chat/completions"
        return httpx.post(url, json=body, headers={"X-Agent-ID": "chat-web"}, timeout=60, trust_env=False)


@pytest.fixture
def services(tmp_path: Path, redis_server: RedisServer) -> Iterator[Services]:
    running = Services(tmp_path, redis_server.url)
    try:
        yield running
    finally:
        for program in running.programs.values():
            program.end()


def test_they_find_each_other_and_end_on_sigterm(services: Services) -> None:
    """They start all at once, as containers without an order would."""
    answer = wait_until(
        lambda: found if (found := services.chat()).headers.get("x-recursant-worker") else None,
        60,
        what="a request is routed",
    )
    assert (answer.status_code, answer.headers["x-recursant-worker"]) == (200, "w1")
    assert answer.json()["model"] == MODEL
    for name in ("envoy", "extproc", "api", "xds", "sim"):
        services.programs[name].send(signal.SIGTERM)
        assert services.programs[name].wait() == 0, services.programs[name].errors
        assert "Traceback" not in services.programs[name].errors


def test_envoy_lets_running_streams_end(services: Services) -> None:
    wait_until(lambda: services.chat().headers.get("x-recursant-worker"), 60, what="a request is routed")
    body = {"model": MODEL, "prompt": "x", "max_tokens": 150, "ignore_eos": True, "stream": True}
    lines: list[str] = []
    first = threading.Event()

    def read() -> None:
        url = f"{services.gateway}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=60, trust_env=False) as response:
            for line in response.iter_lines():
                if line:
                    lines.append(line)
                    first.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert first.wait(30)
    services.programs["envoy"].send(signal.SIGTERM)
    assert services.programs["envoy"].wait() == 0
    reader.join(30)
    assert lines[-1] == "data: [DONE]"


def test_an_envoy_that_dies_is_an_error_for_whoever_runs_it(services: Services) -> None:
    program = services.programs["envoy"]
    admin = f"http://127.0.0.1:{services.ports['admin']}"
    wait_until(lambda: httpx.get(f"{admin}/ready", trust_env=False).status_code == 200, 60, what="Envoy runs")
    httpx.post(f"{admin}/quitquitquit", trust_env=False)
    assert program.wait() == 1
    assert program.errors.splitlines()[-1] == "error: envoy ended by itself (exit code 0)"


def test_an_address_in_use_is_one_line(services: Services, tmp_path: Path) -> None:
    answers = {"xds": "xds_metrics", "extproc": "extproc_metrics", "api": "api", "sim": "worker"}
    for name, port in answers.items():
        url = f"http://127.0.0.1:{services.ports[port]}/metrics"
        wait_until(lambda url=url: httpx.get(url, trust_env=False).status_code == 200, 60, what=f"{name} runs")
        arguments = ["sim", "--port", str(services.ports[port])] if name == "sim" else ["serve", name, *CONFIG]
        second = Program(tmp_path, f"{name}-second", arguments)
        assert second.wait() == 1
        assert second.errors.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in second.errors
