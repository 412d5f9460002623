"""The engine: a model of vLLM's scheduler, KV cache and step times. No clock, no I/O; time is an argument.

A step is two calls, because a real one takes time: `begin_step` schedules and says how long it takes, `end_step`
gives what it produced. Between them the caller lets the time pass, really or virtually, and may add and abort.
"""

from dataclasses import dataclass

from recursant.sim.blocks import BlockPool
from recursant.sim.cost import CostModel
from recursant.sim.profiles import EngineProfile
from recursant.sim.scheduler import Schedule, Scheduler
from recursant.sim.sequence import EngineRequest, Sequence, SequenceState
from recursant.sim.waiting import SchedulingPolicy


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced.

    Attributes:
        duration_s: how long it took.
        tokens: that it computed, prompt and output.
        bytes_moved: through the device's memory.
        work_s: what its tokens would take in full steps; over the duration, the use that was made of the device.
        outputs: sequences with the number of tokens that they got, finished ones included.
        generated: all of those tokens together.
        answering: sequences that got their first token.
        finished: those that are done.
        started: those that ran for the first time.
        preempted: those that lost their blocks.
    """

    duration_s: float
    tokens: int
    bytes_moved: int
    work_s: float
    outputs: list[tuple[Sequence, int]]
    generated: int
    answering: list[Sequence]
    finished: list[Sequence]
    started: list[Sequence]
    preempted: list[Sequence]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Where the engine is. Counters run since its start; the rest is now.

    Attributes:
        waiting_tokens: input tokens of the waiting sequences.
        uncomputed_tokens: those, and what prompts that are computed in chunks still lack.
        running_tokens: tokens of the running sequences, output so far included.
        prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache, and found there.
        prompt_tokens: of the requests whose first token came.
        cached_tokens: the part of them that the prefix cache had.
        aborted: ended by `abort`.
    """

    running: int
    waiting: int
    waiting_tokens: int
    uncomputed_tokens: int
    running_tokens: int
    blocks_total: int
    blocks_free: int
    steps: int
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    finished: int
    aborted: int

    @property
    def kv_usage(self) -> float:
        """The part of the KV cache that is held, 0 to 1."""
        return 1.0 - self.blocks_free / self.blocks_total


@dataclass(frozen=True, slots=True)
class _Step:
    """The step in progress: `repeats` times the same plan, the first of which takes `first_s` without jitter."""

    plan: Schedule
    began: float
    first_s: float
    duration_s: float
    repeats: int


def _place(sequence: Sequence) -> int:
    return sequence.place


class Engine:
    """One engine. Deterministic: the same seed and the same calls give the same results."""

    def __init__(
        self,
        profile: EngineProfile,
        *,
        policy: SchedulingPolicy = SchedulingPolicy.FCFS,
        prefix_caching: bool = True,
        chunked_prefill: bool = True,
        seed: int = 0,
    ) -> None:
        if not chunked_prefill and profile.max_num_batched_tokens < profile.max_model_len:
            raise ValueError("without chunked prefill, max_num_batched_tokens must be at least max_model_len")
        self.profile = profile
        self.policy = policy
        self.prefix_caching = prefix_caching
        self.chunked_prefill = chunked_prefill
        self._scheduler = Scheduler(profile, policy, chunked_prefill=chunked_prefill)
        self._cost = CostModel(profile, seed)
        self._sequences: dict[str, Sequence] = {}
        self._step: _Step | None = None
        self._order = 0
        self._steps = 0
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generated_tokens = 0
        self._preemptions = 0
        self._finished = 0
        self._aborted = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences)

    @property
    def running(self) -> int:
        """Sequences that run."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences that wait."""
        return len(self._scheduler.waiting)

    @property
    def waiting_tokens(self) -> int:
        """Input tokens of the sequences that wait."""
        return self._scheduler.waiting_tokens

    @property
    def uncomputed_tokens(self) -> int:
        """Those, and what prompts that are computed in chunks still lack: what is ahead of the next request."""
        scheduler = self._scheduler
        # One token of each is the one that it decodes from.
        return scheduler.waiting_tokens + sum([each.length - each.computed - 1 for each in scheduler.alone])

    @property
    def pool(self) -> BlockPool:
        """Its KV blocks, to be read."""
        return self._scheduler.pool

    def sequences(self) -> list[Sequence]:
        """Every unfinished sequence, in the order of arrival."""
        return list(self._sequences.values())

    def add(self, request: EngineRequest, now: float) -> Sequence:
        """Takes a request in.

        Raises:
            ValueError: its id is in use, or its tokens cannot fit.
        """
        if request.request_id in self._sequences:
            raise ValueError(f"request id {request.request_id!r} is in use")
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        if request.prompt_tokens + request.output_tokens > self.profile.max_model_len:
            raise ValueError(f"prompt and output together exceed max_model_len {self.profile.max_model_len}")
        hashes = request.block_hashes if self.prefix_caching else ()
        sequence = Sequence(request, self._order, now, hashes)
        self._order += 1
        self._sequences[request.request_id] = sequence
        self._scheduler.add(sequence)
        return sequence

    def abort(self, request_id: str) -> bool:
        """Ends a request at once and frees what it holds, also during a step. False: no such unfinished request."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        self._scheduler.remove(sequence)
        sequence.state = SequenceState.ABORTED
        self._aborted += 1
        return True

    def begin_step(self, now: float, horizon: float | None = None) -> float | None:
        """Schedules a step and gives its duration in seconds; None: there is nothing to do.

        With `horizon`, as many pure decode steps as end by then (jitter aside) and as nothing interrupts are taken
        as one: the caller promises to add and abort nothing before, or calls `cut_step`. It makes virtual time fast.

        Raises:
            RuntimeError: the step before has not ended.
        """
        if self._step is not None:
            raise RuntimeError("the step before has not ended")
        if not self._sequences:
            return None
        plan = self._scheduler.schedule(now)
        self._preemptions += len(plan.preempted)
        if self.prefix_caching:
            for sequence in plan.started:
                self._prefix_queries += sequence.prompt_tokens
                self._prefix_hits += sequence.cached_tokens
        seconds = first = self._cost.seconds(plan.load)
        repeats = 1
        if horizon is not None and self._scheduler.is_steady(plan):
            fitting = self._cost.steps_within(seconds, plan.load.sequences, horizon - now)
            repeats = self._scheduler.extend(plan, fitting)
            seconds = self._cost.repeated_seconds(seconds, plan.load.sequences, repeats)
        self._step = _Step(plan, now, first, self._cost.jittered(seconds, repeats), repeats)
        return self._step.duration_s

    def cut_step(self, now: float) -> float | None:
        """Shortens decode steps that were taken as one to those that have begun by `now`; gives their duration.

        So the caller can break the promise of `begin_step`: what it adds then waits for the decode step in progress,
        as it would in an engine that takes them one by one. None: there is nothing to shorten.
        """
        step = self._step
        if step is None or step.repeats == 1:
            return None
        sequences = step.plan.load.sequences
        whole = self._cost.repeated_seconds(step.first_s, sequences, step.repeats)
        passed = (now - step.began) * whole / step.duration_s
        repeats = self._cost.steps_begun(step.first_s, sequences, passed)
        if repeats >= step.repeats:
            return None
        self._scheduler.shorten(step.plan, repeats)
        duration = step.duration_s * self._cost.repeated_seconds(step.first_s, sequences, repeats) / whole
        self._step = _Step(step.plan, step.began, step.first_s, duration, repeats)
        return duration

    def end_step(self, now: float) -> StepResult:
        """Ends the step in progress and gives what it produced.

        Raises:
            RuntimeError: none is in progress.
        """
        if self._step is None:
            raise RuntimeError("no step is in progress")
        step, self._step = self._step, None
        repeats = step.repeats
        self._steps += repeats
        scheduler = self._scheduler
        answering: list[Sequence] = []
        # Those that get nothing in this step: the ones in the group all do.
        without = set(scheduler.alone)
        finished = scheduler.group.advance(repeats)
        for sequence in step.plan.scheduled:
            if sequence.state is not SequenceState.RUNNING:
                continue  # aborted meanwhile
            sequence.computed += sequence.scheduled * repeats
            sequence.scheduled = 0
            if sequence.computed < sequence.length:
                continue  # a chunk of its prefill
            if sequence.first_token is None:
                sequence.first_token = now
                answering.append(sequence)
                self._prompt_tokens += sequence.prompt_tokens
                self._cached_tokens += sequence.cached_tokens
            sequence.generated += repeats
            without.remove(sequence)
            if sequence.generated >= sequence.output_tokens:
                finished.append(sequence)
        outputs = [(sequence, repeats) for sequence in scheduler.running if sequence not in without]
        if len(finished) > 1:
            finished.sort(key=_place)
        for sequence in finished:
            sequence.finished = now
            del self._sequences[sequence.request_id]
        generated = repeats * len(outputs)
        self._generated_tokens += generated
        if finished:
            self._finished += len(finished)
            scheduler.finish(finished)
        scheduler.regroup()
        return StepResult(
            duration_s=step.duration_s,
            tokens=step.plan.load.tokens * repeats,
            bytes_moved=self._cost.bytes_moved(step.plan.load) * repeats,
            work_s=self._cost.work_seconds(step.plan.load) * repeats,
            outputs=outputs,
            generated=generated,
            answering=answering,
            finished=finished,
            started=step.plan.started,
            preempted=step.plan.preempted,
        )

    def step(self, now: float, horizon: float | None = None) -> StepResult | None:
        """Begins a step at `now` and ends it when its duration has passed; None: there is nothing to do."""
        duration = self.begin_step(now, horizon)
        return None if duration is None else self.end_step(now + duration)

    def stats(self) -> EngineStats:
        """Where the engine is."""
        scheduler = self._scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            waiting_tokens=scheduler.waiting_tokens,
            uncomputed_tokens=self.uncomputed_tokens,
            running_tokens=sum([sequence.length for sequence in scheduler.running]),
            blocks_total=scheduler.pool.total,
            blocks_free=scheduler.pool.free,
            steps=self._steps,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=self._preemptions,
            finished=self._finished,
            aborted=self._aborted,
        )

    def reset_prefix_cache(self) -> None:
        """Forgets every cached block that nobody holds."""
        self._scheduler.pool.forget()
