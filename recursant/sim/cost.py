"""How long a step takes on a profile's hardware, and what it moves through memory."""

import random
from dataclasses import dataclass
from math import sqrt

from recursant.sim.profiles import EngineProfile


@dataclass(slots=True)
class StepLoad:
    """What one step computes, summed over its sequences.

    Attributes:
        tokens: new tokens.
        sequences: scheduled sequences.
        attention_pairs: in prefill, pairs of a new token and a token it looks at.
        decode_context: in decode, tokens whose KV is read.
        context: tokens whose KV is read, prefill included.
    """

    tokens: int = 0
    sequences: int = 0
    attention_pairs: float = 0.0
    decode_context: int = 0
    context: int = 0

    def add_decoding(self, sequences: int, computed: int) -> None:
        """Counts sequences that compute one token more than the `computed` ones that they have together."""
        context = computed + sequences
        self.sequences += sequences
        self.tokens += sequences
        self.context += context
        self.decode_context += context

    def add(self, tokens: int, computed: int) -> None:
        """Counts a sequence that computes `tokens` more than the `computed` ones it has."""
        context = computed + tokens
        self.sequences += 1
        self.tokens += tokens
        self.context += context
        if tokens == 1:
            self.decode_context += context
        else:
            self.attention_pairs += tokens * (computed + (tokens + 1) / 2)


class CostModel:
    """Times steps. Draws its jitter from its own generator: same seed, same steps, same times."""

    def __init__(self, profile: EngineProfile, seed: int) -> None:
        self._profile = profile
        self._random = random.Random(seed)
        self._decode_slope = profile.kv_read_s_per_token
        budget = profile.max_num_batched_tokens
        # A token's time in a full step, in which the reading of the weights is shared by as many as can be.
        self._full_token_s = profile.token_time(budget) / budget

    def seconds(self, load: StepLoad) -> float:
        """The time of a step, without jitter."""
        profile = self._profile
        return (
            profile.step_overhead_s
            + profile.token_time(load.tokens)
            + load.sequences * profile.sequence_time_s
            + load.attention_pairs * profile.attention_pair_s
            + load.decode_context * self._decode_slope
        )

    def repeated_seconds(self, first: float, sequences: int, steps: int) -> float:
        """The time of `steps` decode steps in a row, the first of which takes `first`: every one reads one token
        more of each sequence."""
        return steps * first + self._decode_slope * sequences * steps * (steps - 1) / 2

    def steps_within(self, first: float, sequences: int, seconds: float) -> int:
        """How many decode steps in a row fit into `seconds`; at least 1."""
        if seconds <= first:
            return 1
        slope = self._decode_slope * sequences / 2
        linear = first - slope
        # The root of slope * n^2 + linear * n = seconds, in the form that a slope near zero does not cancel out.
        steps = 2 * seconds / (linear + sqrt(linear * linear + 4 * slope * seconds))
        return max(1, int(steps))

    def steps_begun(self, first: float, sequences: int, seconds: float) -> int:
        """How many decode steps in a row have begun `seconds` after the first did; at least 1."""
        if seconds < first:
            return 1
        ended = self.steps_within(first, sequences, seconds)
        return ended if self.repeated_seconds(first, sequences, ended) >= seconds else ended + 1

    def jittered(self, seconds: float, steps: int = 1) -> float:
        """`seconds` with the profile's noise; that of `steps` steps partly cancels out."""
        spread = self._profile.jitter
        if not spread:
            return seconds
        # Bounded, so that no step takes less than nothing.
        noise = max(-3.0, min(3.0, self._random.gauss(0.0, 1.0)))
        return seconds * (1.0 + spread * noise / sqrt(steps))

    def work_seconds(self, load: StepLoad) -> float:
        """What the step's tokens would take if every step were full: the use that was made of the device."""
        return (
            load.tokens * self._full_token_s
            + load.attention_pairs * self._profile.attention_pair_s
            + load.decode_context * self._decode_slope
        )

    def bytes_moved(self, load: StepLoad) -> int:
        """Bytes read and written: the weights once, the KV of the context, the KV of the new tokens."""
        profile = self._profile
        return profile.weights_bytes + (load.context + load.tokens) * profile.kv_bytes_per_token
