"""What the gate says against what is true: `python benchmarks/gate.py [--runs 300] [--sequence]`.

Simulated comparisons of 13 tasks at six lengths, margin 1 point, through the functions that
`rulerkit compare` uses. A share of the answers flips each way by chance; a true loss is planted
everywhere, in one task, or in one cell. Prints a Markdown table: how often the verdict was *worse*,
*cannot tell* and *not worse*, and how often any loss was seen. A *worse* is wrong where no true
loss exceeds the margin, a *not worse* where the true loss of the mean is the margin or more.

With `--sequence` the answers are stored, up to 500 of each cell, and the rule of `rulerkit gate`
asks for them in rounds until it ends (`rulerkit_gate/sequential.py`): how often each verdict came, and
which share of the 39,000 examples of the full grid was asked.
"""

import argparse
from typing import NamedTuple

import numpy as np
import pandas as pd

from rulerkit.analysis.compare import (
    CANNOT_TELL,
    NOT_WORSE,
    WORSE,
    Comparison,
    PairedDifferences,
    Side,
    judge_pairs,
)
from rulerkit.evaluation.rounds import rounds
from rulerkit_gate.sequential import Design, GateRule

RANDOM = np.random.default_rng(20261124)
TASKS, LENGTHS, MARGIN = 13, 6, 1.0
EVERYWHERE, ONE_TASK, ONE_CELL = "everywhere", "one task", "one cell"
ONE_LENGTH = "one length"
FULL = 500  # examples of a cell in the full grid


NAMES = np.array([f"niah_{number}" for number in range(TASKS)], dtype=object)


class Case(NamedTuple):
    """A true loss (points), where it is planted, and the share of answers that flip each way."""

    loss: float
    where: str
    flips: float


CASES = (
    *(Case(loss, EVERYWHERE, 0.02) for loss in (0, 0.5, 0.7, 0.9, 1, 1.5, 2, 3)),
    *(Case(loss, EVERYWHERE, 0.25) for loss in (0.7, 1)),
    *(Case(loss, ONE_TASK, 0.02) for loss in (0.9, 1, 3, 5, 10)),
    *(Case(loss, ONE_CELL, 0.02) for loss in (1, 10, 20, 60)),
)


SEQUENCE = (
    *(Case(loss, EVERYWHERE, 0.02) for loss in (0, 0.5, 1, 3, 10)),
    *(Case(loss, ONE_TASK, 0.02) for loss in (0.5, 1, 3, 10)),
    *(Case(loss, ONE_LENGTH, 0.02) for loss in (0.5, 1, 3, 10)),
    *(Case(loss, EVERYWHERE, 0.005) for loss in (0, 1)),
    *(Case(loss, EVERYWHERE, 0.15) for loss in (0, 1)),
)


def simulated(case: Case, num_examples: int, first: int | None = None) -> pd.DataFrame:
    """Pairs, of each cell all or the `first` ones, as `compare.paired` gives them. A is right in 80 % of the examples, or in half of them
    where more flip than that leaves."""
    shape = (TASKS, LENGTHS, num_examples)
    right = 0.8 if case.flips < 0.2 else 0.5
    lost = np.full(shape, case.flips)
    if case.where == EVERYWHERE:
        lost += case.loss / 100
    elif case.where == ONE_TASK:
        lost[0] += case.loss / 100
    elif case.where == ONE_LENGTH:
        lost[:, 0] += case.loss / 100
    else:
        lost[0, 0] += case.loss / 100

    a = RANDOM.random(shape) < right
    chance = RANDOM.random(shape)
    b = np.where(a, chance >= lost / right, chance < case.flips / (1 - right))
    a, b = a[..., :first], b[..., :first]
    task, length, index = (places.ravel() for places in np.indices(a.shape))
    difference = b.ravel() * 1.0 - a.ravel()
    return pd.DataFrame(
        {
            "task": NAMES[task],
            "category": "niah",
            "length": 4096 * (1 + length),
            "index": index,
            "a": a.ravel() * 1.0,
            "b": b.ravel() * 1.0,
            "difference": difference,
        }
    )


def comparison(pairs: pd.DataFrame) -> Comparison:
    rows, cells = judge_pairs(pairs, MARGIN)
    a, b = (Side(name, name, {}, pd.DataFrame(), set()) for name in "AB")
    return Comparison(
        a,
        b,
        margin=MARGIN,
        by="digest",
        rows=rows,
        flips=pd.DataFrame(),
        cells=tuple(cells),
        lacking="",
        notes=(),
    )


def replayed(case: Case) -> GateRule:
    """One run of the gate over stored answers."""
    state = RANDOM.bit_generator.state
    for first in (20, 80, FULL):
        # The same answers again, and more of them: most runs end with few.
        RANDOM.bit_generator.state = state
        pairs = simulated(case, FULL, first)
        keys = pairs[["task", "length"]].drop_duplicates()
        cells = tuple(keys.itertuples(index=False, name=None))
        differences = PairedDifferences(pairs)
        ended = GateRule(Design(cells, FULL, MARGIN), lambda _, all_of=differences: all_of)
        for _ in rounds(ended.wanted):
            pass  # all answers are there
        if max(ended.reached.values()) <= first:
            break
    return ended


def print_sequence(cases: tuple[Case, ...], runs: int) -> None:
    """A table of the rounds of the gate: verdicts, and the share of the full grid that was asked."""
    print(
        "| true loss, points | flip each way, % | worse, % | cannot tell, % | not worse, % | "
        "asked: median | 95 % | most, % of the full grid |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for case in cases:
        words, asked = [], []
        for _ in range(runs):
            ended = replayed(case)
            word = NOT_WORSE if ended.last.is_not_worse else CANNOT_TELL
            words.append(WORSE if ended.last.worse else word)
            asked.append(100 * sum(ended.reached.values()) / (TASKS * LENGTHS * FULL))
        fields = [f"{case.loss:g}, {case.where}", f"{100 * case.flips:g}"]
        fields += [
            f"{100 * words.count(word) / runs:.1f}" for word in (WORSE, CANNOT_TELL, NOT_WORSE)
        ]
        shares = (np.median(asked), np.quantile(asked, 0.95), max(asked))
        fields += [f"{share:.1f}" for share in shares]
        print(f"| {' | '.join(fields)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=300, help="comparisons of a row")
    parser.add_argument("--examples", type=int, nargs="+", default=[20, 50, 100, 500], metavar="N")
    parser.add_argument("--sequence", action="store_true", help="the rounds of rulerkit gate")
    parser.add_argument("--cases", type=int, nargs="*", help="with --sequence: numbers of rows")
    options = parser.parse_args()
    if options.sequence:
        chosen = options.cases or range(len(SEQUENCE))
        print_sequence(tuple(SEQUENCE[n] for n in chosen), options.runs)
        return

    print(
        "| examples | true loss, points | flip each way, % | worse, % | cannot tell, % | "
        "not worse, % | any loss seen, % |"
    )
    print("|---|---|---|---|---|---|---|")
    for num_examples in options.examples:
        for case in CASES:
            words = []
            num_seen = 0
            for _ in range(options.runs):
                found = comparison(simulated(case, num_examples))
                words.append(found.verdict.word)
                num_seen += bool(found.rows["loss"].any())
            shares = [
                f"{100 * words.count(word) / options.runs:.1f}"
                for word in (WORSE, CANNOT_TELL, NOT_WORSE)
            ]
            place = f"{case.loss:g}, {case.where}"
            flips = f"{100 * case.flips:g}"
            seen = f"{100 * num_seen / options.runs:.1f}"
            fields = [str(num_examples), place, flips, *shares, seen]
            print(f"| {' | '.join(fields)} |", flush=True)


if __name__ == "__main__":
    main()
