"""WorkerState over the wire: what is taken, what is refused and by which name."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recursant.store.codec import MAX_STATE_BYTES, check, decode, encode, state_from_dict, state_to_dict
from recursant.v1.worker_state_pb2 import EngineErrors, LoadedModel, WorkerPhase, WorkerState


def state(**changes: Any) -> WorkerState:
    fields: dict[str, Any] = {
        "id": "w1",
        "address": "10.0.0.7:8000",
        "phase": WorkerPhase.WORKER_PHASE_READY,
        "incarnation": "a1",
        "sequence": 1,
        "report_interval_ms": 200,
    }
    return WorkerState(**(fields | changes))


def report(**changes: Any) -> dict[str, Any]:
    return {
        "id": "w1",
        "address": "10.0.0.7:8000",
        "phase": "ready",
        "incarnation": "a1",
        "sequence": 1,
        "report_interval_ms": 200,
    } | changes


FULL = state(
    models=[LoadedModel(name="Qwen/Qwen2.5-7B-Instruct", family="qwen", vram_mb=15_000, max_model_len=32_768)],
    lora_adapters=["sql"],
    exclusive=True,
    running_requests=3,
    waiting_requests=0,
    waiting_tokens=0,
    queue_wait_ms=1.5,
    token_rate=812.25,
    free_vram_mb=0,
    kv_cache_usage=0.25,
    gpu_temperature_c=-4.0,
    capacity_tokens=128_000,
    priority_scheduling=False,
    errors=EngineErrors(cuda=1, last="CUDA error: an illegal memory access was encountered"),
    engine="vllm 0.32.0",
)


def test_bytes_there_and_back() -> None:
    assert decode(encode(FULL)) == FULL


def test_json_there_and_back() -> None:
    assert state_from_dict(json.loads(json.dumps(state_to_dict(FULL)))) == FULL


def test_json_has_the_protos_names_and_words_for_phases() -> None:
    data = state_to_dict(FULL)
    assert data["phase"] == "ready"
    assert data["models"] == [
        {"name": "Qwen/Qwen2.5-7B-Instruct", "family": "qwen", "vram_mb": 15_000, "max_model_len": 32_768}
    ]
    assert data["capacity_tokens"] == 128_000


def test_zero_is_not_unknown() -> None:
    data = state_to_dict(FULL)
    assert data["free_vram_mb"] == 0
    assert "total_vram_mb" not in data
    back = state_from_dict(data)
    assert back.HasField("free_vram_mb")
    assert not back.HasField("total_vram_mb")


def test_null_is_unknown() -> None:
    assert not state_from_dict(report(free_vram_mb=None)).HasField("free_vram_mb")


def test_keys_of_a_later_version_are_left_aside() -> None:
    assert state_from_dict(report(shoe_size=46)) == state()


@pytest.mark.parametrize("phase", ["warming", "ready", "draining", "isolated", "stopped"])
def test_every_phase_has_its_word(phase: str) -> None:
    parsed = state_from_dict(report(phase=phase))
    assert WorkerPhase.Name(parsed.phase) == f"WORKER_PHASE_{phase.upper()}"
    assert state_to_dict(parsed)["phase"] == phase


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"id": ""}, "id"),
        ({"id": "a" * 129}, "id"),
        ({"id": "two words"}, "id"),
        ({"id": "line\nbreak"}, "id"),
        ({"id": "ümlaut"}, "id"),
        ({"id": None}, "id"),
        ({"id": 7}, "id"),
        ({"phase": None}, "phase"),
        ({"phase": "READY"}, "phase"),
        ({"phase": 2}, "phase"),
        ({"incarnation": ""}, "incarnation"),
        ({"sequence": 0}, "sequence"),
        ({"sequence": -1}, "sequence"),
        ({"sequence": 1.5}, "sequence"),
        ({"sequence": 1 << 64}, "sequence"),
        ({"sequence": "1"}, "sequence"),
        ({"sequence": True}, "sequence"),
        ({"report_interval_ms": 0}, "report_interval_ms"),
        ({"report_interval_ms": 3_600_001}, "report_interval_ms"),
        ({"address": "10.0.0.7"}, "address"),
        ({"address": "0.0.0.0:8000"}, "address"),
        ({"models": {}}, "models"),
        ({"models": ["qwen"]}, r"models\[0\]"),
        ({"models": [{"name": "qwen"}, {"name": "a,b"}]}, r"models\[1\].name"),
        ({"models": [{"name": "qwen", "max_model_len": -1}]}, r"models\[0\].max_model_len"),
        ({"models": [{"name": "qwen", "family": "a\nb"}]}, r"models\[0\].family"),
        ({"lora_adapters": [""]}, r"lora_adapters\[0\]"),
        ({"lora_adapters": ["\ud800"]}, r"lora_adapters\[0\]"),
        ({"running_requests": 1 << 32}, "running_requests"),
        ({"token_rate": float("nan")}, "token_rate"),
        ({"token_rate": float("inf")}, "token_rate"),
        ({"token_rate": 10**400}, "token_rate"),
        ({"token_rate": -0.5}, "token_rate"),
        ({"token_rate": "fast"}, "token_rate"),
        ({"kv_cache_usage": 1.01}, "kv_cache_usage"),
        ({"exclusive": 1}, "exclusive"),
        ({"errors": []}, "errors"),
        ({"errors": {"cuda": -1}}, "errors.cuda"),
    ],
)
def test_refuses_and_names_the_field(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named}: "):
        state_from_dict(report(**changes))


@pytest.mark.parametrize("data", [None, [], "w1", 7])
def test_refuses_what_is_no_object(data: object) -> None:
    with pytest.raises(ValueError, match="expected an object"):
        state_from_dict(data)


def test_a_farewell_needs_no_address() -> None:
    check(state(phase=WorkerPhase.WORKER_PHASE_STOPPED, address="", report_interval_ms=0))


def test_refuses_too_many_bytes_both_ways() -> None:
    big = state(errors=EngineErrors(last="x" * MAX_STATE_BYTES))
    with pytest.raises(ValueError, match="allowed are 65536"):
        encode(big)
    with pytest.raises(ValueError, match="allowed are 65536"):
        decode(big.SerializeToString())


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff", b"{}", state(id="").SerializeToString()])
def test_bytes_that_are_no_report(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(data)


def _raises_only_value_errors(call: Callable[[], object]) -> None:
    with contextlib.suppress(ValueError):
        call()


@given(st.binary(max_size=200))
def test_any_bytes_are_a_report_or_a_value_error(data: bytes) -> None:
    _raises_only_value_errors(lambda: decode(data))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(report())), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([field.name for field in WorkerState.DESCRIPTOR.fields]), _json, max_size=6))
def test_any_json_is_a_report_or_a_value_error(changes: dict[str, Any]) -> None:
    _raises_only_value_errors(lambda: state_from_dict(report(**changes)))
