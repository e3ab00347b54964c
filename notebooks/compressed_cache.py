"""Three ways to compress the keys and values of a context, with transformers' own cache.

The notebook 23_compressed_cache asks `compressed` with each of them. A method reads the context
alone, before the question is known. `ratio` is the share of the cache that is saved, from 0 to less
than 1.
"""

import json
from collections.abc import Callable
from functools import cache
from inspect import signature
from pkgutil import resolve_name
from typing import Any

import torch
from transformers import DynamicCache

import rulerkit as rk


def compressed(model: Any, method: str, ratio: float) -> Callable[..., list[str]]:
    """A function that answers prompts in two parts with a checkpoint of the engine transformers.

    `method` (`module:function`) gets the network, the ids of a context (shape (1, tokens), on the
    network's device) and the `ratio`. It returns the cache with which the question is answered.
    """
    engine = _checkpoint(json.dumps(model))
    compress = resolve_name(method)

    def answer(parts: list[Any], max_new_tokens: int) -> list[str]:
        network = engine.load().eval()
        texts = []
        for part in parts:
            context, question = (
                torch.from_numpy(ids).long()[None].to(network.device)
                for ids in (part.context_ids, part.question_ids)
            )
            with torch.no_grad():
                kept = compress(network, context, ratio)
                ids = _write(
                    network, kept, context.shape[1], question, max_new_tokens, engine.stop_ids
                )
            texts.append(engine.read_ids(ids).text)
        return texts

    return answer


@cache
def _checkpoint(described: str) -> Any:
    """One copy of the weights for all methods."""
    return rk.load_model(json.loads(described))


def read_context(network: Any, context_ids: Any) -> Any:
    """The cache of keys and values after a network has read a context."""
    read = DynamicCache(config=network.config)
    _forward(network, context_ids, read)
    return read


def _write(
    network: Any, kept: Any, position: int, step: Any, most: int, stop_ids: list[int]
) -> list[int]:
    """Read the question behind the cache and answer greedily: at most so many ids, up to the first
    that stops."""
    written: list[int] = []
    while len(written) < most:
        # Positions go on behind the whole context: what is left of it keeps its own.
        end = position + step.shape[1]
        positions = torch.arange(position, end, device=network.device)[None]
        out = _forward(network, step, kept, position_ids=positions)
        position, step = end, out.logits[:, -1:].argmax(-1)
        written.append(int(step))
        if written[-1] in stop_ids:
            break
    return written


def _forward(network: Any, ids: Any, kept: Any, **more: Any) -> Any:
    """A pass over ids behind what the cache holds, which grows by them. The logits of the last
    token are enough: those of a long context would fill the memory."""
    # Before 5.24 transformers named the cache otherwise.
    is_new = "cache" in signature(network.forward).parameters
    more["cache" if is_new else "past_key_values"] = kept
    return network(input_ids=ids, use_cache=True, logits_to_keep=1, **more)


def window(network: Any, context_ids: Any, ratio: float, sinks: int = 4) -> Any:
    """Keep the first tokens and the last ones (StreamingLLM, arXiv 2309.17453); what is kept stays
    at its positions."""
    read = read_context(network, context_ids)
    for layer in read.layers:
        length = layer.keys.shape[2]
        kept = max(sinks + 1, round((1 - ratio) * length))
        start = max(sinks, length - (kept - sinks))
        chosen = [*range(min(sinks, length)), *range(start, length)]
        layer.keys = layer.keys[:, :, chosen]
        layer.values = layer.values[:, :, chosen]
    return read


def dropped(network: Any, context_ids: Any, ratio: float) -> Any:
    """Keep, in each head, the keys of the smallest norm, which the most attention goes to (arXiv
    2406.11430), and their values."""
    read = read_context(network, context_ids)
    for layer in read.layers:
        kept = max(1, round((1 - ratio) * layer.keys.shape[2]))
        norms = layer.keys.float().norm(dim=-1)
        chosen = norms.topk(kept, largest=False).indices.sort().values
        chosen = chosen[..., None].expand(*chosen.shape, layer.keys.shape[-1])
        layer.keys = layer.keys.gather(2, chosen)
        layer.values = layer.values.gather(2, chosen)
    return read


def rounded(network: Any, context_ids: Any, ratio: float) -> Any:
    """Keep every token, with `16 * (1 - ratio)` bits a number in place of 16: keys by channel,
    values by token (KIVI, arXiv 2402.02750), between the smallest and the largest number."""
    read = read_context(network, context_ids)
    bits = max(1, round(16 * (1 - ratio)))
    for layer in read.layers:
        layer.keys = _rounded(layer.keys, bits, 2)
        layer.values = _rounded(layer.values, bits, 3)
    return read


def _rounded(numbers: Any, bits: int, along: int) -> Any:
    """The nearest of 2**bits evenly spaced numbers between the extremes of a dimension."""
    low = numbers.amin(dim=along, keepdim=True)
    high = numbers.amax(dim=along, keepdim=True)
    # Where all are equal any step will do.
    step = ((high - low) / (2**bits - 1)).clamp(min=1e-12)
    return low + ((numbers - low) / step).round() * step
