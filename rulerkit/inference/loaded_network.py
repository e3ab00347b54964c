"""What tells one network in memory from another."""

import hashlib
from typing import Any

from rulerkit.common.settings import JSON
from rulerkit.inference.fingerprints import TENSOR_END, short
from rulerkit.inference.object_state import code_of


def loaded_identity(network: Any) -> JSON:
    """What identifies a torch model in memory: `loaded`, its configuration and the shape and first
    values of every weight; `weights`, the rule `tensors`; and `code`, its kind of attention and
    what `forward` of each module and its `generate` do."""
    import torch

    config = network.config.to_json_string(use_diff=False)
    loaded = hashlib.sha256(f"{type(network).__qualname__}\n{config}".encode())
    tensors = hashlib.sha256()
    for name, weight in network.named_parameters():
        flat, shape = weight.detach().reshape(-1), tuple(weight.shape)
        first_values = flat[:16].float().cpu().tolist()
        loaded.update(f"{name} {shape} {first_values}\n".encode())

        # The same rule as for files: both ends of every tensor.
        count = max(1, TENSOR_END // flat.element_size())
        ends = torch.cat([flat[:count], flat[-count:]]).cpu().view(torch.uint8)
        head = f"{name} {weight.dtype} {shape}\n"
        tensors.update(head.encode() + ends.numpy().tobytes())

    forwards = []
    for name, module in network.named_modules():
        # accelerate's hooks replace `forward` and keep it under this name.
        forwards.append((name, getattr(module, "_old_forward", module.forward)))
    code = {
        "attention": getattr(network.config, "_attn_implementation", None),
        **code_of((*forwards, network.generate)),
    }
    return {"loaded": short(loaded), "weights": {"tensors": short(tensors)}, "code": code}
