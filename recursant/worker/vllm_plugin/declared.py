"""What vLLM's own configuration says of a worker, so that nobody has to type it. Pure.

The configuration's classes change from version to version: every path is tried, and a fact that is not found, or makes
no sense, is absent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

# Bytes of one element, by the name of the type.
_BYTES: Final = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "fp8": 1, "int8": 1}
_MOST: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Declared:
    """The facts; None and empty stand for "not found".

    Attributes:
        models: names that requests use for the model.
        max_model_len: prompt and output together, in tokens.
        max_num_seqs: requests that run at once, in all engines of the server.
        max_num_batched_tokens: tokens of one step, in all engines of the server.
        kv_block_tokens: tokens in a block of the KV cache.
        kv_blocks_total: blocks of all engines of the server.
        kv_bytes_per_token: over all devices of one engine.
        capacity_tokens: tokens that the KV cache holds.
        priority_scheduling: it orders requests by their priority.
        prefix_caching: whether it is on.
        devices: GPUs of the server, the first of those that it sees; None where other servers use some of those.
    """

    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_block_tokens: int | None = None
    kv_blocks_total: int | None = None
    kv_bytes_per_token: int | None = None
    capacity_tokens: int | None = None
    priority_scheduling: bool | None = None
    prefix_caching: bool | None = None
    devices: int | None = None


def read_declared(config: Any, engines: int = 1) -> Declared:
    """The facts in a VllmConfig.

    Args:
        config: of whatever version.
        engines: of the server; more than one with data parallelism.
    """
    blocks = _whole(config, "cache_config.num_gpu_blocks")
    block_tokens = _whole(config, "cache_config.block_size")
    # Hybrid models hold less than their blocks would say; vLLM since 0.20 works that out, for one engine.
    tokens = _whole(config, "cache_config.kv_cache_size_tokens")
    capacity = tokens * engines if tokens is not None else None
    if capacity is None and blocks is not None and block_tokens is not None:
        capacity = blocks * block_tokens
    policy = _found(config, "scheduler_config.policy")
    caching = _found(config, "cache_config.enable_prefix_caching")
    ranks = (_whole(config, "parallel_config.tensor_parallel_size") or 1) * (
        _whole(config, "parallel_config.pipeline_parallel_size") or 1
    )
    return Declared(
        models=_names(_found(config, "model_config.served_model_name") or _found(config, "model_config.model")),
        max_model_len=_whole(config, "model_config.max_model_len"),
        max_num_seqs=_times(_whole(config, "scheduler_config.max_num_seqs"), engines),
        max_num_batched_tokens=_times(_whole(config, "scheduler_config.max_num_batched_tokens"), engines),
        kv_block_tokens=block_tokens,
        # vLLM adds the engines' blocks up here itself.
        kv_blocks_total=blocks,
        kv_bytes_per_token=_kv_bytes_per_token(config),
        capacity_tokens=capacity,
        priority_scheduling=None if policy is None else str(policy).rpartition(".")[2].lower() == "priority",
        prefix_caching=caching if isinstance(caching, bool) else None,
        # With data parallelism over several servers this one's are somewhere in between.
        devices=ranks * engines if (_whole(config, "parallel_config.data_parallel_size") or 1) <= engines else None,
    )


def api_servers(config: Any) -> int:
    """How many API server processes share the engines; each would see only its own requests."""
    return _whole(config, "parallel_config._api_process_count") or 1


def _kv_bytes_per_token(config: Any) -> int | None:
    """Keys and values of all layers and all heads, on all devices of an engine."""
    model, parallel = _found(config, "model_config"), _found(config, "parallel_config")
    if model is None or _found(model, "is_hybrid") is True or _found(model, "is_attention_free") is True:
        # Not every layer has a KV cache that grows with the tokens.
        return None
    element = _element_bytes(_found(config, "cache_config.cache_dtype"), _found(model, "dtype"))
    layers = _called(lambda: model.get_num_layers(parallel))
    heads = _called(lambda: model.get_num_kv_heads(parallel))
    size = _called(lambda: model.get_head_size())
    if element is None or layers is None or heads is None or size is None:
        return None
    ranks = (_whole(parallel, "tensor_parallel_size") or 1) * (_whole(parallel, "pipeline_parallel_size") or 1)
    # Latent attention keeps one vector for keys and values together, on every device.
    kinds = 1 if _found(model, "use_mla") is True else 2
    return kinds * layers * heads * size * element * ranks


def _element_bytes(cache_type: Any, model_type: Any) -> int | None:
    name = str(cache_type or "auto").lower()
    if name == "auto":
        name = str(model_type).rpartition(".")[2].lower()
    if name.startswith(("fp8", "int8")) and "mla" not in name:
        return 1
    return _BYTES.get(name)


def _found(config: Any, path: str) -> Any:
    """The value at a path of attributes; None where the path breaks off."""
    for name in path.split("."):
        try:
            config = getattr(config, name, None)
        except Exception:  # noqa: BLE001 - a property of another version's class may raise anything
            return None
        if config is None:
            return None
    return config


def _whole(config: Any, path: str) -> int | None:
    value = _found(config, path)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST else None


def _called(call: Callable[[], Any]) -> int | None:
    try:
        value = call()
    except Exception:  # noqa: BLE001 - the methods of another version may want other arguments
        return None
    return value if isinstance(value, int) and 0 < value < _MOST else None


def _times(value: int | None, engines: int) -> int | None:
    return None if value is None else min(value * engines, _MOST)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list | tuple) else ()
