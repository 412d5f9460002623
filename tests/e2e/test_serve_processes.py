"""`recursant serve extproc --processes 2`: one command, two processes, as a container or a unit file runs it."""

import os
import signal
import socket
from pathlib import Path

import httpx
import pytest
from harness.programs import Program, recursant
from harness.waiting import alive, wait_until
from redis_server import RedisServer

from recursant.supervise.ports import free_range

pytestmark = pytest.mark.e2e


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_processes_are_kept_running_and_end_together(tmp_path: Path, redis_server: RedisServer) -> None:
    port = free_range("127.0.0.1", 2)
    sockets = [tmp_path / "one.sock", tmp_path / "two.sock"]
    (tmp_path / "recursant.yaml").write_text(
        f"redis: {{url: '{redis_server.url}'}}\nextproc:\n  metrics_port: {port}\n"
        f"  listen: ['unix:{sockets[0]}', 'unix:{sockets[1]}']\n"
    )
    program = Program(tmp_path, "extproc", ["serve", "extproc", "--config", "recursant.yaml", "--processes", "2"])
    try:
        wait_until(lambda: all(map(accepts, sockets)), 60, what="both processes listen")
        for each in (port, port + 1):
            assert httpx.get(f"http://127.0.0.1:{each}/metrics", trust_env=False).status_code == 200
        first = children(program.pid)
        assert len(first) == 2
        killed = next(pid for pid in first if "--process\x001\x00" in Path(f"/proc/{pid}/cmdline").read_text())
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not accepts(sockets[0]), what="the killed process is gone")
        wait_until(lambda: accepts(sockets[0]), 60, what="the killed process is back")
        assert accepts(sockets[1])
        running = children(program.pid)
        program.send(signal.SIGTERM)
        assert program.wait() == 0, program.errors
        assert not any(map(alive, running))
        assert "extproc-1" in program.errors
        assert "starting it again" in program.errors
        assert "Traceback" not in program.errors
        assert not any(path.exists() for path in sockets)
    finally:
        program.end()


def test_one_that_cannot_start_ends_all(tmp_path: Path, redis_server: RedisServer) -> None:
    port = free_range("127.0.0.1", 2)
    with socket.create_server(("127.0.0.1", port + 1)):
        (tmp_path / "recursant.yaml").write_text(
            f"redis: {{url: '{redis_server.url}'}}\nextproc:\n  metrics_port: {port}\n  processes: 2\n"
            f"  listen: ['unix:{tmp_path}/one.sock', 'unix:{tmp_path}/two.sock']\n"
        )
        program = Program(tmp_path, "extproc", ["serve", "extproc", "--config", "recursant.yaml"])
        try:
            assert program.wait(60) == 1
        finally:
            program.end()
    assert program.errors.splitlines()[-1] == "error: extproc-2 ended by itself (exit code 1)"
    assert "Address already in use" in program.errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--processes", "2"), "2 processes need an address each, and there are 1: see --listen and extproc.listen"),
        (("--process", "1"), "--process 1: --counts-file is missing"),
        (("--process", "2", "--counts-file", "counts"), "--process 2: there are 1 processes"),
    ],
)
def test_options_that_do_not_fit(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "recursant.yaml").write_text("extproc: {listen: ['127.0.0.1:1']}\n")
    done = recursant("serve", "extproc", *arguments, cwd=tmp_path)
    assert (done.exit_code, done.err.splitlines()[-1]) == (2, f"error: {said}")
