"""The thread that reports: its own heartbeats, idle engine or busy, whatever becomes of the control plane.

It shares an interpreter with the engine's API server, so it does little, waits for nobody, and lets nothing out.
"""

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from recursant.v1.worker_state_pb2 import WorkerState
from recursant.worker.engine_look import EngineLook
from recursant.worker.gpu import GpuFacts
from recursant.worker.own_address import complete_address
from recursant.worker.reporter import FAREWELL_S, Reporter
from recursant.worker.settings import WorkerSettings
from recursant.worker.vllm_plugin.access_log import ACCESS_LOGGER, OwnLooks
from recursant.worker.vllm_plugin.counting import Tally
from recursant.worker.vllm_plugin.declared import Declared, read_declared
from recursant.worker.vllm_plugin.state import Standing, StateBuilder

# After something in here went wrong, it starts afresh after this long. Seconds.
RESTART_S: Final = 5.0

# Read the devices now; None where there are none, or nothing is known of them.
ReadGpu = Callable[[], GpuFacts | None]


class ReporterThread:
    """Reports one vLLM from a daemon thread.

    Args:
        settings: where and as what.
        config: vLLM's VllmConfig; its block count may be filled in later.
        engines: of the server.
        tally: what the engine's thread counts.
        engine: name and version, for people.
        log: where to say what goes wrong.
        read_gpu: reads the devices; must not wait.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        config: Any,
        engines: int,
        tally: Tally,
        *,
        engine: str,
        log: logging.Logger,
        read_gpu: ReadGpu = lambda: None,
    ) -> None:
        self._settings = settings
        self._config = config
        self._engines = engines
        self._declared: Declared | None = None
        self._tally = tally
        self._log = log
        self._read_gpu = read_gpu
        self._builder = StateBuilder(settings, engine)
        self._look = EngineLook(settings.engine_url, settings.api_key)
        self._own_looks = OwnLooks(self._look.addresses)
        self._address = settings.address
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = threading.Event()
        self._failed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="recursant-reporter", daemon=True)

    def start(self) -> None:
        """Start reporting; say farewell when the process exits in order."""
        # Ours are not its clients.
        logging.getLogger(ACCESS_LOGGER).addFilter(self._own_looks)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Say that the worker has stopped, and end; takes a second or so at most. Harmless twice."""
        # A forked child has no such thread.
        if self._pid != os.getpid() or self._stopped.is_set():
            return
        self._stopped.set()
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            # It may be over at this very moment.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        self._thread.join(FAREWELL_S * 2)
        logging.getLogger(ACCESS_LOGGER).removeFilter(self._own_looks)
        atexit.unregister(self.stop)

    # --- on the thread ---

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                # A plain loop: whatever policy vLLM has set is for its own.
                with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                    self._loop = runner.get_loop()
                    runner.run(self._report())
            except asyncio.CancelledError:
                return
            except Exception:  # noqa: BLE001 - whatever it was, the next beat is worth another try
                # While the interpreter ends much of what we use is gone already.
                if not self._stopped.is_set() and not self._failed:
                    self._log.exception("reporting to the control plane failed; trying on every %g s", RESTART_S)
                self._failed = True
            finally:
                self._loop = self._task = None
            self._stopped.wait(RESTART_S)

    async def _report(self) -> None:
        self._task = asyncio.current_task()
        if self._stopped.is_set():
            return
        settings = self._settings
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look.run())
            if settings.redis_url:
                # The control API fills in the host that a report comes from: it sees that better than we do.
                self._address = await complete_address(settings.address, settings.redis_url, self._log)
            reporter = Reporter(
                self.state,
                redis_url=settings.redis_url,
                api_url=settings.api_url,
                interval_ms=settings.interval_ms,
            )
            self._log.info("reporting as worker %s at %s", settings.worker_id, self._address)
            await reporter.run()

    def state(self) -> WorkerState:
        """The report of this moment."""
        declared = self._declared
        if declared is None or declared.kv_blocks_total is None:
            # The block count comes with the engine's first word.
            declared = self._declared = read_declared(self._config, self._engines)
        look = self._look
        return self._builder.build(
            address=self._address,
            counts=self._tally.counts(),
            declared=declared,
            standing=Standing(look.serving and not look.paused, look.dead, look.models, look.adapters),
            gpu=self._read_gpu(),
            now=time.monotonic(),
        )
