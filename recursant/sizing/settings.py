"""vLLM settings that fit a load (SPEC I3): context, sequences and tokens of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from recursant.admission.rules import WATER_MARK
from recursant.sim.engine_profile import EngineProfile, with_overrides
from recursant.sim.workloads.arrival import Arrival
from recursant.sizing.estimate import Mix

# max_model_len is a multiple of this, so that a slightly longer request is not refused at once.
CONTEXT_STEP: Final = 1_024
# A step with all its tokens takes at most this part of the tightest target: whoever arrives in it waits for its end,
# and whoever decodes in it gets the next token then.
STEP_SHARE: Final = 0.25
BATCHED_TOKENS: Final = (512, 1_024, 2_048, 4_096, 8_192, 16_384)
# Where no agent has a target. vLLM's own default for online serving.
DEFAULT_BATCHED_TOKENS: Final = 2_048
LEAST_SEQUENCES: Final = 8
MOST_SEQUENCES: Final = 512


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """vLLM's flags of the same names."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int

    @property
    def flags(self) -> str:
        """As they are given to `vllm serve`."""
        return (
            f"--max-model-len {self.max_model_len} --max-num-seqs {self.max_num_seqs} "
            f"--max-num-batched-tokens {self.max_num_batched_tokens}"
        )

    def applied_to(self, profile: EngineProfile) -> EngineProfile:
        """The profile with these settings."""
        return with_overrides(
            profile,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )


def full_step_s(profile: EngineProfile, tokens: int) -> float:
    """A step that computes one prompt's first `tokens` tokens."""
    pairs = tokens * (tokens + 1) / 2
    return (
        profile.step_overhead_s
        + profile.token_time(tokens)
        + profile.sequence_time_s
        + pairs * profile.attention_pair_s
    )


def fitting_settings(profile: EngineProfile, arrivals: Sequence[Arrival], tightest_ms: float | None) -> EngineSettings:
    """The settings for requests like these.

    - `max_model_len`: the longest request, up to the next multiple of CONTEXT_STEP, and no more than the model has.
    - `max_num_seqs`: as many as fit into the KV cache below the water-mark at the context that a decoding sequence
      has in the mean; more would be preempted.
    - `max_num_batched_tokens`: the largest whose full step takes at most STEP_SHARE of the tightest target, and no
      fewer than `max_num_seqs`, or decode would not fit into a step.

    Args:
        profile: the worker's.
        arrivals: at least one; those that fit into the model's context.
        tightest_ms: the smallest target for the first token; None: there is none.
    """
    longest = max(one.prompt_tokens + one.output_tokens for one in arrivals)
    context = min(profile.max_model_len, max(2, ceil(longest / CONTEXT_STEP)) * CONTEXT_STEP)
    fitting = int(WATER_MARK * profile.kv_tokens / max(1.0, Mix.of(arrivals).context))
    sequences = max(LEAST_SEQUENCES, min(MOST_SEQUENCES, fitting // 8 * 8))
    batched = DEFAULT_BATCHED_TOKENS
    if tightest_ms is not None:
        bound_s = STEP_SHARE * tightest_ms / 1_000
        batched = max(
            [tokens for tokens in BATCHED_TOKENS if full_step_s(profile, tokens) <= bound_s], default=BATCHED_TOKENS[0]
        )
    return EngineSettings(context, sequences, max(batched, sequences))
