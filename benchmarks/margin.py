"""How often the gate says *worse* where the true loss is just the margin:
`python benchmarks/margin.py [--runs 500]`.

13 tasks at six lengths, a true loss of 1 point in every cell, margin 1 point. For the cells all
outcomes are counted, each with its probability; for the tasks, the lengths and the mean the answers
are simulated. Both go through the functions that `rulerkit compare` uses, at the first threshold of
Holm's method, below which the verdict is *worse*. Prints a Markdown table; the last column, the sum,
is what the chance of a wrong *worse* can be at most.
"""

import argparse

import numpy as np
import pandas as pd
from gate import EVERYWHERE, LENGTHS, MARGIN, TASKS, Case, simulated
from scipy.special import gammaln

from rulerkit.analysis.compare import ALARMS, PairedDifferences, judge_pairs, places_of
from rulerkit.scoring.statistics import no_difference_p

CELLS = TASKS * LENGTHS
THRESHOLD = ALARMS / (CELLS + TASKS + LENGTHS + 1)
NEGLIGIBLE = 1e-12


def cell_is_worse(gains: int, losses: int, num_examples: int) -> bool:
    """What the gate says of a cell with so many flips each way, if it is one of all tests."""
    difference = np.zeros(num_examples)
    difference[:gains], difference[gains : gains + losses] = 1, -1
    pairs = pd.DataFrame(
        {
            "task": "vt",
            "category": "vt",
            "length": 4096,
            "index": np.arange(num_examples),
            "a": difference < 0,
            "b": difference > 0,
            "difference": difference,
        }
    ).astype({"a": float, "b": float})
    rows, _ = judge_pairs(pairs, MARGIN)
    # its levels are one test, so that nothing is adjusted yet
    return bool(rows["p_margin"].iloc[0] < THRESHOLD)


def chance_of_cell(num_examples: int, flips: float) -> float:
    """The probability that a cell is called worse, over all outcomes."""
    lost = flips + MARGIN / 100
    same = 1 - flips - lost

    def probabilities(gains: int) -> "np.ndarray":
        """Of so many gains with 0, 1, 2, ... losses."""
        losses = np.arange(num_examples - gains + 1)
        rest = num_examples - gains - losses
        ways = gammaln(num_examples + 1) - gammaln(gains + 1)
        ways = ways - gammaln(losses + 1) - gammaln(rest + 1)
        chance = gains * np.log(flips) + losses * np.log(lost)
        return np.exp(ways + chance + rest * np.log(same))

    # With more gains, more losses are needed, so the search goes on where it ended.
    total, least = 0.0, 0
    for gains in range(num_examples + 1):
        of_losses = probabilities(gains)
        while least < len(of_losses) and of_losses[least:].sum() > NEGLIGIBLE:
            if cell_is_worse(gains, least, num_examples):
                break
            least += 1
        total += of_losses[least:].sum()
    return float(total)


def mean_is_worse(pairs: pd.DataFrame) -> bool:
    """Whether any task, any length or the mean is called worse, as `judge_pairs` does it."""
    differences = PairedDifferences(pairs)
    cells = pairs[["task", "length"]].drop_duplicates().itertuples(index=False, name=None)
    for place in places_of(cells):
        if place.level == "cell":
            continue
        p_of_margin = differences.mean(place).p_not_below(-MARGIN / 100)
        if p_of_margin < THRESHOLD and no_difference_p(differences.weighted(place)) < THRESHOLD:
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--runs", type=int, default=500, help="comparisons of a row")
    parser.add_argument("--examples", type=int, nargs="+", default=[20, 50, 100, 500], metavar="N")
    parser.add_argument(
        "--flips", type=float, nargs="+", default=[2, 10, 25, 40], metavar="PERCENT"
    )
    options = parser.parse_args()
    print("| examples | flip each way, % | a cell, % | other means, % | at most, % |")
    print("|---|---|---|---|---|")
    for num_examples in options.examples:
        for flips in options.flips:
            chance = chance_of_cell(num_examples, flips / 100)
            cells = 100 * (1 - (1 - chance) ** CELLS)
            case = Case(MARGIN, EVERYWHERE, flips / 100)
            found = sum(mean_is_worse(simulated(case, num_examples)) for _ in range(options.runs))
            others = 100 * found / options.runs
            fields = [str(num_examples), f"{flips:g}", f"{cells:.2f}"]
            fields += [f"{others:.1f}", f"{cells + others:.1f}"]
            print(f"| {' | '.join(fields)} |", flush=True)


if __name__ == "__main__":
    main()
