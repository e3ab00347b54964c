"""What a checkpoint's configuration says about cost: parameters, FLOPs of a prefill, bytes of its
key-value cache."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from rulerkit.errors import UserError

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "auto": 2, "fp8": 1, "int8": 1, "int4": 0.5}
_QUANTIZED = {"fp8": 1.0, "awq": 0.5, "gptq": 0.5, "int8": 1.0, "bitsandbytes": 0.5}
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Shape:
    """A model as cost sees it. Without a known configuration only the parameters are known:
    `layers` is empty."""

    parameters: float
    active: float
    """Parameters that work on one token: fewer than all where there are experts."""
    layers: tuple[int, ...] = ()
    """One entry for each layer that attends: how far back, in tokens; 0 is all the way."""
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    latent: int = 0
    """Numbers a token that multi-head latent attention keeps in place of keys and values."""
    bytes_per_parameter: float = 2
    bytes_per_kv: float = 2

    def prefill_flops(self, tokens: int) -> float:
        """2 FLOPs a parameter and token, and the causal half of the attention matrix, twice (scores
        and values)."""
        seen = sum(_pairs(tokens, window) for window in self.layers)
        return 2 * self.active * tokens + 4 * self.heads * self.head_dim * seen

    def kv_bytes(self, tokens: int, tensor_parallel: int = 1) -> float:
        """The cache of one request on one of `tensor_parallel` cards; windows stop it from
        growing."""
        heads = max(1, ceil(self.kv_heads / tensor_parallel))
        numbers = self.latent or 2 * heads * self.head_dim
        return (
            sum(min(tokens, window or tokens) for window in self.layers)
            * numbers
            * self.bytes_per_kv
        )

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.bytes_per_parameter


def _pairs(tokens: int, window: int) -> float:
    """How many pairs of tokens look at one another, under a causal mask and a window."""
    if not window or window >= tokens:
        return tokens * tokens / 2
    return window * window / 2 + (tokens - window) * window


def read_parameters(text: str) -> tuple[float, float]:
    """All parameters and the active ones: '8B' is twice the same, '12B/52B' names both in either
    order."""
    numbers = []
    for part in text.split("/"):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMBT]?)\s*", part, re.IGNORECASE)
        if not found:
            raise UserError(
                f"{text!r} is no number of parameters: write 8B, 0.5B, or 12B/52B for active and "
                "all"
            )
        numbers.append(float(found[1]) * _UNITS[found[2].upper()])
    return max(numbers), min(numbers)


def shape_of(
    config: Mapping[str, Any], spec: Mapping[str, Any], parameters: str | None = None
) -> Shape:
    """The shape that a `config.json` and the keys of a model's spec describe; `parameters` overrule
    both."""
    config = dict(config.get("text_config") or config) | dict(spec.get("hf_overrides") or {})
    hidden, heads = (
        _first(config, "hidden_size", "n_embd", "d_model"),
        _first(config, "num_attention_heads", "n_head"),
    )
    layers = attention_layers(config)
    counted = parameters or spec.get("parameters")
    total, active = read_parameters(str(counted)) if counted else count_parameters(config)
    shape = Shape(
        parameters=total,
        active=active,
        layers=layers,
        heads=heads,
        kv_heads=int(
            config.get("num_key_value_heads") or config.get("multi_query_group_num") or heads
        ),
        head_dim=int(
            config.get("head_dim") or config.get("kv_channels") or (hidden // heads if heads else 0)
        ),
        latent=int(config.get("kv_lora_rank") or 0)
        and int(config["kv_lora_rank"] + config.get("qk_rope_head_dim", 0)),
    )
    return with_types(shape, spec, config)


def with_types(shape: Shape, spec: Mapping[str, Any], config: Mapping[str, Any]) -> Shape:
    """The bytes of a parameter and of an entry of the cache, as spec and configuration have
    them."""
    method = spec.get("quantization") or (config.get("quantization_config") or {}).get(
        "quant_method"
    )
    weights = _QUANTIZED.get(str(method)) or _BYTES.get(str(spec.get("dtype", "auto")), 2)
    kind = str(spec.get("kv_cache_dtype", "auto"))
    return replace(
        shape, bytes_per_parameter=weights, bytes_per_kv=1 if kind.startswith("fp8") else 2
    )


def attention_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The window of every layer that attends; Mamba, RWKV and linear layers keep a constant state
    and are left out."""
    count = _first(config, "num_hidden_layers", "n_layer", "num_layers")
    kinds, window = config.get("layer_types"), int(config.get("sliding_window") or 0)
    if not _first(config, "num_attention_heads", "n_head") or config.get("model_type") in (
        "mamba",
        "mamba2",
        "rwkv",
    ):
        return ()
    if kinds:
        windows = {"full_attention": 0, "attention": 0, "hybrid": 0, "sliding_attention": window}
        windows["chunked_attention"] = int(config.get("attention_chunk_size") or 0)
        return tuple(windows[kind] for kind in kinds if kind in windows)
    if every := config.get("attn_layer_period"):
        return tuple(0 for i in range(count) if i % every == config.get("attn_layer_offset", 0))
    if every := config.get("sliding_window_pattern"):
        return tuple(0 if (i + 1) % every == 0 else window for i in range(count))
    return (window if config.get("use_sliding_window", True) else 0,) * count


def count_parameters(config: Mapping[str, Any]) -> tuple[float, float]:
    """All parameters and the active ones of a decoder, from the sizes of its matrices; raises
    UserError where the configuration does not tell them."""
    hidden, heads = (
        _first(config, "hidden_size", "n_embd", "d_model"),
        _first(config, "num_attention_heads", "n_head"),
    )
    layers, inner = (
        _first(config, "num_hidden_layers", "n_layer", "num_layers"),
        _first(config, "intermediate_size"),
    )
    if (
        not (hidden and layers and inner and heads)
        or config.get("kv_lora_rank")
        or config.get("attn_layer_period")
    ):
        raise UserError(
            "config.json does not tell the number of parameters: give --params, such as 8B or "
            "12B/52B"
        )
    dim = int(config.get("head_dim") or hidden // heads)
    attention = 2 * hidden * dim * (heads + int(config.get("num_key_value_heads") or heads))
    experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts") or 1
    used = int(config.get("num_experts_per_tok") or 1) if experts > 1 else 1
    expert = (
        3 * hidden * int(config.get("moe_intermediate_size") or inner if experts > 1 else inner)
    )
    embedding = hidden * _first(config, "vocab_size")
    table = 0 if config.get("tie_word_embeddings") else embedding
    total = layers * (attention + experts * expert) + embedding + table
    return total, layers * (attention + used * expert) + embedding


def _first(config: Mapping[str, Any], *names: str) -> int:
    return next((int(config[name]) for name in names if config.get(name)), 0)
