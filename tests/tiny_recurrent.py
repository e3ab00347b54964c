"""Tiny random Mamba, Mamba-2, Jamba and RWKV checkpoints, for test_recurrent.py: real files, weights without meaning."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="checkpoints need torch")
transformers: Any = pytest.importorskip("transformers")

VOCABULARY = 8189  # no multiple of 8: mamba_ssm rounds it up


def mamba() -> Any:
    config = transformers.MambaConfig(
        vocab_size=8192, hidden_size=32, num_hidden_layers=2, state_size=16, initializer_range=0.5
    )
    return transformers.MambaForCausalLM(config)


def mamba2() -> Any:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 16}
    config = transformers.Mamba2Config(
        vocab_size=8192, chunk_size=64, initializer_range=0.5, eos_token_id=0, bos_token_id=0, pad_token_id=0, **shape
    )
    return transformers.Mamba2ForCausalLM(config)


def jamba() -> Any:
    attention = {"num_attention_heads": 2, "num_key_value_heads": 1, "attn_layer_period": 4, "attn_layer_offset": 2}
    experts = {"expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1}
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "mamba_d_state": 8}
    config = transformers.JambaConfig(
        vocab_size=8192, initializer_range=0.5, eos_token_id=0, pad_token_id=0, **shape, **attention, **experts
    )
    return transformers.JambaForCausalLM(config)


def rwkv4() -> Any:
    config = transformers.RwkvConfig(vocab_size=8192, context_length=4096, hidden_size=32, num_hidden_layers=2)
    network = transformers.RwkvForCausalLM(config)
    with torch.no_grad():
        for weight in network.parameters():  # they begin at zero, where all answers are alike
            weight.add_(0.3 * torch.randn_like(weight))
    return network


NETWORKS: dict[str, Callable[[], Any]] = {"mamba": mamba, "mamba-2": mamba2, "jamba": jamba, "rwkv-4": rwkv4}


def write_original(network: Any, folder: Path) -> None:
    """A Mamba's weights as mamba_ssm's `save_pretrained` writes them: no model_type, `embedding`, pytorch_model.bin."""
    folder.mkdir()
    shape = {"d_model": 32, "n_layer": 2, "vocab_size": VOCABULARY, "pad_vocab_size_multiple": 8}
    norm = {"ssm_cfg": {}, "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True}
    (folder / "config.json").write_text(json.dumps(shape | norm))
    named = {k.replace("backbone.embeddings.", "backbone.embedding."): v for k, v in network.state_dict().items()}
    assert "lm_head.weight" in named
    torch.save(named, folder / "pytorch_model.bin")


def write_pth(path: Path) -> None:
    """A random RWKV-5.2 of two layers and two heads, under its authors' names, with the World vocabulary."""
    draw = torch.Generator().manual_seed(5)
    size, wide, heads, vocabulary = 64, 128, 2, 65536

    def matrix(*shape: int) -> Any:
        return torch.randn(shape, generator=draw) * 0.2

    def norm(name: str) -> dict[str, Any]:
        return {f"{name}.weight": 1 + matrix(size), f"{name}.bias": matrix(size)}

    weights = {"emb.weight": matrix(vocabulary, size), "head.weight": matrix(vocabulary, size), **norm("ln_out")}
    for i in range(2):
        block = f"blocks.{i}"
        for name in ("ln1", "ln2", "att.ln_x", *(["ln0"] if i == 0 else [])):
            weights |= norm(f"{block}.{name}")
        for name in ("att.time_mix_k", "att.time_mix_v", "att.time_mix_r", "att.time_mix_g"):
            weights[f"{block}.{name}"] = torch.rand((1, 1, size), generator=draw)
        for name in ("ffn.time_mix_k", "ffn.time_mix_r"):
            weights[f"{block}.{name}"] = torch.rand((1, 1, size), generator=draw)
        for name in ("att.time_decay", "att.time_faaaa"):
            weights[f"{block}.{name}"] = matrix(heads, size // heads)
        for name in ("receptance", "key", "value", "gate", "output"):
            weights[f"{block}.att.{name}.weight"] = matrix(size, size)
        weights[f"{block}.ffn.key.weight"] = matrix(wide, size)
        weights[f"{block}.ffn.value.weight"] = matrix(size, wide)
        weights[f"{block}.ffn.receptance.weight"] = matrix(size, size)
    torch.save(weights, path)
