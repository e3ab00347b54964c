"""Three ways to compress the keys and values of a context, with transformers' own cache.

The notebook 23_compressed_cache names these functions as `compress` of a model. Each reads the
context alone, before the question is known. `ratio` is the share of the cache that is saved, from 0
to less than 1.
"""

from typing import Any

import rulerkit as rk


def window(network: Any, context_ids: Any, ratio: float, sinks: int = 4) -> Any:
    """Keep the first tokens and the last ones (StreamingLLM, arXiv 2309.17453); what is kept stays
    at its positions."""
    cache = rk.read_context(network, context_ids)
    for layer in cache.layers:
        length = layer.keys.shape[2]
        kept = max(sinks + 1, round((1 - ratio) * length))
        start = max(sinks, length - (kept - sinks))
        chosen = [*range(min(sinks, length)), *range(start, length)]
        layer.keys = layer.keys[:, :, chosen]
        layer.values = layer.values[:, :, chosen]
    return cache


def dropped(network: Any, context_ids: Any, ratio: float) -> Any:
    """Keep, in each head, the keys of the smallest norm, which the most attention goes to (arXiv
    2406.11430), and their values."""
    cache = rk.read_context(network, context_ids)
    for layer in cache.layers:
        kept = max(1, round((1 - ratio) * layer.keys.shape[2]))
        norms = layer.keys.float().norm(dim=-1)
        chosen = norms.topk(kept, largest=False).indices.sort().values
        chosen = chosen[..., None].expand(*chosen.shape, layer.keys.shape[-1])
        layer.keys = layer.keys.gather(2, chosen)
        layer.values = layer.values.gather(2, chosen)
    return cache


def rounded(network: Any, context_ids: Any, ratio: float) -> Any:
    """Keep every token, with `16 * (1 - ratio)` bits a number in place of 16: keys by channel,
    values by token (KIVI, arXiv 2402.02750), between the smallest and the largest number."""
    cache = rk.read_context(network, context_ids)
    bits = max(1, round(16 * (1 - ratio)))
    for layer in cache.layers:
        layer.keys = _rounded(layer.keys, bits, 2)
        layer.values = _rounded(layer.values, bits, 3)
    return cache


def _rounded(numbers: Any, bits: int, along: int) -> Any:
    """The nearest of 2**bits evenly spaced numbers between the extremes of a dimension."""
    low = numbers.amin(dim=along, keepdim=True)
    high = numbers.amax(dim=along, keepdim=True)
    # Where all are equal any step will do.
    step = ((high - low) / (2**bits - 1)).clamp(min=1e-12)
    return low + ((numbers - low) / step).round() * step
