"""What a config.json says: overrides, RoPE scaling, and the longest prompt."""

from collections.abc import Mapping

from rulerkit.common.settings import JSON, Spec


def merge_config(config: Spec, overrides: Spec) -> JSON:
    """A configuration with the values of `overrides`; mappings are merged key by key.

    `rope_scaling` with `type` is the older name of `rope_parameters` with `rope_type`; the result
    holds the newer ones.
    """
    merged = newer_rope(config)
    for key, value in newer_rope(overrides).items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            value = merge_config(merged[key], value)
        merged[key] = value
    return merged


def newer_rope(config: Spec) -> JSON:
    """A configuration with its RoPE parameters under their newer names."""
    renamed = dict(config)
    rope = renamed.pop("rope_scaling", None) or renamed.get("rope_parameters")
    if isinstance(rope, Mapping):
        rope = {"rope_type" if key == "type" else key: value for key, value in rope.items()}
    if "rope_scaling" in config or rope:
        renamed["rope_parameters"] = rope or None
    return renamed


_POSITIONS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")


def max_positions(config: Spec, yarn: bool = True) -> int | None:
    """The tokens that a configuration allows for prompt and answer together; None where nothing
    limits them.

    Position scaling by a plain factor (linear, dynamic, and `yarn`) counts; other kinds state the
    scaled number themselves.
    """
    config = newer_rope(config.get("text_config") or config)
    limit = next((config[name] for name in _POSITIONS if config.get(name)), None)
    if not limit:
        return None
    rope = config.get("rope_parameters") or {}
    factors = ["linear", "dynamic"]
    if yarn:
        factors.append("yarn")
    if rope.get("rope_type") in factors:
        original = rope.get("original_max_position_embeddings") or limit
        limit = max(limit, original * (rope.get("factor") or 1))
    return int(limit)
