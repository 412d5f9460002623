"""What an engine's hardware and model cost: step times, memory, bandwidth. Every figure names its source.

Two profiles hold measured operator times; the others are scaled to their model by the roofline of `hardware`, whose
coefficients were fitted to the same measurements (docs/calibration.md has the errors).

The operator times are the medians of microsoft/vidur's published profiles (MIT licence, commit 7d475133,
`data/profiling/compute`, tensor parallel 1): the sum over the per-layer operators times the layers, plus the
embedding once. They leave out three things, which are estimated here and marked so:

- attention in prefill: 4 x hidden x layers floating-point operations for every pair of a new token and a token it
  looks at, at half of the device's published dense bf16 peak;
- attention in decode: the KV cache that must be read, at 80 % of the published memory bandwidth;
- the output layer and the launch of a step: its weights read once, plus half a millisecond.
"""

from typing import Final

from recursant.sim.engine_profile import GIB, MIB, EngineProfile, with_overrides
from recursant.sim.hardware import (
    A100,
    DEEPSEEK_CODER_33B,
    H100,
    LLAMA_2_70B,
    LLAMA_3_1_8B,
    LLAMA_3_8B,
    PHI_3_MINI,
    QWEN2_7B,
)
from recursant.sim.scaled import scaled_profile

__all__ = [
    "A100_LLAMA_3_8B",
    "GIB",
    "H100_LLAMA_2_7B",
    "MIB",
    "PROFILES",
    "SMALL",
    "TINY",
    "EngineProfile",
    "profile_named",
    "with_overrides",
]

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

PROFILES: Final = {
    profile.name: profile
    for profile in (
        SMALL,
        TINY,
        A100_LLAMA_3_8B,
        H100_LLAMA_2_7B,
        scaled_profile(H100, LLAMA_3_8B),
        *(scaled_profile(device, shape) for device in (A100, H100) for shape in (LLAMA_3_1_8B, QWEN2_7B, PHI_3_MINI)),
        # 67 GB of weights leave one device of 80 GB about 36,000 tokens of KV cache, and 70B does not fit at all.
        *(scaled_profile(device, DEEPSEEK_CODER_33B, 2) for device in (A100, H100)),
        *(scaled_profile(device, LLAMA_2_70B, 4) for device in (A100, H100)),
    )
}


def profile_named(name: str) -> EngineProfile:
    """The profile of that name.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(f"unknown profile {name!r}: one of {', '.join(PROFILES)}") from None
