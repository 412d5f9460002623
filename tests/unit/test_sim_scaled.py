"""Scaled profiles: against data sheets, published sizes, measured points and sums done by hand."""

from math import hypot

import pytest

from recursant.sim.cost import CostModel, StepLoad
from recursant.sim.engine_profile import EngineProfile
from recursant.sim.hardware import (
    A100,
    DEEPSEEK_CODER_33B,
    FITS,
    H100,
    LLAMA_2_7B,
    LLAMA_2_70B,
    LLAMA_3_8B,
    PHI_3_MINI,
    QWEN2_7B,
    ModelShape,
    StepFit,
    all_reduce_seconds,
    layer_seconds,
)
from recursant.sim.profiles import A100_LLAMA_3_8B, H100_LLAMA_2_7B, PROFILES
from recursant.sim.scaled import SHORT_BANDWIDTH, scaled_profile


def prefill_s(profile: EngineProfile, tokens: int) -> float:
    load = StepLoad()
    load.add(tokens, 0)
    return CostModel(profile, 0).seconds(load)


# As the publishers state them, in thousand millions.
@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (LLAMA_3_8B, 8.03),
        (LLAMA_2_7B, 6.74),
        (LLAMA_2_70B, 68.98),
        (QWEN2_7B, 7.62),
        (DEEPSEEK_CODER_33B, 33.3),
        (PHI_3_MINI, 3.82),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_shapes_have_the_published_size(shape: ModelShape, parameters: float) -> None:
    assert shape.weights_bytes / 2e9 == pytest.approx(parameters, rel=0.005)


@pytest.mark.parametrize(
    ("shape", "kib"),
    # 2 (keys, values) x layers x KV heads x head size x 2 bytes.
    [(LLAMA_3_8B, 128), (LLAMA_2_7B, 512), (QWEN2_7B, 56), (DEEPSEEK_CODER_33B, 248), (PHI_3_MINI, 384)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_kv_bytes(shape: ModelShape, kib: int) -> None:
    assert shape.kv_bytes_per_token == kib * 1_024


def test_a_layer_by_hand() -> None:
    fit = StepFit("made up", weight_read=0.5, matmul=0.5, activation=0.5, layer_overhead_s=1e-5)
    # 4,096 x 128 x (2 x 32 + 2 x 8) + 3 x 4,096 x 14,336 = 218,103,808 weights.
    memory = 2 * 218_103_808 / 2 / (2_039e9 * 0.5)
    compute = 2 * 218_103_808 * 100 / 2 / (312e12 * 0.5)
    activations = 100 * 2 * (7 * 4_096 + (2 * 40 * 128 + 3 * 14_336) / 2) / (2_039e9 * 0.5)
    expected = 1e-5 + hypot(memory, compute) + activations
    assert layer_seconds(fit, A100, LLAMA_3_8B, 100, tp=2) == pytest.approx(expected)


# Sums of the operators' medians of one layer, from vidur's files, in ms.
@pytest.mark.parametrize(
    ("device", "shape", "tp", "tokens", "measured_ms"),
    [
        (A100, LLAMA_3_8B, 1, 1, 0.303),
        (A100, LLAMA_3_8B, 1, 512, 1.0825),
        (A100, LLAMA_3_8B, 1, 4_096, 8.549),
        (A100, LLAMA_3_8B, 4, 1_024, 0.6535),
        (H100, LLAMA_2_7B, 1, 1, 0.175),
        (H100, LLAMA_2_7B, 1, 2_048, 1.260),
        (H100, LLAMA_2_70B, 4, 2_048, 1.382),
        (H100, LLAMA_2_70B, 8, 1, 0.1045),
    ],
)
def test_layers_are_as_measured_within_the_stated_error(
    device: object, shape: ModelShape, tp: int, tokens: int, measured_ms: float
) -> None:
    used = A100 if device is A100 else H100
    assert layer_seconds(FITS[used.name], used, shape, tokens, tp) * 1_000 == pytest.approx(measured_ms, rel=0.2)


@pytest.mark.parametrize(
    ("measured", "scaled"),
    [(A100_LLAMA_3_8B, scaled_profile(A100, LLAMA_3_8B)), (H100_LLAMA_2_7B, scaled_profile(H100, LLAMA_2_7B))],
    ids=["a100", "h100"],
)
def test_the_formula_agrees_with_the_profiles_that_hold_measured_times(
    measured: EngineProfile, scaled: EngineProfile
) -> None:
    for tokens in (1, 64, 256, 1_024, 2_048, 4_096):
        assert prefill_s(scaled, tokens) == pytest.approx(prefill_s(measured, tokens), rel=0.2)
    assert scaled.kv_tokens == pytest.approx(measured.kv_tokens, rel=0.05)
    assert scaled.weights_bytes == pytest.approx(measured.weights_bytes, rel=0.01)
    assert scaled.attention_pair_s == pytest.approx(measured.attention_pair_s)


def test_communication_by_hand() -> None:
    assert all_reduce_seconds(A100, LLAMA_3_8B, 1_000, 1) == 0.0
    # Each of two all-reduces: 2 x 3/4 of 1,000 x 4,096 numbers of 2 bytes, over 70 % of 300 GB/s, and 10 us.
    one = 10e-6 + 2 * 3 / 4 * 1_000 * 4_096 * 2 / (300e9 * 0.7)
    assert all_reduce_seconds(A100, LLAMA_3_8B, 1_000, 4) == pytest.approx(2 * one)


def test_two_devices_are_faster_than_one_but_not_twice() -> None:
    one, two = scaled_profile(H100, QWEN2_7B), scaled_profile(H100, QWEN2_7B, 2)
    assert two.devices == 2
    for tokens in (1, 4_096):
        assert 1.0 < prefill_s(one, tokens) / prefill_s(two, tokens) < 2.0
    assert two.kv_tokens > 2 * one.kv_tokens
    assert two.bandwidth_bytes_s == 2 * 3_350e9


def test_a_prefill_of_85_ms_takes_320_where_bandwidth_is_short() -> None:
    full, short = (scaled_profile(A100, LLAMA_3_8B, bandwidth_left=left) for left in (1.0, SHORT_BANDWIDTH))
    assert prefill_s(full, 1_190) == pytest.approx(0.085, rel=0.01)
    assert prefill_s(short, 1_190) == pytest.approx(0.320, rel=0.01)
    # Attention's operations and the matrices' do not get slower.
    assert short.attention_pair_s == full.attention_pair_s


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="h100-llama-2-70b: 1 devices leave no room"):
        scaled_profile(H100, LLAMA_2_70B)
    with pytest.raises(ValueError, match="bandwidth_left"):
        scaled_profile(H100, LLAMA_3_8B, bandwidth_left=0.0)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_profile_says_where_it_comes_from(profile: EngineProfile) -> None:
    assert len(profile.source) > 20
    assert PROFILES[profile.name] is profile
    assert profile.devices == int(profile.name.rpartition("-tp")[2]) if "-tp" in profile.name else profile.devices == 1
