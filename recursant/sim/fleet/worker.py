"""One worker in virtual time: an engine, its steps as events, and its reports."""

import random
from enum import StrEnum
from typing import Final, Protocol

from recursant.sim.engine import Engine, StepResult
from recursant.sim.fleet.events import Events
from recursant.sim.fleet.reports import state_template
from recursant.sim.fleet.request import Ending, Request
from recursant.sim.fleet.spec import Fault, FaultKind, OnExhaustion, WorkerSpec
from recursant.sim.profiles import MIB
from recursant.sim.sequence import EngineRequest, Sequence
from recursant.sim.waiting import SchedulingPolicy
from recursant.sim.window import SlidingSum
from recursant.v1.worker_state_pb2 import EngineErrors, WorkerState

# Tokens of a block in `Arrival.prefix_blocks`.
PREFIX_BLOCK_TOKENS: Final = 512


class Rejection(StrEnum):
    """How a worker turns a request away."""

    # Nobody listens, or the connection breaks, or 503: Envoy may try another one.
    REFUSED = "refused"
    # 500 with the engine's own words.
    SERVER_ERROR = "server_error"
    CUDA_ERROR = "cuda_error"


_REJECTIONS: Final = {
    FaultKind.RESETS: Rejection.REFUSED,
    FaultKind.SERVER_ERRORS: Rejection.SERVER_ERROR,
    FaultKind.CUDA_ERRORS: Rejection.CUDA_ERROR,
}


class Requester(Protocol):
    """Who sent the requests, and hears of them."""

    def first_token(self, request: Request) -> None:
        """Its answer has begun."""

    def ended(self, request: Request, ending: Ending) -> None:
        """The worker is done with it."""


class SimulatedWorker:
    """An engine whose steps take their time in virtual time.

    Attributes:
        index: its place in the fleet.
        up: its process lives.
        slowness: how many times as long its steps take.
        busy_s: how long its device has computed.
        work_s: how long that would have taken in full steps: the use that was made of the device.
        tokens: output tokens that it generated.
        out_of_memory, failures: requests that it failed.
        peak_kv_usage: the fullest KV cache at any report.
    """

    def __init__(
        self,
        index: int,
        spec: WorkerSpec,
        events: Events,
        requester: Requester,
        *,
        beat_s: float,
        restart_s: float,
        seed: int,
    ) -> None:
        self.index = index
        self.worker_id = f"worker-{index:04d}"
        self.address = f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}:8000"
        self.spec = spec
        self.up = True
        self.busy_s = 0.0
        self.work_s = 0.0
        self.tokens = 0
        self.finished = 0
        self._finished_prompt_tokens = 0
        self._finished_answer_tokens = 0
        self.out_of_memory = 0
        self.failures = 0
        self.cuda_errors = 0
        self.preemptions = 0
        self.peak_kv_usage = 0.0
        self._events = events
        self._requester = requester
        self._beat_s = beat_s
        self._restart_s = restart_s
        self._seed = seed
        self._random = random.Random(seed)
        self._taken_bytes_s = (spec.claims or spec.profile).bandwidth_bytes_s * spec.bandwidth_taken
        self._prefix_parts = PREFIX_BLOCK_TOKENS // spec.profile.block_tokens
        self._error_shares: dict[Rejection, float] = {}
        self.slowness = 1.0
        self._life = 0
        self._sequence = 0
        self.engine = self._new_engine()
        self._template = state_template(self.worker_id, self.address, spec, beat_s)
        # Rises with every planned end of a step, so that one that was moved is known when it comes.
        self._step = 0
        self._stepping = False
        self._next_beat = 0.0
        self._rate = SlidingSum(slots=20)
        self._bytes = SlidingSum(slots=20)
        self._starts = SlidingSum(slots=20)
        self._waits = SlidingSum(slots=20)

    # --- requests ---

    def submit(self, request: Request) -> Rejection | None:
        """Take a request that was sent here, or say how it was turned away."""
        if not self.up:
            return Rejection.REFUSED
        now = self._events.now
        for rejection, share in self._error_shares.items():
            if self._random.random() < share:
                if rejection is Rejection.CUDA_ERROR:
                    self.cuda_errors += 1
                elif rejection is Rejection.SERVER_ERROR:
                    self.failures += 1
                return rejection
        if self._stepping:
            shorter = self.engine.cut_step(now)
            if shorter is not None:
                self._plan_end(self._began + shorter * self.slowness)
        arrival = request.arrival
        most = self.spec.profile.max_model_len
        prompt = max(1, min(arrival.prompt_tokens, most - 1))
        output = max(1, min(arrival.output_tokens, most - prompt))
        self.engine.add(
            EngineRequest(
                request_id=str(request.number),
                prompt_tokens=prompt,
                output_tokens=output,
                priority=request.engine_priority,
                block_hashes=self.hashes(arrival.prefix_blocks, prompt),
                tag=request,
            ),
            now,
        )
        if not self._stepping:
            self._begin_step()
        return None

    def hashes(self, blocks: tuple[int, ...], prompt_tokens: int) -> tuple[int, ...]:
        """The hashes of its engine's blocks for a prompt, whole ones only."""
        parts = self._prefix_parts
        hashes: list[int] = []
        for block in blocks:
            hashes += range(block * parts, (block + 1) * parts)
        return tuple(hashes[: prompt_tokens // self.spec.profile.block_tokens])

    # --- steps ---

    def _begin_step(self) -> None:
        now = self._events.now
        duration = self.engine.begin_step(now, max(now, self._next_beat))
        self._stepping = duration is not None
        if duration is not None:
            self._began = now
            self._plan_end(now + duration * self.slowness)

    def _plan_end(self, at: float) -> None:
        self._step += 1
        self._events.at(at, self._end_step, self._step)

    def _end_step(self, step: int) -> None:
        if step != self._step:
            return
        now = self._events.now
        self._stepping = False
        result = self.engine.end_step(now)
        self._count(result, now)
        for sequence in result.answering:
            request: Request = sequence.tag
            request.cached_tokens = sequence.cached_tokens
            self._requester.first_token(request)
        for sequence in result.finished:
            self.finished += 1
            self._finished_prompt_tokens += sequence.prompt_tokens
            self._finished_answer_tokens += sequence.generated
            self._requester.ended(sequence.tag, Ending.SERVED)
        if result.preempted:
            self._exhausted(result.preempted)
        if self.up and not self._stepping:
            self._begin_step()

    def _count(self, result: StepResult, now: float) -> None:
        self.busy_s += now - self._began
        self.work_s += result.work_s
        self.tokens += result.generated
        self._rate.add(now, result.generated)
        self._bytes.add(now, result.bytes_moved)
        for sequence in result.started:
            self._starts.add(now, 1)
            self._waits.add(now, (sequence.started or now) - sequence.arrived)

    def _exhausted(self, preempted: list[Sequence]) -> None:
        self.preemptions += len(preempted)
        if self.spec.on_exhaustion is OnExhaustion.PREEMPT:
            return
        for sequence in preempted:
            self.engine.abort(sequence.request_id)
            self.out_of_memory += 1
            self._requester.ended(sequence.tag, Ending.OUT_OF_MEMORY)
        if self._restart_s:
            self.kill(self._restart_s)

    # --- faults ---

    def suffer(self, fault: Fault) -> None:
        """A fault begins here."""
        if fault.kind is FaultKind.KILL:
            self.kill(fault.seconds)
            return
        self._set(fault.kind, fault, on=True)
        if fault.seconds is not None:
            self._events.on_the_side(self._events.now + fault.seconds, self._recover, fault)

    def _recover(self, fault: Fault) -> None:
        self._set(fault.kind, fault, on=False)

    def _set(self, kind: FaultKind, fault: Fault, *, on: bool) -> None:
        match kind:
            case FaultKind.RESETS | FaultKind.SERVER_ERRORS | FaultKind.CUDA_ERRORS:
                rejection = _REJECTIONS[kind]
                self._error_shares.pop(rejection, None)
                if on:
                    self._error_shares[rejection] = fault.share
            case FaultKind.SLOW:
                self.slowness = fault.factor if on else 1.0
            case FaultKind.LEAK:
                if on:
                    self._events.every(1.0, self._events.now + 1.0, lambda: self._leak(fault.share))

    def _leak(self, share: float) -> None:
        """Lose blocks for good, as many as are free."""
        if not self.up:
            return
        pool = self.engine.pool
        pool.take(min(int(share * pool.total), pool.free))

    def kill(self, seconds: float | None) -> None:
        """The process ends, with all that it has; it is back after so many seconds, if ever."""
        if not self.up:
            return
        self.up = False
        self._step += 1
        self._stepping = False
        lost = [sequence.tag for sequence in self.engine.sequences()]
        self._life += 1
        self._sequence = 0
        self.engine = self._new_engine()
        for request in lost:
            self._requester.ended(request, Ending.BROKEN)
        if seconds is not None:
            self._events.on_the_side(self._events.now + seconds, self._restarted)

    def _restarted(self) -> None:
        self.up = True

    # --- reports ---

    def report(self) -> WorkerState:
        """What it says of itself now; the next report comes a beat later."""
        now = self._events.now
        self._next_beat = now + self._beat_s
        self._sequence += 1
        engine = self.engine
        pool = engine.pool
        profile = self.spec.profile
        state = WorkerState()
        state.CopyFrom(self._template)
        state.sequence = self._sequence
        state.incarnation = f"{self.index}-{self._life}"
        state.running_requests = engine.running
        state.waiting_requests = engine.waiting
        state.waiting_tokens = engine.uncomputed_tokens
        state.finished_requests = self.finished
        state.finished_prompt_tokens = self._finished_prompt_tokens
        state.finished_answer_tokens = self._finished_answer_tokens
        state.token_rate = self._rate.rate(now)
        state.free_vram_mb = pool.free * profile.block_bytes // MIB
        state.kv_cache_usage = 1.0 - pool.free / pool.total
        state.kv_blocks_free = pool.free
        state.bandwidth_used_mb_s = (min(self._bytes.rate(now), profile.bandwidth_bytes_s) + self._taken_bytes_s) / MIB
        starts = self._starts.total(now)
        if starts:
            state.queue_wait_ms = 1_000 * self._waits.total(now) / starts
        if self.cuda_errors or self.out_of_memory or self.failures:
            state.errors.CopyFrom(
                EngineErrors(cuda=self.cuda_errors, out_of_memory=self.out_of_memory, other=self.failures)
            )
        self.peak_kv_usage = max(self.peak_kv_usage, state.kv_cache_usage)
        return state

    def _new_engine(self) -> Engine:
        policy = SchedulingPolicy.PRIORITY if self.spec.priority_scheduling else SchedulingPolicy.FCFS
        return Engine(self.spec.profile, policy=policy, seed=self._seed)
