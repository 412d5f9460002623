"""Real vLLM servers on the CPU, with a tiny model, for tests; each killed with the test process at the latest."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
from harness import waiting
from harness.metrics import Metrics

from recursant.supervise import launch
from recursant.supervise.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("RECURSANT_VLLM_HOME", ROOT / ".venv-vllm"))
MODEL_DIR = HOME / "tiny-model"
ADAPTER_DIR = HOME / "tiny-lora"
CLIENTS_PYTHON = HOME / "clients/bin/python"
# What all servers serve; its family is qwen by the name alone. Each serves `qwen-` and its own name, too.
MODEL = "qwen-tiny"
MAX_MODEL_LEN = 2_048
BLOCK_TOKENS = 32
# A server starts in 30 to 70 s on two cores, two of them at once in longer.
START_S = 300.0
REQUEST_S = 120.0
# How long an engine that is held runs between two looks at it, and how often it is looked at before it runs on.
RUN_S = 0.03
LOOKS = 3
LOOPBACK = "127.0.0.1"

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # GiB; a bound, taken only where no block count is given.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # For /sleep and /pause.
    "VLLM_SERVER_DEV_MODE": "1",
    # Several servers share the cores.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
_ARGUMENTS = (
    *("--host", LOOPBACK),
    *("--max-model-len", str(MAX_MODEL_LEN), "--enforce-eager", "--dtype", "float32"),
    *("--block-size", str(BLOCK_TOKENS)),
    # For /load, which tells what has come while the engine is held.
    "--enable-server-load-tracking",
)


_T = TypeVar("_T")


def wait_until(
    condition: Callable[[], _T], timeout: float = REQUEST_S, *, interval: float = 0.05, what: str = "the condition"
) -> _T:
    """As in the other tests, with more patience: several engines share the cores."""
    return waiting.wait_until(condition, timeout, interval=interval, what=what)


class VllmServer:
    """One `vllm serve`."""

    def __init__(
        self,
        directory: Path,
        name: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        model: Path = MODEL_DIR,
    ) -> None:
        """Prepare it; `start()` starts it.

        Args:
            directory: for its log.
            name: of the log, and of the model that it alone serves.
            arguments: further ones of `vllm serve`.
            env: further environment variables.
            port: where it listens; None: a free one.
            model: the directory of the model.
        """
        self.name = name
        self.port = port or free_ports(LOOPBACK, 1)[0]
        self.url = f"http://{LOOPBACK}:{self.port}"
        self._log = directory / f"{name}.log"
        self.model = f"qwen-{name}"
        own = ("--port", str(self.port), "--served-model-name", MODEL, self.model)
        self._arguments = ("serve", str(model), *_ARGUMENTS, *own, *arguments)
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        # Its process, and that of its engine.
        self._engine: tuple[int, int] | None = None
        self.client = httpx.Client(base_url=self.url, timeout=REQUEST_S, trust_env=False)

    # --- life ---

    def start(self) -> Self:
        """Start it; `wait_ready()` waits."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", launch.__file__, str(os.getpid())),
                    # Whoever watches an engine comes before it where cores are short.
                    *("nice", "-n", "10"),
                    *(str(HOME / "bin/vllm"), *self._arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **_ENVIRONMENT, **self._env},
                start_new_session=True,
            )
        self.started_at = time.monotonic()
        return self

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "not started"
        return self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_ready(self) -> Self:
        """Wait until /health says 200."""
        self._wait_healthy()
        say(f"{self.name} is ready after {time.monotonic() - self.started_at:.0f} s")
        return self

    def _wait_healthy(self) -> None:
        def healthy() -> bool:
            self._check_alive()
            return self.client.get("/health").status_code == 200

        wait_until(healthy, START_S, interval=0.5, what=f"vLLM {self.name} is healthy")

    def _check_alive(self) -> None:
        if not self.alive:
            raise AssertionError(f"vLLM {self.name} ended:\n{self.log[-4_000:]}")

    def engine_pid(self) -> int:
        """The process that runs the model's scheduler."""
        # Whoever looks for it each time is late where it is to be held.
        if self._engine is None or self._engine[0] != self.process.pid:
            self._engine = self.process.pid, self._find_engine()
        return self._engine[1]

    def _find_engine(self) -> int:
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = path.read_text()
                rest = stat.rpartition(") ")[2].split()
                if int(rest[1]) == self.process.pid and "EngineCore" in path.with_name("cmdline").read_text():
                    return int(path.parent.name)
        raise AssertionError(f"vLLM {self.name} has no engine process")

    def kill(self) -> None:
        """SIGKILL to all of it."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        self.kill()
        self.client.close()

    # --- what it says ---

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def metrics(self) -> Metrics:
        """GET /metrics."""
        answer = self.client.get("/metrics")
        answer.raise_for_status()
        return Metrics(answer.text)

    def wait_idle(self) -> None:
        """Wait until nothing runs or waits."""

        def idle() -> bool:
            self._check_alive()
            metrics = self.metrics()
            return not metrics.value("vllm:num_requests_running") + metrics.value("vllm:num_requests_waiting")

        wait_until(idle, REQUEST_S, what=f"{self.name} is idle")

    def load(self) -> int:
        """Requests that its HTTP server has. Those that were cut may count on: compare it with an earlier look."""
        load: int = self.client.get("/load").json()["server_load"]
        return load

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the engine between two steps, with all that it has; it answers, as /is_paused asks it."""
        self.client.post("/pause", params={"mode": "keep"}).raise_for_status()
        try:
            yield
        finally:
            self.client.post("/resume").raise_for_status()

    @contextlib.contextmanager
    def stopped(self) -> Iterator["Stopped"]:
        """Hold the engine's process where it is; its HTTP server goes on taking requests, and the plugin reporting."""
        stopped = Stopped(self.engine_pid())
        stopped.hold()
        try:
            yield stopped
        finally:
            stopped.let_go()

    def memory_mb(self) -> float:
        """Proportional set size of all its processes, MB."""
        total = 0
        for path in Path("/proc").glob("[0-9]*/smaps_rollup"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                if int(path.with_name("stat").read_text().rpartition(") ")[2].split()[2]) != self.process.pid:
                    continue
                line = next(each for each in path.read_text().splitlines() if each.startswith("Pss:"))
                total += int(line.split()[1])
        return total / 1_000


class Stopped:
    """An engine's process that is held: a busy machine takes none of its states away before it was looked at.

    Its HTTP server has nothing to do meanwhile but to answer: while a quick engine streams, it can take seconds.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def hold(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def let_go(self) -> None:
        """Let it run on. Harmless where it was killed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGCONT)

    def run_until(self, condition: Callable[[], object], *, what: str) -> None:
        """Let it run a little at a time until a condition holds, which is asked while it is held."""

        def holds() -> bool:
            for _ in range(LOOKS):
                if condition():
                    return True
                # Its server may still be at what the engine has made.
                time.sleep(RUN_S)
            self.let_go()
            time.sleep(RUN_S)
            self.hold()
            return False

        wait_until(holds, REQUEST_S, what=what)


def completion(prompt: Any = "The gateway takes", *, max_tokens: int = 8, **fields: Any) -> dict[str, Any]:
    """The body of a completion that ends only at its limit."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, **fields}


def token_prompt(tokens: int, start: int = 0) -> Sequence[int]:
    """A prompt of exactly so many tokens; another `start`, another prompt from its first token on."""
    return [300 + (start * 37 + index * 11) % 650 for index in range(tokens)]


def say(text: str) -> None:
    """Progress, past pytest's capturing."""
    print(f"test-vllm: {text}", file=sys.__stderr__, flush=True)
