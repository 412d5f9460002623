"""What a device and a model cost each other: a roofline over published shapes, fitted to measured operator times.

One layer of a model with `n` new tokens, split over `tp` devices, takes

    overhead + sqrt(memory^2 + compute^2) + activations(n)

- memory: the layer's weights, read once, at `weight_read` of the device's bandwidth;
- compute: two operations for each weight and token, at `matmul` of the device's dense bf16 peak; where both are near,
  they add up like the sides of a right angle, which follows the measured bend better than the larger of the two;
- activations: what norms, rotary embedding, activation function and residuals read and write, at `activation` of the
  bandwidth;
- overhead: kernels of no size at all.

Attention is not in the measurements and not in here; see `profiles`.
"""

from dataclasses import dataclass, replace
from math import hypot
from typing import Final

_BYTES: Final = 2  # of a number in bf16
# Estimated, not measured: what NVLink gives collective operations of its one-way bandwidth, and what each of the two
# all-reduces of a layer takes at least. Vidur's profiles leave communication out.
NVLINK_EFFICIENCY: Final = 0.7
ALL_REDUCE_S: Final = 10e-6


@dataclass(frozen=True, slots=True)
class Device:
    """A device, from its maker's data sheet.

    Attributes:
        name: in profile names.
        flops: dense bf16 peak, operations a second.
        bandwidth_bytes_s: of its memory.
        nvlink_bytes_s: to its neighbours, one way.
        vram_bytes: its memory.
    """

    name: str
    flops: float
    bandwidth_bytes_s: float
    nvlink_bytes_s: float
    vram_bytes: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model, from its published configuration.

    Attributes:
        name: in profile names.
        repository: where the configuration is published.
        layers, hidden, intermediate: sizes; the MLP is gated in all of them.
        heads, kv_heads, head_dim: of attention.
        vocabulary: rows of the embedding and of the output layer, which are separate in all of them.
        max_model_len: what it was trained for, in tokens.
    """

    name: str
    repository: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_model_len: int

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's matrices."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def output_weights(self) -> int:
        """Weights of the output layer."""
        return self.vocabulary * self.hidden

    @property
    def weights_bytes(self) -> int:
        """The model in bf16: layers, embedding and output layer."""
        return _BYTES * (self.layers * self.layer_weights + 2 * self.output_weights)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers, in bf16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * _BYTES

    def activation_bytes(self, tp: int) -> float:
        """Bytes that one layer reads and writes for each token between its matrices, on one of `tp` devices.

        Two norms and the residual (7 x hidden) are on every device; rotary embedding (queries and keys, read and
        written) and the gated activation (3 x intermediate) are split.
        """
        rotary = 2 * (self.heads + self.kv_heads) * self.head_dim
        return _BYTES * (7 * self.hidden + (rotary + 3 * self.intermediate) / tp)


@dataclass(frozen=True, slots=True)
class StepFit:
    """What was fitted to the measurements of a device: parts of its peaks, and a time.

    Attributes:
        source: of the measurements.
        weight_read, matmul, activation: parts of bandwidth, peak and bandwidth that are reached.
        layer_overhead_s: of every layer.
    """

    source: str
    weight_read: float
    matmul: float
    activation: float
    layer_overhead_s: float


def layer_seconds(
    fit: StepFit, device: Device, shape: ModelShape, tokens: int, tp: int = 1, bandwidth_left: float = 1.0
) -> float:
    """One layer's time in seconds, without attention and without communication.

    Args:
        fit: the coefficients.
        device: each of the devices.
        shape: the model.
        tokens: new tokens in the step.
        tp: devices that share the model.
        bandwidth_left: the part of the memory bandwidth that others leave.
    """
    bandwidth = device.bandwidth_bytes_s * bandwidth_left
    memory = _BYTES * shape.layer_weights / tp / (bandwidth * fit.weight_read)
    compute = 2 * shape.layer_weights * tokens / tp / (device.flops * fit.matmul)
    activations = tokens * shape.activation_bytes(tp) / (bandwidth * fit.activation)
    return fit.layer_overhead_s + hypot(memory, compute) + activations


def all_reduce_seconds(device: Device, shape: ModelShape, tokens: int, tp: int) -> float:
    """One layer's two all-reduces in a ring of `tp` devices; 0 for one device. An estimate, see NVLINK_EFFICIENCY."""
    if tp == 1:
        return 0.0
    moved = 2 * (tp - 1) / tp * tokens * shape.hidden * _BYTES
    return 2 * (ALL_REDUCE_S + moved / (device.nvlink_bytes_s * NVLINK_EFFICIENCY))


# `python -m bench.calibrate --traces DIR` prints these coefficients.
_VIDUR: Final = "microsoft/vidur (MIT, commit 7d475133) data/profiling/compute"
FITS: Final = {
    "a100": StepFit(f"{_VIDUR}/a100, Llama-3-8B, tensor parallel 1 to 8", 0.780, 0.719, 0.538, 38.8e-6),
    "h100": StepFit(f"{_VIDUR}/h100, Llama-2-7B and 70B, tensor parallel 1 to 8", 0.870, 0.757, 0.450, 31.8e-6),
}

# NVIDIA's data sheets, SXM modules with 80 GB: dense bf16 without sparsity.
A100: Final = Device("a100", 312e12, 2_039e9, 300e9, 80 * 1024**3)
H100: Final = Device("h100", 989e12, 3_350e9, 450e9, 80 * 1024**3)

# Each model's config.json.
LLAMA_3_8B: Final = ModelShape(
    "llama-3-8b", "meta-llama/Meta-Llama-3-8B", 32, 4_096, 14_336, 32, 8, 128, 128_256, 8_192
)
# The same sizes, trained for long contexts.
LLAMA_3_1_8B: Final = replace(
    LLAMA_3_8B, name="llama-3.1-8b", repository="meta-llama/Llama-3.1-8B", max_model_len=131_072
)
LLAMA_2_7B: Final = ModelShape("llama-2-7b", "meta-llama/Llama-2-7b-hf", 32, 4_096, 11_008, 32, 32, 128, 32_000, 4_096)
LLAMA_2_70B: Final = ModelShape(
    "llama-2-70b", "meta-llama/Llama-2-70b-hf", 80, 8_192, 28_672, 64, 8, 128, 32_000, 4_096
)
QWEN2_7B: Final = ModelShape("qwen2-7b", "Qwen/Qwen2-7B-Instruct", 28, 3_584, 18_944, 28, 4, 128, 152_064, 32_768)
DEEPSEEK_CODER_33B: Final = ModelShape(
    "deepseek-coder-33b", "deepseek-ai/deepseek-coder-33b-instruct", 62, 7_168, 19_200, 56, 8, 128, 32_256, 16_384
)
PHI_3_MINI: Final = ModelShape(
    "phi-3-mini", "microsoft/Phi-3-mini-4k-instruct", 32, 3_072, 8_192, 32, 32, 96, 32_064, 4_096
)
