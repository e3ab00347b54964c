"""Tiny random checkpoints of recurrent, hybrid and sliding-window models, for test_recurrent.py."""

VOCABULARY = 8192

_TINY = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
_ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
_ATTENTION = (
    _TINY | _ENDS | {"intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
)

SHAPES = {
    "Mamba": _TINY | {"state_size": 16},
    "Mamba2": _TINY
    | _ENDS
    | {"n_groups": 1, "chunk_size": 64, "num_heads": 4, "head_dim": 16, "state_size": 16},
    "Rwkv": _TINY | {"context_length": 4096},
    "Jamba": _ATTENTION
    | {"num_experts": 2, "num_experts_per_tok": 1}
    | {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 8}
    | {"expert_layer_period": 2, "expert_layer_offset": 1},
    "Mistral": _ATTENTION | {"sliding_window": 64},
}
"""Configurations by the name that a class of transformers begins with."""


def build(kind):
    """A random network whose answers depend on the prompt."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**SHAPES[kind], initializer_range=0.5)
    network = getattr(transformers, f"{kind}ForCausalLM")(config)
    if kind == "Rwkv":  # some of its weights start at zero or at one
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(0.3 * torch.randn_like(weight))
    return network


NETWORKS = {"mamba": "Mamba", "mamba-2": "Mamba2", "jamba": "Jamba", "rwkv-4": "Rwkv"}

_SIZE, _WIDE, _HEADS, _RANK = 64, 128, 2, 8


def _matrix(*shape):
    import torch

    return torch.randn(shape) * 0.2


def _norms(*names):
    weights = {f"{name}.weight": 1 + _matrix(_SIZE) for name in names}
    return weights | {f"{name}.bias": _matrix(_SIZE) for name in names}


def _ends():
    """Embedding and head of the World vocabulary."""
    return {name: _matrix(65536, _SIZE) for name in ("emb.weight", "head.weight")} | _norms(
        "ln_out"
    )


def _block(i):
    """The weights of a layer under their authors' names."""
    import torch

    attention = ("receptance", "key", "value", "output")
    weights = _norms("ln1", "ln2", "att.ln_x", *(["ln0"] if i == 0 else []))
    weights |= {f"att.{name}.weight": _matrix(_SIZE, _SIZE) for name in attention}
    weights["ffn.key.weight"] = _matrix(_WIDE, _SIZE)
    weights["ffn.value.weight"] = _matrix(_SIZE, _WIDE)
    low_rank = "wav" if i else "wa"
    weights |= {f"att.{name}0": _matrix(1, 1, _SIZE) for name in low_rank}
    weights |= {f"att.{name}1": _matrix(_SIZE, _RANK) for name in low_rank + "g"}
    weights |= {f"att.{name}2": _matrix(_RANK, _SIZE) for name in low_rank + "g"}
    weights |= {f"att.{name}": 1 + _matrix(1, 1, _SIZE) for name in ("k_k", "k_a")}
    weights["att.r_k"] = _matrix(_HEADS, _SIZE // _HEADS)
    mixed = [f"att.x_{name}" for name in "rwkvag"] + ["ffn.x_k"]
    weights |= {name: torch.rand((1, 1, _SIZE)) for name in mixed}
    return {f"blocks.{i}.{name}": weight for name, weight in weights.items()}


def write_pth(path):
    """A random RWKV-7 of two layers and two heads, with the World vocabulary."""
    import torch

    torch.manual_seed(7)
    torch.save(_ends() | _block(0) | _block(1), path)
