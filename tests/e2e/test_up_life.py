"""`recursant up` from start to end: what it says, what it writes, and that nothing is left behind."""

import json
import os
import shlex
import signal
import stat
import threading
import time
from pathlib import Path

import httpx
import pytest
from harness.programs import recursant
from harness.stack import MakeStack, Stack
from harness.waiting import alive, wait_until
from redis_server import RedisServer

pytestmark = pytest.mark.e2e


def test_says_what_runs_where_and_ready_last(stack: Stack) -> None:
    lines = stack.up.output.splitlines()
    assert lines[-1] == "ready"
    assert lines.count("ready") == 1
    assert len(lines) <= 12
    told = stack.endpoints
    for address in (told.gateway, told.admin, told.api, told.xds, *told.extproc):
        assert address in stack.up.output


def test_the_curl_that_it_names_works(stack: Stack) -> None:
    [line] = [line for line in stack.up.output.splitlines() if line.strip().startswith("curl ")]
    curl, include, url, *rest = shlex.split(line)
    assert (curl, include) == ("curl", "-i")
    options = list(zip(rest[::2], rest[1::2], strict=True))
    headers = dict(value.split(": ", 1) for option, value in options if option == "-H")
    [body] = [value for option, value in options if option == "-d"]
    answer = httpx.post(url, headers=headers, content=body, timeout=60, trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["x-recursant-agent"] == headers["X-Agent-ID"] == "chat-web"
    assert answer.headers["x-recursant-worker"] in stack.worker_pids
    assert answer.json()["model"] == "Qwen/Qwen2.5-7B-Instruct"


def test_endpoints_tell_addresses_and_processes(stack: Stack) -> None:
    told = stack.endpoints
    assert told.pid == stack.up.pid
    assert set(told.pids) == {"redis", "xds", "api", "extproc", "envoy", *stack.worker_pids}
    assert len(stack.worker_pids) == 4
    assert all(map(alive, told.pids.values()))
    assert {process.name: process.pid for process in told.processes} == told.pids
    for url in (f"{told.gateway}/healthz", f"{told.admin}/ready", f"{told.api}/v1/health", *told.metrics.values()):
        assert httpx.get(url, timeout=60, trust_env=False).status_code == 200
    for worker in told.workers:
        assert httpx.get(f"{worker.url}/health", timeout=60, trust_env=False).status_code == 200


def test_files_are_for_their_owner_alone(stack: Stack) -> None:
    for name in ("endpoints.json", "recursant.yaml"):
        assert stat.S_IMODE((stack.run_dir / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(stack.run_dir.stat().st_mode) == 0o700


def test_every_process_has_its_log(stack: Stack) -> None:
    assert {path.stem for path in (stack.run_dir / "logs").glob("*.log")} == set(stack.pids)
    assert "listening" in stack.log("extproc")


def test_the_effective_configuration_is_written_and_loads(stack: Stack) -> None:
    assert recursant("config", "check", str(stack.run_dir / "recursant.yaml")).exit_code == 0


def test_ctrl_c_ends_everything(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1)
    pids = list(stack.pids.values())
    assert stack.stop(signal.SIGINT) == 0
    assert not any(map(alive, pids))
    left = {path.name for path in stack.run_dir.iterdir()}
    assert left == {"envoy.yaml", "recursant.yaml", "lock", "logs", "redis"}
    assert "Traceback" not in stack.up.errors
    assert "died" not in stack.up.errors


def test_killed_hard_it_leaves_no_process_and_starts_again(make_stack: MakeStack) -> None:
    killed = make_stack(workers=2)
    pids = list(killed.pids.values())
    os.kill(killed.up.pid, signal.SIGKILL)
    killed.up.wait()
    wait_until(lambda: not any(map(alive, pids)), what="all processes are gone")
    assert (killed.run_dir / "endpoints.json").exists()
    again = make_stack(workers=1, args=["--run-dir", str(killed.run_dir)], started=False)
    again.run_dir = killed.run_dir
    again.start()
    assert not set(pids) & set(again.pids.values())
    assert again.chat().status_code == 200


def test_stopped_while_it_starts(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, started=False).start(until_ready=False)
    endpoints = stack.run_dir / "endpoints.json"
    pids: list[int] = wait_until(
        lambda: endpoints.exists() and list(json.loads(endpoints.read_text())["pids"].values()),
        what="the first process runs",
    )
    assert stack.stop() == 0
    assert not any(map(alive, pids))
    assert "ready" not in stack.up.output
    assert "Traceback" not in stack.up.errors


def read_stream(stack: Stack, seen: list[str], first: threading.Event, tokens: int) -> None:
    with stack.stream(max_tokens=tokens, ignore_eos=True) as response:
        for line in response.iter_lines():
            if line:
                seen.append(line)
                first.set()


def test_a_running_stream_may_end(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, args=["--drain-timeout", "60"])
    seen: list[str] = []
    first = threading.Event()
    reader = threading.Thread(target=read_stream, args=(stack, seen, first, 200))
    reader.start()
    assert first.wait(30)
    assert stack.stop(signal.SIGTERM) == 0
    reader.join(30)
    assert seen[-1] == "data: [DONE]"


def test_a_second_signal_does_not_wait(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, args=["--drain-timeout", "3600"])
    pids = list(stack.pids.values())
    with stack.stream(max_tokens=100_000, ignore_eos=True) as response:
        next(response.iter_lines())
        stack.up.send(signal.SIGINT)
        wait_until(lambda: "stopping;" in stack.up.errors, what="the first signal is heard")
        time.sleep(0.5)
        assert alive(stack.up.pid)
        stack.up.send(signal.SIGINT)
        assert stack.up.wait() == 0
    assert not any(map(alive, pids))


def test_a_run_directory_too_long_for_sockets(make_stack: MakeStack, tmp_path: Path) -> None:
    folder = tmp_path / ("long-" * 20)
    stack = make_stack(workers=1, args=["--run-dir", str(folder)], started=False)
    stack.run_dir = folder
    stack.start()
    [listen] = stack.endpoints.extproc
    assert not listen.startswith(f"unix:{folder}")
    assert stack.chat().headers["x-recursant-worker"] in stack.worker_pids
    assert stack.stop() == 0
    assert not Path(listen.removeprefix("unix:")).exists()


def test_an_external_redis(make_stack: MakeStack, redis_server: RedisServer) -> None:
    stack = make_stack(workers=1, args=["--redis-url", redis_server.url])
    assert "redis" not in stack.pids
    assert stack.endpoints.redis == redis_server.url
    assert redis_server.url not in stack.up.output  # It could hold a password.
    assert stack.chat().status_code == 200


def test_workers_that_do_not_report_are_scraped(make_stack: MakeStack) -> None:
    """`--worker-urls`: what a real vLLM is to us, a server with vLLM's API and no reporter."""
    fleet = make_stack(workers=2)
    urls = list(fleet.worker_urls.values())
    stack = make_stack(workers=None, args=["--worker-urls", ",".join(urls)])
    assert stack.worker_pids == {}
    ids = {url.removeprefix("http://") for url in urls}
    assert set(stack.worker_urls) == ids
    answer = stack.chat()
    assert answer.status_code == 200
    assert answer.headers["x-recursant-worker"] in ids


def test_says_why_it_is_not_ready(make_stack: MakeStack) -> None:
    stack = make_stack(workers=0, started=False).start(until_ready=False)
    wait_until(lambda: "the gateway is not ready yet: " in stack.up.errors, 60, what="it says why")
    assert "ready" not in stack.up.output.split()
    late = stack.start_sim("--model", "Qwen/Qwen2.5-7B-Instruct")
    stack.wait_ready()
    assert alive(late.pid)
