"""The memory pre-check (SPEC E2): how much a worker's KV cache can take and keep its head above water.

In tokens: the cache holds `kv_blocks_total x kv_block_tokens` of them. A beat says what is used, and not what the
requests there will still write. So there are two marks: what is used, and what was sent since the beat, stays below the
water-mark; what the cache will hold when all of its requests have their answers stays below the end mark, which is
higher, as they do not end all at once.

What it will hold at their end is bounded twice, and the smaller bound counts:

- by the report: what is used, the prompts that wait there, those that need not be in either, and all answers of the
  requests that we have in flight there. It counts what an answer has written twice, and a shared prefix once.
- by the requests: the prompts and answers of those that we have in flight there, and of what is used the part of those
  that came past us. It counts what an answer has written once, and a shared prefix for each.
"""

import math
from dataclasses import dataclass
from typing import Final, Self

from recursant.v1.worker_state_pb2 import WorkerState

# Fewer tokens of output than this are no answer: then the request is refused, whatever its policy says of shaping.
LEAST_SHAPED_TOKENS: Final = 16
# Requests must not take a worker's KV cache past this share at their end. The rest is for what is known by an estimate
# alone: lengths of prompts and answers, blocks that are not full, and picks of other processes in the same moment.
END_MARK: Final = 0.9
# A whole number of tokens, as a share of the cache, may come back from a multiplication a little beside itself.
_NOISE: Final = 1e-6


def shaped_output(room: float, prompt_tokens: int) -> int | None:
    """The bound on the output that makes a request fit into `room` KV tokens; None where no answer would fit."""
    left = math.floor(room) - prompt_tokens
    return left if left >= LEAST_SHAPED_TOKENS else None


def kv_tokens(state: WorkerState) -> int:
    """How many tokens a worker's KV cache holds; 0 where it does not say."""
    return state.kv_blocks_total * state.kv_block_tokens


# Not frozen: one is made for every beat, and that alone would triple the time.
@dataclass(slots=True)
class CacheReport:
    """What a beat says of a worker's KV cache. Token counts are whole, so that sums and differences are exact.

    Attributes:
        total: tokens that it holds.
        used: those in use.
        waiting: prompt tokens of the requests that wait in the engine: they hold nothing yet, and will.
        foreign: the share of the requests there, 0 to 1, that came past the processes of this host.
        unseen: the share of what this host has in flight there, 0 to 1, whose prompts neither of the two need hold: on
            the way to the engine when the beat was made; or known to it, and it does not say what is still to be read.
    """

    total: int
    used: int
    waiting: int
    foreign: float
    unseen: float

    @classmethod
    def of(cls, state: WorkerState, in_flight: int) -> Self | None:
        """Read a report; None where the worker does not tell of its cache.

        Args:
            state: the report.
            in_flight: requests that this host has there.
        """
        total = kv_tokens(state)
        if total == 0 or not state.HasField("kv_cache_usage"):
            return None
        reported = state.running_requests + state.waiting_requests
        # What is used where no request is cannot be one of ours.
        foreign = max(1 - in_flight / reported, 0.0) if reported else 1.0
        seen = reported
        if not state.HasField("waiting_tokens"):
            # As vLLM. Who waits there holds nothing yet; one that runs may be a probe, or have half its prompt to read.
            seen = max(state.running_requests - 1, 0)
        unseen = max(1 - seen / in_flight, 0.0) if in_flight else 0.0
        used = math.ceil(state.kv_cache_usage * total - _NOISE)
        return cls(total, used, state.waiting_tokens, foreign, unseen)

    def at_end(self, prompts: int, answers: int, sent_prompts: int) -> int:
        """Tokens that the cache will hold when every request there has its answer.

        Args:
            prompts: prompt tokens of the requests that this host has in flight there.
            answers: tokens of their answers, written or not.
            sent_prompts: prompt tokens that were sent there since the beat.
        """
        here = self.used + self.waiting
        by_report = here + math.ceil(self.unseen * max(prompts - sent_prompts, 0)) + sent_prompts + answers
        by_requests = prompts + answers + math.ceil(self.foreign * here)
        return min(by_report, by_requests)

    def room(self, water_mark: float, prompts: int, answers: int, sent: tuple[int, int] = (0, 0)) -> int:
        """Tokens that it can still take below both marks; below zero where it is past one.

        Args:
            water_mark: the share of the cache that may be used.
            prompts, answers: as for `at_end`.
            sent: prompt and answer tokens that were sent there since the beat.
        """
        now = self.used + self.waiting + sum(sent)
        end = self.at_end(prompts, answers, sent[0])
        end_mark = max(END_MARK, water_mark)
        return math.floor(min(water_mark * self.total - now, end_mark * self.total - end) + _NOISE)
