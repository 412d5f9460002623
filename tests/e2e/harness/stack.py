"""One whole product, as users run it."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from recursant.names import AGENT_ID
from recursant.supervise.endpoints import Endpoints, read_endpoints

# Relative: benchmarks import this as part of `tests.e2e`.
from .metrics import Metrics
from .programs import Program
from .waiting import WAIT_S, alive, wait_until

START_S = 90.0
# For one request: generations of tests are short; only a hang takes this long.
REQUEST_S = 60.0
ANY_PORTS = (
    *("--gateway-port", "0", "--admin-port", "0", "--api-port", "0", "--xds-port", "0"),
    *("--worker-port", "0", "--xds-metrics-port", "0", "--extproc-metrics-port", "0"),
)
MakeStack = Callable[..., "Stack"]


class Stack:
    """One `recursant up`."""

    def __init__(
        self,
        directory: Path,
        *,
        workers: int | None = 2,
        args: Sequence[str] = (),
        config: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare it; `start()` starts it.

        Args:
            directory: a folder of its own; the run directory is inside.
            workers: simulated workers; None: whatever `up` decides.
            args: further arguments of `recursant up`.
            config: the text of a recursant.yaml; None: the built-in one.
            env: further environment variables.
        """
        self.directory = directory
        self.run_dir = directory / "run"
        self._args = [*ANY_PORTS, "--run-dir", str(self.run_dir)]
        if workers is not None:
            self._args += ["--workers", str(workers)]
        if config is not None:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "given.yaml").write_text(config)
            self._args += ["--config", str(directory / "given.yaml")]
        self._args += args
        self._env = env
        self._program: Program | None = None
        self._extra: list[Program] = []
        self._clients: list[httpx.Client] = []
        self._client: httpx.Client | None = None

    # --- life ---

    def start(self, *, until_ready: bool = True) -> Self:
        """Start it and wait for `ready`."""
        assert self._program is None, "already started"
        self._program = Program(self.directory, "up", ["up", *self._args], env=self._env)
        if until_ready:
            self.wait_ready()
        return self

    def wait_ready(self, timeout: float = START_S) -> None:
        """Wait until `ready` is printed."""
        deadline = time.monotonic() + timeout
        while "ready" not in self.up.output.splitlines()[-1:]:
            if self.up.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"`recursant up` did not get ready:\n{self.describe()}")
            time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send the signal, wait for the end; the exit status."""
        for program in self._extra:
            program.end()
        self.up.send(number)
        return self.up.wait()

    def close(self) -> None:
        """End everything at once, whatever state it is in. Harmless twice.

        `kill -9`: what is left of a test needs no drain, and nothing may survive it. `stop()` is how users end it.
        """
        for client in self._clients:
            client.close()
        if self._program is None:
            return
        pids = [*self._pids_or_none(), *(program.pid for program in self._extra)]
        for program in (self.up, *self._extra):
            program.kill()
        wait_until(lambda: not any(map(alive, pids)), what="all processes are gone")

    @property
    def up(self) -> Program:
        """The supervisor itself."""
        assert self._program is not None, "not started"
        return self._program

    # --- what runs where ---

    @property
    def endpoints(self) -> Endpoints:
        """`endpoints.json` as it is now."""
        return read_endpoints(self.run_dir)

    @property
    def pids(self) -> dict[str, int]:
        """Children that run now: redis, xds, api, extproc, envoy, sim-PORT..."""
        return self.endpoints.pids

    @property
    def worker_pids(self) -> dict[str, int]:
        """Simulated workers that run now."""
        return {worker.id: worker.pid for worker in self.endpoints.workers if worker.pid is not None}

    @property
    def worker_urls(self) -> dict[str, str]:
        """Base URLs of all workers, by id."""
        return {worker.id: worker.url for worker in self.endpoints.workers}

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal a child by its name; the pid it had."""
        pid = self.pids[name]
        os.kill(pid, number)
        return pid

    def wait_restarted(self, name: str, old_pid: int, timeout: float = WAIT_S) -> int:
        """Wait until a child runs again; its new pid. It may not be ready yet."""
        return wait_until(
            lambda: pid if (pid := self.pids.get(name)) not in (None, old_pid) else None,
            timeout,
            what=f"{name} is started again",
        )

    def wait_settled(self) -> None:
        """Wait until every extproc refuses what nobody serves: it does not while workers may still report."""
        self.wait_until(lambda: all(self._refuses() for _ in range(4)))

    def _refuses(self) -> bool:
        # A worker that gets it in spite of that says 404, too, with another code.
        answer = self.chat(agent=None, model="no-such")
        return answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"

    def wait_worker(self, worker_id: str, status: str = "ready", timeout: float = WAIT_S) -> None:
        """Wait until the control API shows the worker in this status."""
        wait_until(
            lambda: any(each["id"] == worker_id and each["status"] == status for each in self.workers()),
            timeout,
            what=f"{worker_id} is {status}",
        )

    def start_sim(self, *args: str, port: int = 0) -> Program:
        """One more worker, `recursant sim`, that joins the fleet by itself and ends with the stack."""
        name = f"sim-extra-{len(self._extra)}"
        arguments = ["sim", "--port", str(port), "--run-dir", str(self.run_dir), *args]
        self._extra.append(Program(self.directory, name, arguments))
        return self._extra[-1]

    def start_program(self, *arguments: str, env: Mapping[str, str] | None = None) -> Program:
        """Another command of ours that ends with the stack: `stack.start_program("worker", "sidecar", ...)`."""
        self._extra.append(Program(self.directory, f"extra-{len(self._extra)}", arguments, env=env))
        return self._extra[-1]

    # --- requests ---

    @property
    def client(self) -> httpx.Client:
        """An HTTP client for the gateway."""
        if self._client is None:
            self._client = self.new_client()
        return self._client

    def new_client(self, **options: Any) -> httpx.Client:
        """Another client for the gateway; closed with the stack."""
        defaults: dict[str, Any] = {"base_url": self.endpoints.gateway, "timeout": REQUEST_S, "trust_env": False}
        client = httpx.Client(**{**defaults, **options})
        self._clients.append(client)
        return client

    def async_client(self, **options: Any) -> httpx.AsyncClient:
        """An asynchronous client for the gateway; the test closes it (`async with`)."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        defaults: dict[str, Any] = {
            "base_url": self.endpoints.gateway,
            "timeout": REQUEST_S,
            "trust_env": False,
            "limits": limits,
        }
        return httpx.AsyncClient(**{**defaults, **options})

    @staticmethod
    def chat_body(content: str = "Hello", *, model: str = "auto", max_tokens: int = 8, **fields: Any) -> dict[str, Any]:
        """The body of a chat request."""
        return {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            **fields,
        }

    def chat(
        self,
        content: str = "Hello",
        *,
        agent: str | None = "chat-web",
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> httpx.Response:
        """One chat request through the gateway, not streamed. `agent=None` sends no X-Agent-ID."""
        named = {AGENT_ID: agent} if agent is not None else {}
        return self.client.post(path, json=self.chat_body(content, **fields), headers={**named, **(headers or {})})

    @contextlib.contextmanager
    def stream(
        self,
        content: str = "Hello",
        *,
        agent: str | None = "chat-web",
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Iterator[httpx.Response]:
        """A streamed chat request; leave the block early and the client hangs up."""
        named = {AGENT_ID: agent} if agent is not None else {}
        body = self.chat_body(content, stream=True, **fields)
        with self.client.stream("POST", path, json=body, headers={**named, **(headers or {})}) as response:
            yield response

    # --- looking inside ---

    def metrics(self) -> Metrics:
        """The control API's metrics, those of extproc and xds included."""
        return Metrics(_get(f"{self.endpoints.api}/metrics").text)

    def service_metrics(self, service: str) -> Metrics:
        """A service's own metrics: `extproc`, `xds` or `api`."""
        return Metrics(_get(self.endpoints.metrics[service]).text)

    def inflight(self) -> float:
        """Requests in flight as extproc counts them, over all workers."""
        return sum(self.service_metrics(each).value("recursant_inflight_requests") for each in self.extproc_names)

    @property
    def extproc_names(self) -> list[str]:
        """The extproc processes, whether they run now or not."""
        return [name for name in self.endpoints.metrics if name.startswith("extproc")]

    def workers(self) -> list[dict[str, Any]]:
        """The fleet as the control API shows it."""
        document = _get(f"{self.endpoints.api}/v1/workers").json()
        return list(document["workers"])

    def sim_state(self, worker_id: str) -> dict[str, Any]:
        """GET /sim/state of a simulated worker."""
        state: dict[str, Any] = _get(f"{self.worker_urls[worker_id]}/sim/state").json()
        return state

    def sim_fault(self, worker_id: str, **fault: Any) -> None:
        """POST /sim/faults of a simulated worker."""
        answer = httpx.post(f"{self.worker_urls[worker_id]}/sim/faults", json=fault, timeout=REQUEST_S, trust_env=False)
        answer.raise_for_status()

    def admin(self, path: str) -> str:
        """GET a path of Envoy's admin interface."""
        return _get(f"{self.endpoints.admin}{path}").text

    wait_until = staticmethod(wait_until)

    def log(self, name: str) -> str:
        """The log of a child."""
        path = self.run_dir / "logs" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def describe(self) -> str:
        """Everything that helps to understand a failure."""
        parts = [f"--- up stdout\n{self.up.output}", f"--- up stderr\n{self.up.errors}"]
        for path in sorted((self.run_dir / "logs").glob("*.log")):
            parts.append(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:]))
        return "\n".join(parts)

    def _pids_or_none(self) -> list[int]:
        try:
            return [self.up.pid, *self.pids.values()]
        except Exception:  # noqa: BLE001 - cleaning up; a test may have broken the file on purpose
            return [self.up.pid]


def _get(url: str) -> httpx.Response:
    response = httpx.get(url, timeout=REQUEST_S, trust_env=False)
    response.raise_for_status()
    return response
