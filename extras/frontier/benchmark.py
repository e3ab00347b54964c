"""Verifies many examples of the frontier suite, by the parser of `tests/frontier_verifier.py`:
`python -m benchmarks.frontier --tokenizers qwen2.5 llama-3 gpt-neox --num-examples 100`.

For each task and tokenizer the rules V1 to V7 of `docs/frontier.md` at each length, the same
example at all of them; the score of the perfect reader; fill in percent of the budget, smallest and
mean, at each length; and the seconds that generation takes at the longest one, the first example of
the process and the median of the others. Ends with an AssertionError that names the rule and the
example where one does not hold. Prints a Markdown table, a row as it is done.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tokenizers import load_tokenizer
from tests.test_frontier import FRONTIER, task, verified

LENGTHS = (4096, 32768, 131072)


def seconds(name: str, form: PromptFormat, count: int) -> list[float]:
    """How long each of the first examples takes at the longest length."""
    examples, taken = (generate(task(name), LENGTHS[-1], count, prompt_format=form), [])
    for index in range(count):
        begun = time.perf_counter()
        _ = examples[index].ids
        taken.append(time.perf_counter() - begun)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizers", nargs="+", default=["builtin"])
    parser.add_argument("--tasks", nargs="+", default=FRONTIER)
    parser.add_argument("--num-examples", type=int, default=100)
    given = parser.parse_args()

    lengths = " | ".join(f"{length // 1024}K min, mean" for length in LENGTHS)
    print(f"| task | tokenizer | examples | perfect | {lengths} | first s | next s |")
    print("|" + "---|" * (6 + len(LENGTHS)), flush=True)
    for folder in given.tokenizers:
        path = folder
        if folder != "builtin":
            path = str(Path(os.environ["RULERKIT_DATA"], "tokenizers", folder))
        form = PromptFormat(load_tokenizer(path), template="base")
        for name in given.tasks:
            first, *others = seconds(name, form, 6)
            filled, scores = verified(name, LENGTHS, range(given.num_examples), form)
            fills = " | ".join(
                f"{min(filled[length]):.3f}, {statistics.fmean(filled[length]):.3f}"
                for length in LENGTHS
            )
            print(
                f"| {name} | {folder} | {given.num_examples} | {100 * min(scores):.0f} "
                f"| {fills} | {first:.2f} | {statistics.median(others):.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
