"""A real Redis-compatible server for tests: started on a free port, killed, paused and restarted at will."""

import contextlib
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from recursant.store.embedded import embedded_redis_command

START_SECONDS = 20.0


def free_port() -> int:
    """A TCP port of the loopback address that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """One server process. It keeps its port over restarts and nothing else: each start is empty."""

    def __init__(self, directory: Path, *, port: int | None = None) -> None:
        self.directory = directory
        self.port = port if port is not None else free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Start the server, empty, and wait until it answers."""
        assert self._process is None, "already started"
        with (self.directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                embedded_redis_command(self.directory, port=self.port), stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"no server on port {self.port}:\n{(self.directory / 'redis.log').read_text()}")
            time.sleep(0.01)
        return self

    def kill(self) -> None:
        """End the server at once, as `kill -9` does. Harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart_empty(self) -> None:
        """Kill the server and start an empty one on the same port."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Let it hang: the port stays open, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
            client.sendall(b"PING\r\n")
            return client.recv(16) == b"+PONG\r\n"
        return False
