"""The class that vLLM loads (entry point group `vllm.stat_logger_plugins`). Importable only where vLLM is.

vLLM ends its server when a stat logger raises, so nothing here does: what goes wrong is said once, counted, and the
engine goes on.
"""

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

import vllm
from vllm.v1.metrics import loggers

from recursant.worker import settings as names
from recursant.worker.nvml import GpuSampler
from recursant.worker.vllm_plugin.counting import Tally
from recursant.worker.vllm_plugin.declared import api_servers, read_declared
from recursant.worker.vllm_plugin.thread import ReporterThread

# A child of vLLM's logger, so that its lines look like the others.
_log = logging.getLogger("vllm.recursant")


class RecursantStatLogger(loggers.AggregateStatLoggerBase):  # type: ignore[misc]
    """Counts what the engines do and reports it to Recursant, if the environment says where.

    Attributes:
        failures: calls that went wrong in here, and were kept from the engine.
        reporter: the thread that reports; None where there is none.
        gpu: the thread that reads the devices; None likewise.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:
        self.failures = 0
        self._tally = Tally()
        self.reporter: ReporterThread | None = None
        self.gpu: GpuSampler | None = None
        try:
            self.reporter = self._start(vllm_config, len(engine_indexes))
        except Exception:  # noqa: BLE001 - it would end the server
            self._failed("start reporting")

    def record(self, scheduler_stats: Any = None, iteration_stats: Any = None, *_: Any, **more: Any) -> None:
        """Count one step. Called on the engine's thread."""
        try:
            self._tally.step(scheduler_stats, iteration_stats, more.get("engine_idx", 0))
        except Exception:  # noqa: BLE001 - it would end the server
            self._failed("count a step")

    def record_sleep_state(self, is_awake: int = 0, *_: Any, **__: Any) -> None:
        """The engine went to sleep or woke up.

        `is_awake` is 1 when it sleeps: vLLM's own loggers call it `sleep`. (1, 0) is sent when only its KV cache was
        given away, so the level tells nothing.
        """
        try:
            self._tally.slept(asleep=bool(is_awake))
        except Exception:  # noqa: BLE001 - it would end the server
            self._failed("note its sleep")

    def record_admission_rejection(self, *_: Any, **__: Any) -> None:
        """A queue limit refused a request."""
        try:
            self._tally.reject()
        except Exception:  # noqa: BLE001 - it would end the server
            self._failed("count a refusal")

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def log(self) -> None:
        """Nothing to log: the reporter has a clock of its own."""

    def _start(self, config: Any, engines: int) -> ReporterThread | None:
        settings = names.from_environment(
            os.environ,
            hostname=socket.gethostname(),
            command_line=sys.argv,
            annotations=_annotations(os.environ.get(names.ANNOTATIONS_FILE)),
        )
        if settings is None:
            _log.info("Recursant is installed, and told nowhere to report: set %s or %s", names.REDIS_URL, names.API)
            return None
        if api_servers(config) > 1:
            # Each of them sees its own requests only, and the engines' figures now and then.
            _log.warning("several API servers share the engines: report with `recursant worker sidecar` instead")
            return None
        devices = read_declared(config, engines).devices
        if names.GPUS in os.environ:
            # What an operator names is all of it, and nothing else.
            gpu = GpuSampler(settings.gpus)
        else:
            gpu = GpuSampler(settings.gpus if devices is not None else None, devices)
        reporter = ReporterThread(
            settings,
            config,
            engines,
            self._tally,
            engine=f"vllm {vllm.__version__}",
            log=_log,
            read_gpu=gpu.read,
        )
        gpu.start()
        self.gpu = gpu
        reporter.start()
        return reporter

    def _failed(self, what: str) -> None:
        self.failures += 1
        if self.failures == 1:
            _log.exception("cannot %s; vLLM goes on, and further such errors are only counted", what)


def _annotations(path: str | None) -> str:
    if not path:
        return ""
    with Path(path).open("rb") as file:
        return file.read(names.MAX_ANNOTATIONS_BYTES).decode(errors="replace")
