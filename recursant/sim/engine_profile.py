"""What an engine's hardware and model cost, as the engine model takes it."""

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
        devices: that one worker takes: the degree of tensor parallelism.
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
    devices: int = 1

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
