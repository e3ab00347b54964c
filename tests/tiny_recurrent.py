"""Tiny random checkpoints of recurrent, hybrid and sliding-window models, for test_recurrent.py."""

import json
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="checkpoints need torch")
transformers: Any = pytest.importorskip("transformers")

VOCABULARY = 8189  # no multiple of 8: mamba_ssm rounds it up


_TINY: dict[str, Any] = {"vocab_size": 8192, "hidden_size": 32, "num_hidden_layers": 2}
_ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
_ATTENTION = (
    _TINY | _ENDS | {"intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
)
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_chunk_size": 64,
}
_MIXED = {"layer_types": ["linear_attention", "full_attention"]}
_SLIDING = {
    "layer_types": ["full_attention", "sliding_attention"],
    "use_sliding_window": True,
    "sliding_window": 64,
}
_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

SHAPES: dict[str, dict[str, Any]] = {
    "Mamba": _TINY | {"state_size": 16},
    "FalconMamba": _TINY | {"state_size": 16},
    "Mamba2": _TINY
    | _ENDS
    | {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 16, "chunk_size": 64},
    "Rwkv": _TINY | {"context_length": 4096},
    "Jamba": _ATTENTION
    | {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 8}
    | {
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 2,
        "num_experts_per_tok": 1,
    },
    "Bamba": _ATTENTION | _MAMBA2 | {"attn_layer_indices": [1]},
    "FalconH1": _ATTENTION | _MAMBA2 | {"mamba_d_ssm": 64},
    "Zamba2": _ATTENTION
    | {
        "num_hidden_layers": 3,
        "layers_block_type": ["mamba", "hybrid", "mamba"],
        "num_mem_blocks": 1,
    }
    | {"mamba_d_state": 16, "n_mamba_heads": 4, "mamba_ngroups": 1, "chunk_size": 64},
    "NemotronH": _ATTENTION
    | {"num_hidden_layers": 3, "layers_block_type": ["mamba", "attention", "mamba"], "head_dim": 16}
    | {
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "n_groups": 1,
        "ssm_state_size": 16,
        "chunk_size": 64,
    },
    "GraniteMoeHybrid": _ATTENTION
    | _MAMBA2
    | _EXPERTS
    | {"layers_block_type": ["mamba", "attention"], "shared_intermediate_size": 32},
    "RecurrentGemma": _ATTENTION
    | {
        "num_hidden_layers": 3,
        "block_types": ["recurrent", "recurrent", "attention"],
        "lru_width": 32,
    }
    | {"attention_window_size": 64, "tie_word_embeddings": False},
    "Qwen3Next": _ATTENTION
    | _MIXED
    | _DELTA
    | {"head_dim": 16, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
    | {"shared_expert_intermediate_size": 32},
    "OlmoHybrid": _ATTENTION | _MIXED | _DELTA,
    "MiniMax": _ATTENTION | _MIXED | _EXPERTS | {"head_dim": 16, "block_size": 16},
    "Lfm2": _ATTENTION | {"layer_types": ["conv", "full_attention"]},
    "Llama": _ATTENTION,
    "Mistral": _ATTENTION | {"sliding_window": 64},
    "Qwen2": _ATTENTION | _SLIDING,
    "Qwen3": _ATTENTION | _SLIDING | {"head_dim": 16},
    "Gemma2": _ATTENTION | {"head_dim": 16, "sliding_window": 64, "tie_word_embeddings": False},
}
"""Configurations by the name that a class of transformers begins with."""


def build(kind: str) -> Any:
    """A random network whose answers depend on the prompt."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**SHAPES[kind], initializer_range=0.5)
    network = getattr(transformers, f"{kind}ForCausalLM")(config)
    if kind in ("Rwkv", "MiniMax", "Qwen3Next"):  # some of their weights start at zero or at one
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(0.3 * torch.randn_like(weight))
    if "Gemma" in kind:  # it scales its embeddings up: the last token would decide alone
        with torch.no_grad():
            network.get_input_embeddings().weight.mul_(0.05)
    return network


NETWORKS = {"mamba": "Mamba", "mamba-2": "Mamba2", "jamba": "Jamba", "rwkv-4": "Rwkv"}


def write_original(network: Any, folder: Path) -> None:
    """A Mamba's weights as mamba_ssm's `save_pretrained` writes them: no model_type, `embedding`,
    pytorch_model.bin."""
    folder.mkdir()
    shape = {"d_model": 32, "n_layer": 2, "vocab_size": VOCABULARY, "pad_vocab_size_multiple": 8}
    norm = {"ssm_cfg": {}, "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True}
    (folder / "config.json").write_text(json.dumps(shape | norm))
    named = {
        k.replace("backbone.embeddings.", "backbone.embedding."): v
        for k, v in network.state_dict().items()
    }
    assert "lm_head.weight" in named
    torch.save(named, folder / "pytorch_model.bin")


def _matrix(*shape: int) -> Any:
    return torch.randn(shape) * 0.2


def _norm(name: str, size: int) -> dict[str, Any]:
    return {f"{name}.weight": 1 + _matrix(size), f"{name}.bias": _matrix(size)}


def write_pth(path: Path) -> None:
    """A random RWKV-5.2 of two layers and two heads, under its authors' names, with the World
    vocabulary."""
    torch.manual_seed(5)
    size, wide, heads, vocabulary = 64, 128, 2, 65536
    weights = {
        "emb.weight": _matrix(vocabulary, size),
        "head.weight": _matrix(vocabulary, size),
        **_norm("ln_out", size),
    }
    for i in range(2):
        block = f"blocks.{i}"
        for name in ("ln1", "ln2", "att.ln_x", *(["ln0"] if i == 0 else [])):
            weights |= _norm(f"{block}.{name}", size)
        for name in ("att.time_mix_k", "att.time_mix_v", "att.time_mix_r", "att.time_mix_g"):
            weights[f"{block}.{name}"] = torch.rand((1, 1, size))
        for name in ("ffn.time_mix_k", "ffn.time_mix_r"):
            weights[f"{block}.{name}"] = torch.rand((1, 1, size))
        for name in ("att.time_decay", "att.time_faaaa"):
            weights[f"{block}.{name}"] = _matrix(heads, size // heads)
        for name in ("receptance", "key", "value", "gate", "output"):
            weights[f"{block}.att.{name}.weight"] = _matrix(size, size)
        weights[f"{block}.ffn.key.weight"] = _matrix(wide, size)
        weights[f"{block}.ffn.value.weight"] = _matrix(size, wide)
        weights[f"{block}.ffn.receptance.weight"] = _matrix(size, size)
    torch.save(weights, path)


def write_pth_7(path: Path) -> None:
    """A random RWKV-7 of two layers and two heads, under its authors' names, with the World
    vocabulary."""
    torch.manual_seed(7)
    size, wide, heads, rank, vocabulary = 64, 128, 2, 8, 65536
    weights = {
        "emb.weight": _matrix(vocabulary, size),
        "head.weight": _matrix(vocabulary, size),
        **_norm("ln_out", size),
    }
    for i in range(2):
        block = f"blocks.{i}"
        for name in ("ln1", "ln2", "att.ln_x", *(["ln0"] if i == 0 else [])):
            weights |= _norm(f"{block}.{name}", size)
        for name in "rwkvag":
            weights[f"{block}.att.x_{name}"] = torch.rand((1, 1, size))
        for name in "wav" if i else "wa":
            weights[f"{block}.att.{name}0"] = _matrix(1, 1, size)
        for name in "wavg" if i else "wag":
            weights[f"{block}.att.{name}1"] = _matrix(size, rank)
            weights[f"{block}.att.{name}2"] = _matrix(rank, size)
        for name in ("k_k", "k_a"):
            weights[f"{block}.att.{name}"] = 1 + _matrix(1, 1, size)
        weights[f"{block}.att.r_k"] = _matrix(heads, size // heads)
        for name in ("receptance", "key", "value", "output"):
            weights[f"{block}.att.{name}.weight"] = _matrix(size, size)
        weights[f"{block}.ffn.x_k"] = torch.rand((1, 1, size))
        weights[f"{block}.ffn.key.weight"] = _matrix(wide, size)
        weights[f"{block}.ffn.value.weight"] = _matrix(size, wide)
    torch.save(weights, path)
