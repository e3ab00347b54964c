"""Faults of a serving change, applied to the small Llama, and how many examples `rulerkit compare`
takes to see each.

Each fault is a function model with a greedy loop of its own over transformers' forward pass in
float32: a sliding window of 128 tokens; the first four tokens (attention sinks) evicted from the
cache once the prompt is read; keys and values stored with 4, 3 or 2 bits (per token and head, from
the smallest to the largest value); another RoPE base; positions off by one once the prompt is read;
no BOS. `bfloat16` and `same` (the loop without a fault) are controls. The baseline is the
transformers engine.

    python benchmarks/serving_faults.py --lengths 256 --num-examples 50

Columns: mean score of the small protocol in percent and its difference to the baseline; answers
whose score differs; the verdict with all examples (margin 1 point); the smallest number of examples
per task, of those tried, from which on the verdict is always `worse`; where the loss is seen first.
"""

import argparse
import math
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers import AutoModelForCausalLM, DynamicCache

import rulerkit as rk
from rulerkit.analysis.compare import WORSE, compare
from rulerkit.common.lengths import parse_length
from rulerkit.common.model_files import read_spec
from rulerkit.common.paths import resolve
from rulerkit.common.render import Field, render
from rulerkit.evaluation.study import load_files

SIZES = (5, 10, 20, 30, 50, 75, 100, 150, 200)
FAULTS: dict[str, dict[str, Any]] = {
    "same": {},
    "bfloat16": {"dtype": torch.bfloat16},
    "window of 128": {"window": 128},
    "sinks evicted": {"sinks": 4},
    "4-bit cache": {"bits": 4},
    "3-bit cache": {"bits": 3},
    "2-bit cache": {"bits": 2},
    "RoPE base 20,000": {"base": 2.0},
    "RoPE base 100,000": {"base": 10.0},
    "positions off by one": {"shift": 1},
    "no BOS": {"skip": 1},
}


class RoundedCache(DynamicCache):
    """Keys and values as they are after storing with so many bits."""

    bits = 4

    def update(self, keys: Any, values: Any, *arguments: Any, **options: Any) -> Any:
        return super().update(self.rounded(keys), self.rounded(values), *arguments, **options)

    def rounded(self, tensor: Any) -> Any:
        low, high = tensor.amin(-1, keepdim=True), tensor.amax(-1, keepdim=True)
        step = (high - low).clamp_min(1e-8) / (2**self.bits - 1)
        return ((tensor - low) / step).round() * step + low


@torch.no_grad()
def answer(
    network: Any,
    tokenizer: Any,
    prompts: list[Any],
    max_new_tokens: int,
    window: float = math.inf,
    sinks: int = 0,
    bits: int = 0,
    shift: int = 0,
    skip: int = 0,
) -> list[str]:
    """Greedy answers with a fault."""
    texts = []
    for prompt in prompts:
        ids = torch.from_numpy(prompt[skip:]).long()[None]
        length, written, cache = ids.shape[1], list[int](), DynamicCache()
        if bits:
            cache = RoundedCache()
            cache.bits = bits
        while len(written) < max_new_tokens:
            end = length + len(written)
            queries = torch.arange(end - ids.shape[1], end)
            keys = torch.arange(end)
            seen = (keys <= queries[:, None]) & (queries[:, None] - keys < window)
            if sinks and written:
                seen &= keys >= sinks
            mask = torch.zeros(seen.shape, dtype=network.dtype)
            mask.masked_fill_(~seen, torch.finfo(network.dtype).min)
            positions = queries + shift * bool(written)
            output = network(
                input_ids=ids,
                attention_mask=mask[None, None],
                position_ids=positions[None],
                past_key_values=cache,
            )
            token = int(output.logits[0, -1].argmax())
            if token == network.config.eos_token_id:
                break
            written.append(token)
            ids = torch.tensor([[token]])
        texts.append(tokenizer.decode(written))
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="small-llama")
    parser.add_argument("--lengths", nargs="+", default=["256"])
    parser.add_argument("--num-examples", type=int, default=50)
    parser.add_argument("--outputs", default="outputs/serving-faults")
    parser.add_argument("--faults", nargs="+", default=list(FAULTS))
    given = parser.parse_args()
    spec = read_spec(given.model)
    lengths = [parse_length(length) for length in given.lengths]
    small = load_files(["params/sizes/small.yaml"]) | {"num_examples": given.num_examples}
    small |= {"lengths": lengths, "outputs": given.outputs}
    study = rk.study(small, model=spec)
    rk.evaluate(study)
    folder: Path = study.predictions
    tokenizer = rk.load_tokenizer(spec["tokenizer"])
    rows = []
    for name in given.faults:
        fault = dict(FAULTS[name])
        dtype, base = fault.pop("dtype", torch.float32), fault.pop("base", 1.0)
        network = AutoModelForCausalLM.from_pretrained(resolve(spec["path"]), dtype=dtype).eval()
        rope = network.model.rotary_emb
        rope.inv_freq *= base ** -(torch.arange(len(rope.inv_freq)) / len(rope.inv_freq))
        model = rk.model(
            partial(answer, network, tokenizer, **fault),
            name=name.replace(" ", "-").replace(",", ""),
            takes="ids",
            tokenizer=spec["tokenizer"],
            template="base",
            batch_size=1,
        )
        rk.evaluate(rk.study(small, model=model))
        rows.append(judged(folder / spec["name"], folder / model.name, name, given.num_examples))
        print(" | ".join(field.text for field in rows[-1]), flush=True)
    header = ["fault", "score", "difference", "flips", "verdict", "examples", "seen first in"]
    print(render(pd.DataFrame(rows, columns=header), "markdown"))


def judged(baseline: Path, candidate: Path, name: str, most: int) -> list[Field]:
    sizes = [size for size in SIZES if size < most] + [most]
    by_size = {n: compare(baseline, candidate, num_examples=n) for n in sizes}
    last = by_size[most]
    needed = None
    for size in reversed(sizes):
        if by_size[size].verdict.word != WORSE:
            break
        needed = size
    where = ""
    if needed:
        losses = by_size[needed].rows.query("beyond_margin")
        losses = losses.sort_values("p_margin", kind="stable")
        first = losses.iloc[0]
        where = "the mean" if first["level"] == "all" else str(first["task"] or first["length"])
    mean = last.mean
    texts = [
        name,
        f"{mean['b']:.1f}",
        f"{mean['difference']:.1f} [{mean['low']:.1f}, {mean['high']:.1f}]",
        f"{len(last.flips)} of {mean['n']}",
        last.verdict.word,
        str(needed or "-"),
        where or "-",
    ]
    return [Field(text) for text in texts]


if __name__ == "__main__":
    main()
