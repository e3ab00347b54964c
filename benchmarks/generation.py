"""How fast examples are made and how well they fill their budget, per task, length and tokenizer.

Beside each cell stand two floors measured in the same run: one `encode` of the same prompt, and
plain joining of its texts. Every example that is timed is also checked: prompt + answer within the
budget, and (for the first of a cell) the joined ids equal to the encoding of the whole.

    python benchmarks/generation.py --lengths 4096 32768 131072 --tokenizers builtin
    path/to/tokenizer.json --tasks ruler frontier
"""

import argparse
import csv
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from rulerkit import PromptFormat, UserError, generate, load_tokenizer, task
from rulerkit.generation.tasks import without_suites

COLUMNS = [
    *(
        "tokenizer",
        "task",
        "length",
        "examples",
        "first_s",
        "each_ms",
        "encode_ms",
        "join_ms",
        "ratio",
    ),
    *("fill_min", "fill_mean", "fill_max", "over_budget", "exact", "peak_mb"),
]


def measure(
    tokenizer: str, name: str, length: int, num_examples: int, corpora: str, seed: int
) -> dict[str, object]:
    """One cell: seconds to the first example, then the median time of the others, their text and
    ids included."""
    form = PromptFormat(load_tokenizer(tokenizer))
    started = time.perf_counter()
    examples = generate(task(name).with_corpora(corpora), length, num_examples, seed, form)
    first = examples[0]
    texts = [block.text for block in first.blocks]
    prompt = "".join(texts)
    first_s = time.perf_counter() - started
    times, fills = [], [used(first)]
    for index in range(1, num_examples):
        started = time.perf_counter()
        example = examples[index]
        _ = example.prompt, example.ids
        times.append(time.perf_counter() - started)
        fills.append(used(example))
    peak_mb = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    )  # before the floors, which need more
    encode_ms = 1e3 * timed(lambda: form.tokenizer.encode(prompt))
    join_ms = 1e3 * timed(lambda: "".join(texts))
    whole = np.concatenate([np.array(form.bos, np.int32), form.tokenizer.encode(prompt)])
    each_ms = 1e3 * statistics.median(times) if times else float("nan")
    return {
        "tokenizer": tokenizer,
        "task": name,
        "length": length,
        "examples": num_examples,
        "first_s": round(first_s, 3),
        "each_ms": round(each_ms, 3),
        "encode_ms": round(encode_ms, 3),
        "join_ms": round(join_ms, 3),
        "ratio": round(each_ms / encode_ms, 4),
        "fill_min": round(100 * min(fills), 3),
        "fill_mean": round(100 * statistics.mean(fills), 3),
        "fill_max": round(100 * max(fills), 3),
        "over_budget": sum(fill > 1 for fill in fills),
        "exact": np.array_equal(whole, first.ids),
        "peak_mb": round(peak_mb),
    }


def used(example) -> float:  # type: ignore[no-untyped-def]
    return (example.num_tokens + example.max_new_tokens) / example.length


def timed(work) -> float:  # type: ignore[no-untyped-def]
    """The best of three runs, in seconds."""
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 32768, 131072])
    parser.add_argument("--tokenizers", nargs="+", default=["builtin"])
    parser.add_argument(
        "--tasks",
        nargs="+",
        default=["ruler"],
        help="names, or suites: ruler (the thirteen), frontier",
    )
    parser.add_argument("--num-examples", type=int, default=20)
    parser.add_argument("--corpora", choices=("builtin", "original"), default="builtin")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--isolated",
        action="store_true",
        help="a process for each cell, so that peak memory is its own",
    )
    parser.add_argument("--output", type=Path, help="a CSV file")
    asked = parser.parse_args()
    cells = [
        (t, n, length)
        for t in asked.tokenizers
        for length in asked.lengths
        for n in without_suites(asked.tasks)
    ]
    rows = []
    print(" ".join(f"{name:>11}" for name in COLUMNS[1:]))
    for tokenizer, name, length in cells:
        call = (tokenizer, name, length, asked.num_examples, asked.corpora, asked.seed)
        try:
            if asked.isolated:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    row = pool.submit(measure, *call).result()
            else:
                row = measure(*call)
        except UserError as error:
            sys.exit(f"{name} at {length} with {tokenizer}: {error}")
        if not rows or rows[-1]["tokenizer"] != tokenizer:
            print(tokenizer)
        rows.append(row)
        print(" ".join(f"{row[name]!s:>11.11}" for name in COLUMNS[1:]), flush=True)
    for tokenizer in asked.tokenizers:
        for length in asked.lengths:
            own = [row for row in rows if row["tokenizer"] == tokenizer and row["length"] == length]
            ratio = statistics.median(float(str(row["ratio"])) for row in own)
            over = sum(int(str(row["over_budget"])) for row in own)
            worst = min(own, key=lambda row: row["fill_mean"])  # type: ignore[arg-type, return-value]
            print(
                f"{tokenizer} {length}: median {ratio:.4f} of one encode, worst mean fill "
                f"{worst['fill_mean']} % "
                f"({worst['task']}), {over} of {sum(int(str(row['examples'])) for row in own)} "
                "over budget"
            )
    if asked.output:
        with asked.output.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
