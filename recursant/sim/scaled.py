"""Profiles of models that nobody measured on a device, by the roofline of `hardware`.

What operator times leave out is estimated as in `profiles`; docs/calibration.md has the errors.
"""

from typing import Final

from recursant.sim.engine_profile import GIB, MIB, EngineProfile
from recursant.sim.hardware import FITS, Device, ModelShape, all_reduce_seconds, layer_seconds

# Between them a step's time is taken as linear.
_KNOTS: Final = (1, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1_024, 2_048, 4_096, 8_192)
# vLLM's own share of a step's launch, the part of its peak that prefill attention reaches, and the part of the
# bandwidth that decode attention does. Estimates: attention profiles are not among the published ones we have.
_LAUNCH_S: Final = 0.0005
_ATTENTION_EFFICIENCY: Final = 0.5
_KV_READ_EFFICIENCY: Final = 0.8
# The share of a device that an engine takes, and what activations and CUDA graphs take of it; as in `profiles`.
_VRAM_SHARE: Final = 0.92
_ACTIVATION_BYTES: Final = 3 * GIB

# SPEC: a prefill of 85 ms takes 320 ms where bandwidth is short. With this part of it left, Llama-3-8B's prefill of
# 1,190 tokens on an A100 does (85 ms with all of it).
SHORT_BANDWIDTH: Final = 0.05


def scaled_profile(device: Device, shape: ModelShape, tp: int = 1, bandwidth_left: float = 1.0) -> EngineProfile:
    """The profile of a model on `tp` devices, by the fitted roofline.

    Args:
        device: A100 or H100: those with a fit.
        shape: the model.
        tp: devices that share it.
        bandwidth_left: the part of the memory bandwidth that others on the device leave.

    Raises:
        ValueError: the model leaves no room for a KV cache there, or `bandwidth_left` is not above 0 and at most 1.
    """
    if not 0 < bandwidth_left <= 1:
        raise ValueError(f"bandwidth_left must be above 0 and at most 1, not {bandwidth_left:g}")
    fit = FITS[device.name]
    bandwidth = device.bandwidth_bytes_s * tp * bandwidth_left

    def step(tokens: int) -> float:
        layer = layer_seconds(fit, device, shape, tokens, tp, bandwidth_left)
        return shape.layers * (layer + all_reduce_seconds(device, shape, tokens, tp))

    block_tokens = 16
    room = (_VRAM_SHARE * device.vram_bytes - _ACTIVATION_BYTES) * tp - shape.weights_bytes
    kv_blocks = int(room // (block_tokens * shape.kv_bytes_per_token))
    name = f"{device.name}-{shape.name}"
    if kv_blocks * block_tokens < shape.max_model_len:
        raise ValueError(f"{name}: {tp} devices leave no room for {shape.max_model_len} tokens of KV cache")
    return EngineProfile(
        name=name if tp == 1 else f"{name}-tp{tp}",
        source=f"{fit.source}; scaled by the shapes of {shape.repository}; attention, output layer, links estimated",
        token_times=tuple((tokens, step(tokens)) for tokens in _KNOTS),
        step_overhead_s=_LAUNCH_S + 2 * shape.output_weights / bandwidth,
        sequence_time_s=10e-6,
        attention_pair_s=4 * shape.heads * shape.head_dim * shape.layers / (device.flops * tp * _ATTENTION_EFFICIENCY),
        bandwidth_bytes_s=bandwidth,
        kv_read_efficiency=_KV_READ_EFFICIENCY,
        weights_bytes=shape.weights_bytes,
        kv_bytes_per_token=shape.kv_bytes_per_token,
        total_vram_mb=device.vram_bytes * tp // MIB,
        block_tokens=block_tokens,
        kv_blocks=kv_blocks,
        max_model_len=shape.max_model_len,
        max_num_seqs=256,
        max_num_batched_tokens=8_192,
        jitter=0.02,
        devices=tp,
    )
