"""What a worker counts while it serves: plain numbers, without any thought of how they are published."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from recursant.sim.engine import StepResult
from recursant.sim.sequence import Sequence
from recursant.sim.window import SlidingSum

# vLLM 0.32's bucket bounds.
_TOKENS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)
_STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
_FIRST_TOKEN: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2_560.0),
)
_PER_TOKEN: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_REQUEST: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1_920.0, 7_680.0),
)
_PREEMPTIONS: Final = (1, 2, 3, 4, 5, 10, 20)
_CHOICES: Final = (1, 2, 5, 10, 20)


class Histogram:
    """Counts of values by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class ServingStats:
    """Counters and histograms of one worker. Times are its clock's, in seconds."""

    def __init__(self) -> None:
        self.flops = 0.0
        self.read_bytes = 0.0
        self.write_bytes = 0.0
        self.finished = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
        self.rejected = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        self.prompt_tokens = Histogram(_TOKENS)
        self.generation_tokens = Histogram(_TOKENS)
        self.iteration_tokens = Histogram(_STEP_TOKENS)
        self.max_generation_tokens = Histogram(_TOKENS)
        self.params_n = Histogram(_CHOICES)
        self.params_max_tokens = Histogram(_TOKENS)
        self.first_token = Histogram(_FIRST_TOKEN)
        self.inter_token = Histogram(_PER_TOKEN)
        self.per_output_token = Histogram(_PER_TOKEN)
        self.latency = Histogram(_REQUEST)
        self.queue_time = Histogram(_REQUEST)
        self.inference_time = Histogram(_REQUEST)
        self.prefill_time = Histogram(_REQUEST)
        self.decode_time = Histogram(_REQUEST)
        self.preemptions = Histogram(_PREEMPTIONS)
        self.prefill_computed = Histogram(_TOKENS)
        # Over the last 10 s.
        self.recent_tokens = SlidingSum()
        self.recent_bytes = SlidingSum()
        self.recent_busy_s = SlidingSum()
        self.recent_starts = SlidingSum()
        self.recent_wait_s = SlidingSum()

    def begin(self, now: float) -> None:
        """Starts the clocks of the rates: the worker is up."""
        for window in (self.recent_tokens, self.recent_bytes, self.recent_busy_s):
            window.start(now)

    def step_ended(self, result: StepResult, now: float, busy_s: float, kv_bytes_per_token: int, weights: int) -> None:
        """Counts a step that kept the device busy for `busy_s`."""
        generated = sum([count for _, count in result.outputs])
        written = result.tokens * kv_bytes_per_token
        self.iteration_tokens.observe(result.tokens)
        self.recent_tokens.add(now, generated)
        self.recent_bytes.add(now, result.bytes_moved)
        self.recent_busy_s.add(now, busy_s)
        self.read_bytes += result.bytes_moved - written
        self.write_bytes += written
        # Two operations for every weight of two bytes and token.
        self.flops += float(weights) * result.tokens
        for sequence in result.started:
            waited = (sequence.started or now) - sequence.arrived
            self.recent_starts.add(now, 1)
            self.recent_wait_s.add(now, waited)

    def request_finished(self, sequence: Sequence, reason: str) -> None:
        """Counts a sequence that came to its end."""
        self.finished[reason] += 1
        self.prompt_tokens.observe(sequence.prompt_tokens)
        self.generation_tokens.observe(sequence.generated)
        self.preemptions.observe(sequence.preemptions)
        self.prefill_computed.observe(sequence.prompt_tokens - sequence.cached_tokens)
        started, first, finished = sequence.started, sequence.first_token, sequence.finished
        if started is None or first is None or finished is None:
            return
        self.latency.observe(finished - sequence.arrived)
        self.queue_time.observe(started - sequence.arrived)
        self.inference_time.observe(finished - started)
        self.prefill_time.observe(first - started)
        self.decode_time.observe(finished - first)
        if sequence.generated > 1:
            self.per_output_token.observe((finished - first) / (sequence.generated - 1))

    @property
    def finished_requests(self) -> int:
        """How many sequences have ended."""
        return sum(self.prompt_tokens.counts)

    def queue_wait_ms(self, now: float) -> float | None:
        """Mean time that the sequences started in the last 10 s had waited; None: none started."""
        starts = self.recent_starts.total(now)
        return 1_000 * self.recent_wait_s.total(now) / starts if starts else None
