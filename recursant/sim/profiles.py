"""What an engine's hardware and model cost: step times, memory, bandwidth. Every figure names its source.

The operator times are the medians of microsoft/vidur's published profiles (MIT licence, commit 7d475133,
`data/profiling/compute`, tensor parallel 1): the sum over the per-layer operators times the layers, plus the
embedding once. They leave out three things, which are estimated here and marked so:

- attention in prefill: 4 x hidden x layers floating-point operations for every pair of a new token and a token it
  looks at, at half of the device's published dense bf16 peak;
- attention in decode: the KV cache that must be read, at 80 % of the published memory bandwidth;
- the output layer and the launch of a step: its weights read once, plus half a millisecond.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One device with one model. Times are seconds, sizes bytes unless the name says otherwise.

    Attributes:
        name: what options call it.
        source: where the figures come from.
        token_times: (tokens in the step, seconds) knots of the time that depends on the tokens alone; linear in
            between, and beyond the last knot with the slope of the last piece.
        step_overhead_s: added to every step.
        sequence_time_s: added for every scheduled sequence (sampling, bookkeeping).
        attention_pair_s: prefill attention, for every pair of a new token and a token it looks at.
        bandwidth_bytes_s: the device's memory bandwidth.
        kv_read_efficiency: the part of it that decode attention reaches.
        weights_bytes: read once a step.
        kv_bytes_per_token: of the KV cache, all layers.
        total_vram_mb: of the device, MiB.
        block_tokens: tokens in a KV block.
        kv_blocks: KV blocks on the device.
        max_model_len: prompt and output together, in tokens.
        max_num_seqs: sequences in a step.
        max_num_batched_tokens: token budget of a step.
        jitter: standard deviation of a step's time, as a part of it.
    """

    name: str
    source: str
    token_times: tuple[tuple[int, float], ...]
    step_overhead_s: float
    sequence_time_s: float
    attention_pair_s: float
    bandwidth_bytes_s: float
    kv_read_efficiency: float
    weights_bytes: int
    kv_bytes_per_token: int
    total_vram_mb: int
    block_tokens: int
    kv_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    jitter: float = 0.0

    def __post_init__(self) -> None:
        tokens = [count for count, _ in self.token_times]
        if len(tokens) < 2 or tokens != sorted(set(tokens)) or tokens[0] < 0:
            raise ValueError("token_times needs two or more knots, tokens rising")
        if self.block_tokens < 1 or self.kv_blocks < 1:
            raise ValueError("block_tokens and kv_blocks must be at least 1")
        if self.max_num_seqs < 1:
            raise ValueError("max_num_seqs must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")
        if not 1 < self.max_model_len <= self.kv_tokens:
            raise ValueError(f"max_model_len must be 2 to {self.kv_tokens}, the tokens that the KV cache holds")
        if not 0 <= self.jitter < 0.3:
            raise ValueError("jitter must be at least 0 and below 0.3")

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_tokens

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block."""
        return self.block_tokens * self.kv_bytes_per_token

    def token_time(self, tokens: int) -> float:
        """Seconds of a step with `tokens` tokens, without attention and overhead."""
        knots = self.token_times
        piece = 1
        while piece < len(knots) - 1 and tokens > knots[piece][0]:
            piece += 1
        low, low_s = knots[piece - 1]
        high, high_s = knots[piece]
        return low_s + (tokens - low) * (high_s - low_s) / (high - low)

    @property
    def kv_read_s_per_token(self) -> float:
        """Seconds that one decode step needs to read the KV of one token."""
        return self.kv_bytes_per_token / (self.bandwidth_bytes_s * self.kv_read_efficiency)

    def decode_rate(self, sequences: int, context: int) -> float:
        """Tokens a second that `sequences` sequences of `context` tokens get together."""
        step = (
            self.step_overhead_s
            + self.token_time(sequences)
            + sequences * (self.sequence_time_s + context * self.kv_read_s_per_token)
        )
        return sequences / step

    @property
    def peak_token_rate(self) -> float:
        """Generated tokens a second when busy: as many sequences as may run, up to 1,024 tokens each."""
        context = min(1_024, self.max_model_len)
        sequences = max(1, min(self.max_num_seqs, self.kv_tokens // context))
        return self.decode_rate(sequences, context)


# Round numbers, not a measurement: about 10 ms a token and 100,000 prompt tokens a second, so that a conversation
# feels alive and a 1 MiB prompt takes seconds. Memory like a 1.5-billion-parameter model (28 layers, 2 KV heads of
# 128) on a 24 GB card.
SMALL: Final = EngineProfile(
    name="small",
    source="round numbers chosen for interactive use, not measured",
    token_times=((1, 0.0095), (8_192, 0.0915)),
    step_overhead_s=0.0005,
    sequence_time_s=20e-6,
    attention_pair_s=0.0,
    bandwidth_bytes_s=1_000e9,
    kv_read_efficiency=0.8,
    weights_bytes=3_090_000_000,
    kv_bytes_per_token=28_672,
    total_vram_mb=24_576,
    block_tokens=16,
    kv_blocks=32_768,
    max_model_len=327_680,
    max_num_seqs=256,
    max_num_batched_tokens=8_192,
    jitter=0.02,
)

# For tests and quick demonstrations: milliseconds where a device needs tens of them.
TINY: Final = EngineProfile(
    name="tiny",
    source="round numbers chosen for tests, not measured",
    token_times=((1, 0.001), (2_048, 0.002)),
    step_overhead_s=0.0,
    sequence_time_s=5e-6,
    attention_pair_s=0.0,
    bandwidth_bytes_s=3_000e9,
    kv_read_efficiency=0.8,
    weights_bytes=400_000_000,
    kv_bytes_per_token=131_072,
    total_vram_mb=16_384,
    block_tokens=16,
    kv_blocks=4_096,
    max_model_len=16_384,
    max_num_seqs=64,
    max_num_batched_tokens=2_048,
)

# NVIDIA A100 80 GB SXM: 312 TFLOPS dense bf16, 2,039 GB/s. Llama-3-8B: 32 layers, hidden 4,096, 8 KV heads of 128,
# 16.06 GB of weights of which 1.05 GB are the output layer.
A100_LLAMA_3_8B: Final = EngineProfile(
    name="a100-llama-3-8b",
    source="microsoft/vidur a100/meta-llama/Meta-Llama-3-8B operator medians; attention and output layer estimated",
    token_times=(
        (1, 0.009699),
        (32, 0.010917),
        (64, 0.011238),
        (128, 0.013193),
        (256, 0.019503),
        (512, 0.034667),
        (1_024, 0.075199),
        (2_048, 0.143803),
        (4_096, 0.273489),
    ),
    step_overhead_s=0.0005 + 1.05e9 / 2_039e9,
    sequence_time_s=10e-6,
    attention_pair_s=4 * 4_096 * 32 / (312e12 * 0.5),
    bandwidth_bytes_s=2_039e9,
    kv_read_efficiency=0.8,
    weights_bytes=16_060_000_000,
    kv_bytes_per_token=2 * 32 * 8 * 128 * 2,
    total_vram_mb=81_920,
    block_tokens=16,
    # 92 % of the device less weights and about 3 GiB of activations, in blocks of 2 MiB.
    kv_blocks=28_000,
    max_model_len=8_192,
    max_num_seqs=256,
    max_num_batched_tokens=2_048,
    jitter=0.02,
)

# NVIDIA H100 80 GB SXM: 989 TFLOPS dense bf16, 3,350 GB/s. Llama-2-7B: 32 layers, hidden 4,096, 32 KV heads of 128,
# 13.5 GB of weights of which 0.26 GB are the output layer.
H100_LLAMA_2_7B: Final = EngineProfile(
    name="h100-llama-2-7b",
    source="microsoft/vidur h100/meta-llama/Llama-2-7b-hf operator medians; attention and output layer estimated",
    token_times=(
        (1, 0.005602),
        (64, 0.005860),
        (128, 0.006374),
        (256, 0.009161),
        (512, 0.012000),
        (1_024, 0.021054),
        (2_048, 0.040483),
        (4_096, 0.083327),
    ),
    step_overhead_s=0.0005 + 0.26e9 / 3_350e9,
    sequence_time_s=10e-6,
    attention_pair_s=4 * 4_096 * 32 / (989e12 * 0.5),
    bandwidth_bytes_s=3_350e9,
    kv_read_efficiency=0.8,
    weights_bytes=13_500_000_000,
    kv_bytes_per_token=2 * 32 * 32 * 128 * 2,
    total_vram_mb=81_920,
    block_tokens=16,
    # 92 % of the device less weights and about 3 GiB of activations, in blocks of 8 MiB.
    kv_blocks=7_400,
    max_model_len=4_096,
    max_num_seqs=256,
    max_num_batched_tokens=8_192,
    jitter=0.02,
)

PROFILES: Final = {profile.name: profile for profile in (SMALL, TINY, A100_LLAMA_3_8B, H100_LLAMA_2_7B)}


def profile_named(name: str) -> EngineProfile:
    """The profile of that name.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(f"unknown profile {name!r}: one of {', '.join(PROFILES)}") from None


def with_overrides(
    profile: EngineProfile,
    *,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    kv_blocks: int | None = None,
    block_tokens: int | None = None,
) -> EngineProfile:
    """`profile` with those of its scheduler and memory figures replaced that are given.

    Raises:
        ValueError: the figures do not fit together.
    """
    given = {
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "kv_blocks": kv_blocks,
        "block_tokens": block_tokens,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(profile, **changes) if changes else profile
