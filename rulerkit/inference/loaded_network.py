"""What tells one network in memory from another."""

import hashlib
from types import FunctionType, MethodType
from typing import Any

from rulerkit.common.settings import JSON
from rulerkit.inference.fingerprints import TENSOR_END, short
from rulerkit.inference.user_code import is_installed


def loaded_identity(network: Any) -> JSON:
    """What identifies a torch model in memory: `loaded`, its configuration and the shape and first
    values of every weight; `weights`, the rule `tensors`; and in `code` its kind of attention."""
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

    return {
        "loaded": short(loaded),
        "weights": {"tensors": short(tensors)},
        "code": {"attention": getattr(network.config, "_attn_implementation", None)},
    }


def replaced_code(network: Any) -> list[Any]:
    """The functions of the user's in a torch model: each `forward` and the `generate` that were
    replaced, and the classes that no installed package brings."""
    found = [vars(network)["generate"]] if "generate" in vars(network) else []
    for module in network.modules():
        # accelerate's hooks replace `forward` and keep it under this name.
        forward = getattr(module, "_old_forward", vars(module).get("forward"))
        is_plain = isinstance(forward, FunctionType | MethodType)
        if forward is not None and not (is_plain and is_installed(forward.__module__)):
            found.append(forward)
        if not is_installed(type(module).__module__):
            found.append(type(module))
    return list(dict.fromkeys(found))
