"""What one worker can take, by formula: the steady state of continuous batching, without queues and bursts.

At `rate` requests a second and steps of `s` seconds, each step computes the prompts and answers of `rate x s` requests
and has `rate x s x output` sequences in decode, as each gets one token a step. The step's time follows from these, so
`s` is a fixed point. The most that a worker can take is the rate up to which there is one within its bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from recursant.admission.rules import WATER_MARK
from recursant.sim.engine_profile import EngineProfile
from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.mooncake import BLOCK_TOKENS

# Of what a worker can take in the mean, so that bursts find room. Our choice; the simulation checks it.
UTILISATION_BOUND: Final = 0.7
# No plan loads workers more than this, whatever a simulated minute says: queues that grow slowly do not show in it.
MOST_LOAD: Final = 0.85
_ROUNDS: Final = 200


def least_computed(arrivals: Sequence[Arrival]) -> list[int]:
    """Prompt tokens of each request that no cache can save, however large: prefixes count once they were seen."""
    seen: set[int] = set()
    found = []
    for arrival in arrivals:
        known = next((n for n, block in enumerate(arrival.prefix_blocks) if block not in seen), None)
        cached = len(arrival.prefix_blocks) if known is None else known
        found.append(max(1, arrival.prompt_tokens - BLOCK_TOKENS * cached))
        seen.update(arrival.prefix_blocks)
    return found


@dataclass(frozen=True, slots=True)
class Mix:
    """Means over requests.

    Attributes:
        prompt: tokens to compute.
        output: tokens.
        pairs: of prefill attention: a new token and one that it looks at.
        context: tokens of a sequence that decodes, seen at a random step.
    """

    prompt: float
    output: float
    pairs: float
    context: float

    @classmethod
    def of(cls, arrivals: Sequence[Arrival]) -> "Mix":
        """The means over these, of which there is at least one; what a prefix cache could save is not computed."""
        count = len(arrivals)
        outputs = sum(one.output_tokens for one in arrivals)
        computed = least_computed(arrivals)
        return cls(
            prompt=sum(computed) / count,
            output=outputs / count,
            # A new token looks at what is cached and at the new ones up to itself.
            pairs=sum(
                new * (one.prompt_tokens - new + (new + 1) / 2) for one, new in zip(arrivals, computed, strict=True)
            )
            / count,
            context=sum(one.output_tokens * (one.prompt_tokens + one.output_tokens / 2) for one in arrivals) / outputs,
        )


@dataclass(frozen=True, slots=True)
class Steady:
    """A worker in the steady state.

    Attributes:
        step_s: of one step.
        decoding: sequences in decode.
        tokens: new tokens in a step.
    """

    step_s: float
    decoding: float
    tokens: float


def steady_state(profile: EngineProfile, mix: Mix, rate: float) -> Steady | None:
    """The steady state at `rate` requests a second; None: there is none within the worker's bounds."""
    step = 0.0
    for _ in range(_ROUNDS):
        decoding = rate * step * mix.output
        tokens = rate * step * (mix.prompt + mix.output)
        if (
            tokens > profile.max_num_batched_tokens
            or decoding > profile.max_num_seqs
            or decoding * mix.context > WATER_MARK * profile.kv_tokens
        ):
            return None
        following = (
            profile.step_overhead_s
            + profile.token_time(max(1, round(tokens)))
            + decoding * (profile.sequence_time_s + mix.context * profile.kv_read_s_per_token)
            + rate * step * mix.pairs * profile.attention_pair_s
        )
        if following <= step * (1 + 1e-6):
            return Steady(step, decoding, tokens)
        step = following
    return None


def most_requests_s(profile: EngineProfile, mix: Mix) -> float:
    """The largest rate of one worker that has a steady state, in requests a second."""
    low, high = 0.0, 1.0
    while steady_state(profile, mix, high) is not None:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        if steady_state(profile, mix, middle) is not None:
            low = middle
        else:
            high = middle
    return low


def workers_at(load: float, rate: float, most: float) -> int | None:
    """Workers that take `rate` requests a second at this share of the `most` of each; None: each takes none."""
    return max(1, ceil(rate / (load * most))) if most > 0 else None


def unloaded_first_token_s(profile: EngineProfile, prompt: int) -> float:
    """The time to the first token of a prompt at an idle worker."""
    seconds = 0.0
    done = 0
    while done < prompt:
        chunk = min(prompt - done, profile.max_num_batched_tokens)
        pairs = chunk * (done + (chunk + 1) / 2)
        seconds += profile.step_overhead_s + profile.token_time(chunk) + profile.sequence_time_s
        seconds += pairs * profile.attention_pair_s
        done += chunk
    return seconds
