"""What `recursant up` shows: progress while it starts, a summary, and then only what matters."""

import contextlib
import json
import shlex
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self, TextIO

from rich.console import Console
from rich.status import Status

from recursant import __version__
from recursant.config.model import Config
from recursant.fleet.address import join_address
from recursant.names import AGENT_ID, LOOPBACK
from recursant.supervise.layout import Layout
from recursant.supervise.plan import dialled
from recursant.supervise.process import Died, Event, ProcessSpec, Ready, describe_exit
from recursant.supervise.rundir import RunDirectory

_MOST_NAMES: Final = 6
_LOOPBACKS: Final = (LOOPBACK, "::1", "localhost")


class UpView:
    """Tells the operator how the run goes: the summary on standard output, everything else on standard error.

    Nobody has to listen: when a terminal or a pipe goes away the run goes on.
    """

    def __init__(
        self,
        layout: Layout,
        run: RunDirectory,
        specs: Sequence[ProcessSpec],
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
    ) -> None:
        self._layout = layout
        self._run = run
        self._missing = [spec.name for spec in specs]
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._console = Console(file=self._err, highlight=False)
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status(self._progress())
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_progress()

    def event(self, event: Event) -> None:
        """Show what happened, if it matters."""
        match event:
            case Ready(name, _, after_s, again):
                if name in self._missing:
                    self._missing.remove(name)
                if again:
                    self._note(f"{name} is back")
                elif self._status is None:
                    self._note(f"{name} is up after {after_s:.1f} s")
                if self._status is not None:
                    self._status.update(self._progress())
            case Died(name, pid, exit_status, restart_in_s):
                then = "" if restart_in_s is None else f", starting it again in {restart_in_s:g} s"
                self._note(f"{name} (pid {pid}) died: {describe_exit(exit_status)}{then}")

    def waiting(self, reason: str) -> None:
        """Everything runs, but the gateway is not ready."""
        self._note(f"the gateway is not ready yet: {reason}")
        if not self._layout.worker_ports and not self._layout.config.workers:
            # Nobody else will say so: the summary comes with the first worker.
            command = (
                f"recursant worker sidecar --url http://{LOOPBACK}:8000 --run-dir {shlex.quote(str(self._run.path))}"
            )
            self._note(f"a vLLM that runs on this machine comes in with `{command}`")

    def ready(self) -> None:
        """Print what runs where."""
        self._end_progress()
        _say(self._out, "\n".join([*summary(self._layout, self._run), "ready"]))

    def edited(self, lines: Sequence[str]) -> None:
        """The configuration file was edited."""
        for line in lines:
            self._note(line)

    def stopping(self, *, at_once: bool) -> None:
        """A signal arrived."""
        self._end_progress()
        self._note("stopping at once" if at_once else "stopping; running requests may end (Ctrl-C again: at once)")

    def _progress(self) -> str:
        shown = self._missing[:_MOST_NAMES]
        more = len(self._missing) - len(shown)
        names = ", ".join(shown) + (f" and {more} more" if more else "")
        return f"starting: waiting for {names or 'the gateway'}"

    def _end_progress(self) -> None:
        if self._status is not None:
            with contextlib.suppress(OSError):
                self._status.stop()
            self._status = None

    def _note(self, text: str) -> None:
        if self._status is not None:
            self._console.print(text, markup=False, soft_wrap=True)
        else:
            _say(self._err, text)


def summary(layout: Layout, run: RunDirectory) -> list[str]:
    """What runs where, and a request to try, in about ten lines."""
    config = layout.config
    gateway = f"http://{join_address(dialled(config.gateway.host), config.gateway.port)}"
    admin = f"http://{join_address(dialled(config.gateway.admin_host), config.gateway.admin_port)}"
    api = f"http://{join_address(dialled(config.api.host), config.api.port)}"
    lines = [
        f"Recursant {__version__}, logs in {run.logs}",
        f"  gateway  {gateway}   Envoy, admin {admin}",
        f"  api      {api}   metrics at /metrics",
        f"  xds      {join_address(config.xds.host, config.xds.port)}",
        f"  extproc  {' '.join(config.extproc.listen)}",
        f"  redis    {_redis(layout)}",
        f"  workers  {_workers(layout)}",
    ]
    if config.gateway.host not in _LOOPBACKS:
        lines.append(f"  warning  the gateway listens on {config.gateway.host}, without TLS and without keys")
    return [*lines, "try:", f"  {example(config, gateway)}", "stop with Ctrl-C"]


def example(config: Config, gateway: str) -> str:
    """A request to try, for the first agent of the configuration."""
    body = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}]}
    agent = f" -H '{_title(AGENT_ID)}: {config.agents[0].agent_id}'" if config.agents else ""
    return (
        f"curl -i {gateway}/v1/chat/completions{agent} -H 'Content-Type: application/json' "
        f"-d '{json.dumps(body, separators=(',', ':'))}'"
    )


def _title(header: str) -> str:
    """`x-agent-id` as people write it."""
    return "-".join("ID" if word == "id" else word.title() for word in header.split("-"))


def _redis(layout: Layout) -> str:
    if layout.redis_port is not None:
        return f"{LOOPBACK}:{layout.redis_port}, embedded, keeps nothing"
    return "external, as configured"  # Its URL may hold a password.


def _workers(layout: Layout) -> str:
    parts = []
    if layout.worker_ports:
        ports = layout.worker_ports
        where = f"{LOOPBACK}:{ports[0]}" + (f"…{ports[-1]}" if len(ports) > 1 else "")
        parts.append(f"{len(ports)} simulated at {where}, serving {', '.join(layout.worker_models)}")
    if layout.config.workers:
        names = ", ".join(worker.worker_id for worker in layout.config.workers[:4])
        more = ", …" if len(layout.config.workers) > 4 else ""
        parts.append(f"{len(layout.config.workers)} configured: {names}{more}")
    return (
        "; ".join(parts) or "none: start some with `recursant sim`, or bring a vLLM in with `recursant worker sidecar`"
    )


def _say(stream: TextIO, text: str) -> None:
    # A reader that has gone (a closed terminal, `| head`) is no reason to stop serving.
    with contextlib.suppress(OSError, ValueError):
        print(text, file=stream, flush=True)
