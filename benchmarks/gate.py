"""How often the gate alarms on equal models, and which losses it finds: `python benchmarks/gate.py
[--runs 1000]`.

Simulated comparisons of 13 tasks at 200 examples per task and length, margin 1 point. A share of
the answers flips each way by chance; a loss is planted in one task, or at the longest length.
Prints a Markdown table: how often any loss was seen (an alarm where none was planted), how often
the one planted was, how often an exact one-sided sign test of it alone (5 %) sees it, and how often
the verdict was 'cannot tell'.
"""

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from rulerkit.analysis.differences import judge_pairs

RANDOM = np.random.default_rng(20241121)
TASKS, EXAMPLES, MARGIN = 13, 200, 1.0


class Case(NamedTuple):
    """A simulated comparison: shares of answers that flip each way, and that are lost in one task
    or at one length."""

    name: str
    num_lengths: int
    flips: float
    task_loss: float = 0.0
    length_loss: float = 0.0


CASES = (
    Case("equal, identical answers", 1, 0.0),
    Case("equal, 2 % flip each way", 1, 0.02),
    Case("equal, 2 % flip each way", 3, 0.02),
    Case("equal, 2 % flip each way", 6, 0.02),
    Case("-8 points in one task", 1, 0.0, task_loss=0.08),
    Case("-8 points in one task", 6, 0.0, task_loss=0.08),
    Case("-5 points at the longest length", 6, 0.0, length_loss=0.05),
    Case("-8 points in one task, 2 % flip each way", 1, 0.02, task_loss=0.08),
    Case("-8 points in one task, 2 % flip each way", 6, 0.02, task_loss=0.08),
    Case(
        "-5 points at the longest length, 2 % flip each way", 6, 0.02, length_loss=0.05
    ),
)


def simulated(case: Case) -> pd.DataFrame:
    """Pairs as `compare.paired` gives them; the loss is planted in the first task, or at the
    longest length."""
    shape = (TASKS, case.num_lengths, EXAMPLES)
    a = RANDOM.random(shape) < 0.8
    chance = RANDOM.random(shape)
    lost = np.full(shape, case.flips / 0.8)
    lost[0] += case.task_loss / 0.8
    lost[:, -1] += case.length_loss / 0.8
    b = np.where(a, chance >= lost, chance < case.flips / 0.2)
    task, length, index = (places.ravel() for places in np.indices(shape))
    frame = pd.DataFrame(
        {
            "task": np.char.add("niah_", task.astype(str)),
            "length": 4096 * (1 + length),
            "index": index,
        }
    )
    values = {"a": a.ravel() * 1.0, "b": b.ravel() * 1.0}
    return frame.assign(category="niah", **values, difference=values["b"] - values["a"])


def outcomes(case: Case) -> Iterator[tuple[bool, bool, bool, bool]]:
    """Of one comparison: any loss, the planted one, the exact test of the planted cell, cannot
    tell."""
    while True:
        pairs = simulated(case)
        rows, _ = judge_pairs(pairs, MARGIN, 0.95)
        longest = 4096 * case.num_lengths
        if case.task_loss:
            place = (rows["level"] == "task") & (rows["task"] == "niah_0")
        elif case.length_loss:
            place = (rows["level"] == "length") & (rows["length"] == longest)
        else:
            place = rows["level"] == "all"
        row = rows[place].iloc[0]
        moved = int(row["better"] + row["worse"])
        exact = (
            moved > 0
            and binomtest(int(row["worse"]), moved, alternative="greater").pvalue < 0.05
        )
        any_loss = bool(rows["loss"].any())
        yield (
            any_loss,
            bool(row["loss"]),
            exact,
            not any_loss and rows["low"].iloc[-1] <= -MARGIN,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument(
        "--runs", type=int, default=1000, help="comparisons of each case"
    )
    runs = parser.parse_args().runs
    print(
        "| case | lengths | any loss seen, % | the planted one, % | exact test of it alone, % | "
        "cannot tell, % |"
    )
    print("|---|---|---|---|---|---|")
    for case in CASES:
        source = outcomes(case)
        shares = 100 * np.mean([next(source) for _ in range(runs)], axis=0)
        fields = " | ".join(f"{share:.1f}" for share in shares)
        print(f"| {case.name} | {case.num_lengths} | {fields} |", flush=True)


if __name__ == "__main__":
    main()
