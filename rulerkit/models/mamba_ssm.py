"""Mamba checkpoints in the layout of the mamba_ssm package, such as state-spaces/mamba-2.8b-slimpj.

Their config.json names no `model_type` and the weights lie in pytorch_model.bin, so transformers refuses them; but only
one weight has another name. They are read into transformers' own Mamba, without a copy on disk.
"""

from collections.abc import Callable
from importlib import import_module
from pickle import UnpicklingError
from typing import Any

from rulerkit.errors import UserError
from rulerkit.models.checkpoints import Checkpoint, first_line
from rulerkit.models.devices import torch_module
from rulerkit.tokenizers import Tokenizer


def is_original(config: dict[str, Any]) -> bool:
    """Whether a config.json is of mamba_ssm's own layout."""
    return "model_type" not in config and "d_model" in config and ("ssm_cfg" in config or "n_layer" in config)


def reader(checkpoint: Checkpoint) -> Callable[..., Any]:
    """What loads a checkpoint's causal model, called as `from_pretrained`: transformers' own, or `convert`."""
    if is_original(checkpoint.config):
        return lambda *_, dtype=None, device_map=None, max_memory=None, **__: convert(checkpoint, dtype, device_map)
    loader: Callable[..., Any] = import_module("transformers").AutoModelForCausalLM.from_pretrained
    return loader


def convert(checkpoint: Checkpoint, dtype: Any = None, device_map: str | None = None) -> Any:
    """A `MambaForCausalLM` with the weights of a checkpoint in mamba_ssm's layout; it always fits one device.

    Raises `UserError` for what transformers' Mamba cannot hold: Mamba-2, layers that attend, layer norms.
    """
    config = configuration(checkpoint)
    path = checkpoint.file("pytorch_model.bin")
    if path is None:
        raise UserError(
            f"model {checkpoint.who}: {checkpoint.path} has the layout of mamba_ssm, but no pytorch_model.bin"
        )
    torch = torch_module()
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, UnpicklingError, EOFError) as error:
        raise UserError(f"model {checkpoint.who}: {path} cannot be read as weights: {first_line(error)}") from error
    weights = {name.replace("backbone.embedding.", "backbone.embeddings."): value for name, value in weights.items()}
    kind = import_module("transformers").MambaForCausalLM
    with torch.device("meta"):
        wanted = {name: value.shape for name, value in kind(config).state_dict().items()}
    weights.setdefault("lm_head.weight", weights.get("backbone.embeddings.weight"))
    wrong = [
        name for name in wanted.keys() | weights.keys() if getattr(weights.get(name), "shape", 0) != wanted.get(name)
    ]
    if wrong:
        raise UserError(
            f"model {checkpoint.who}: {path} does not hold the weights that its config.json tells of: "
            f"{len(wrong)} differ in name or shape, such as {min(wrong)}"
        )
    place = {} if device_map is None else {"device_map": "cuda:0" if device_map == "auto" else device_map}
    return kind.from_pretrained(None, config=config, state_dict=weights, dtype=dtype, **place)


def configuration(checkpoint: Checkpoint) -> Any:
    """transformers' configuration from mamba_ssm's, whose unset keys have mamba_ssm's defaults."""
    given = checkpoint.config
    ssm = dict(given.get("ssm_cfg") or {})
    other = ssm.pop("layer", "Mamba1") != "Mamba1" or given.get("attn_layer_idx") or not given.get("rms_norm", True)
    if other or given.get("d_intermediate"):
        raise UserError(
            f"model {checkpoint.who}: {checkpoint.path} has the layout of mamba_ssm, but is no plain Mamba-1 with RMS norm: "
            "name a checkpoint in transformers' layout (on the hub, its name often ends in -hf)"
        )
    multiple = given.get("pad_vocab_size_multiple", 8)
    rank = ssm.get("dt_rank", "auto")
    return import_module("transformers").MambaConfig(
        vocab_size=-(-given["vocab_size"] // multiple) * multiple,
        hidden_size=given["d_model"],
        num_hidden_layers=given["n_layer"],
        state_size=ssm.get("d_state", 16),
        expand=ssm.get("expand", 2),
        conv_kernel=ssm.get("d_conv", 4),
        use_conv_bias=ssm.get("conv_bias", True),
        use_bias=ssm.get("bias", False),
        time_step_rank=rank,
        residual_in_fp32=given.get("residual_in_fp32", True),
        layer_norm_epsilon=1e-5,
        tie_word_embeddings=given.get("tie_embeddings", True),
    )


def end_ids(tokenizer: Tokenizer) -> list[int]:
    """The id of a tokenizer's own last token, for a checkpoint whose files do not say where an answer ends."""
    ids = tokenizer.encode(tokenizer.eos_token).tolist() if tokenizer.eos_token else []
    return ids if len(ids) == 1 else []
