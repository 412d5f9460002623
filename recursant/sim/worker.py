"""One simulated worker: its engine in real time, its faults, its phase, what it remembers. No HTTP here."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recursant.sim import errors
from recursant.sim.errors import ApiError
from recursant.sim.faults import FaultKind, Faults, FaultSpec
from recursant.sim.generation import Generation
from recursant.sim.metrics import MetricsPage, MetricsSource
from recursant.sim.options import SimOptions
from recursant.sim.protocol import GenerationSpec, ServedModels
from recursant.sim.recorder import Recorder
from recursant.sim.runner import EngineRunner
from recursant.sim.state import ErrorCounts, worker_state
from recursant.sim.stats import ServingStats
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState

log = logging.getLogger(__name__)


class SimWorker:
    """Everything of a worker but its sockets.

    Attributes:
        refusing: it was told to stop and takes nothing new.
        in_flight: HTTP requests that generate.
        ordered_sleep_level: as `/sleep` was told; 0: awake.
    """

    def __init__(self, options: SimOptions, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self.port = port
        self.id = options.id_at(port)
        self.clock = clock
        self.started_at = int(time.time())
        self.engine = options.engine()
        self.models = ServedModels(options.served_names, self.engine.profile.max_model_len)
        self.faults = Faults(options.seed)
        self.stats = ServingStats()
        self.stats.begin(clock())
        self.runner = EngineRunner(
            self.engine,
            self.faults,
            self.stats,
            speed=options.speed,
            clock=clock,
            is_asleep=lambda: self.sleep_level > 0,
        )
        self.recorder = Recorder(options.recorded_requests)
        self.errors = ErrorCounts()
        self.phase = WorkerPhase.WORKER_PHASE_READY
        self.refusing = False
        self.in_flight = 0
        self.ordered_sleep_level = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._opened = 0
        self._open: set[Generation] = set()
        self.metrics = MetricsPage(
            MetricsSource(
                options.models[0],
                self.engine,
                self.stats,
                options.lora_adapters,
                float(self.started_at),
                lambda: self.sleep_level,
            )
        )

    def state(self) -> WorkerState:
        """The report of this moment."""
        now = self.clock()
        phase = self.phase
        if self.faults.state(FaultKind.DRAIN, now) is not None:
            phase = WorkerPhase.WORKER_PHASE_DRAINING
        elif self.sleep_level and phase == WorkerPhase.WORKER_PHASE_READY:
            # Requests would hang: it is as good as loading.
            phase = WorkerPhase.WORKER_PHASE_WARMING
        return worker_state(
            options=self.options,
            port=self.port,
            phase=phase,
            engine=self.engine,
            stats=self.stats,
            errors=self.errors,
            now=now,
        )

    @property
    def sleep_level(self) -> int:
        """How deep it sleeps; 0: awake."""
        return self.ordered_sleep_level or int(self.faults.state(FaultKind.SLEEP, self.clock()) is not None)

    @property
    def healthy(self) -> bool:
        """What /health says. As with vLLM, a draining worker is healthy."""
        return self.faults.state(FaultKind.UNHEALTHY, self.clock()) is None

    def admit(self, spec: GenerationSpec) -> FaultSpec | None:
        """Lets a request in, with the fault that it is to meet on its way, if any.

        Raises:
            ApiError: it is refused.
        """
        now = self.clock()
        if self.refusing or self.faults.state(FaultKind.DRAIN, now) is not None:
            raise errors.shutting_down()
        fault = self.faults.meet(now)
        if fault is not None and fault.kind is FaultKind.OOM:
            raise self.failed(errors.out_of_memory())
        if fault is not None and fault.kind is FaultKind.CUDA_ERROR:
            raise self.failed(errors.cuda_error())
        busy = fault is not None and fault.kind is FaultKind.BUSY
        if busy or self.engine.waiting + spec.n * len(spec.prompts) > self.options.max_num_queued_reqs:
            self.stats.rejected["max_num_queued_reqs"] += 1
            raise errors.queue_full()
        return fault

    def failed(self, error: ApiError) -> ApiError:
        """Counts an error of the engine; gives it back."""
        if "out of memory" in error.message:
            self.errors.out_of_memory += 1
        elif "CUDA error" in error.message:
            self.errors.cuda += 1
        else:
            self.errors.other += 1
        self.errors.last = error.message
        self.stats.finished["error"] += 1
        log.warning("simulated failure: %s", error.message)
        return error

    def open(self, spec: GenerationSpec) -> Generation:
        """Begins a request; nothing is queued yet."""
        self._opened += 1
        generation = Generation(f"g{self._opened}", spec)
        self._open.add(generation)
        return generation

    def queue(self, generation: Generation) -> None:
        """Hands an open request to the engine."""
        self.runner.queue(generation)

    def close(self, generation: Generation) -> None:
        """Ends a request, wherever it is: nothing of it stays in the engine."""
        self.runner.abort(generation)
        self._open.discard(generation)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Counts an HTTP request as in flight for as long as it lasts."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def idle(self) -> None:
        """Waits until no HTTP request is in flight."""
        await self._idle.wait()

    def hang_up(self) -> None:
        """Cuts all open requests."""
        for generation in self._open:
            generation.hang_up()
