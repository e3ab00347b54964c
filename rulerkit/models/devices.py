"""Devices and their memory, through torch: where a checkpoint runs and how much fits."""

import gc
from typing import Any

from rulerkit.errors import UserError


def torch_module() -> Any:
    """torch, or the `UserError` that says how to get it."""
    try:
        import torch
    except ImportError as error:
        raise UserError("the transformers engine needs torch: pip install 'rulerkit[transformers]'") from error
    return torch


def is_cuda(device: str) -> bool:
    """Whether a device is one GPU or all of them."""
    return device.startswith("cuda") or device == "spread"


def out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: a GPU's, or (a plain RuntimeError) the machine's."""
    return isinstance(error, torch_module().OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def free() -> None:
    """Give back the memory that nothing uses any more."""
    torch = torch_module()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def free_bytes() -> int:
    """Free memory of all GPUs, that which torch holds without using it included."""
    cuda = torch_module().cuda
    devices = range(cuda.device_count())
    return sum(cuda.mem_get_info(i)[0] + cuda.memory_reserved(i) - cuda.memory_allocated(i) for i in devices)


def bytes_per_token(network: Any) -> int:
    """Bytes that a token of a sequence takes: keys and values of every layer, and one layer's activations."""
    config = network.config.get_text_config()
    hidden = config.hidden_size
    heads = getattr(config, "num_attention_heads", 0)  # none in a recurrent model, whose state does not grow
    head_dim = getattr(config, "head_dim", None) or hidden // max(1, heads)
    key_value = 2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * head_dim
    activations = 3 * (getattr(config, "intermediate_size", None) or 4 * hidden) + 8 * hidden
    return int((key_value + activations) * network.dtype.itemsize)
