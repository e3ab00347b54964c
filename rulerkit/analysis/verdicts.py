"""The verdict on a claim by intervals: it holds, or does not, where no value within the interval
says otherwise; else it cannot be judged."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import pandas as pd

from rulerkit.analysis.claim_schema import Limits
from rulerkit.common.errors import shorten
from rulerkit.scoring.statistics import Estimate, weighted_sum
from rulerkit.scoring.summary import examples_of

HOLDS = "✓ holds"
FAILS = "✗ does not hold"
UNKNOWN = "? cannot be judged"
NEGLIGIBLE = 2.0
"""Points: where a claim says "lower" without saying by how much, a difference certainly smaller
than this refutes it."""
ROUNDING = 0.05
"""Points by which a printed score may be off."""
_MOST_SHOWN = 6  # verdicts whose numbers are shown


class Verdict(NamedTuple):
    """One of the three words, the numbers that were seen, and what is missing to judge."""

    word: str
    seen: str = ""
    missing: str = ""


Verdicts = dict[str, Verdict]
Tests = Mapping[str, "pd.Series[float]"]
"""By name: the weights of cells, such as those of a difference of two means."""


def estimate(
    cells: pd.DataFrame, weights: "pd.Series[float]", confidence: float = 0.95
) -> Estimate:
    """The sum of weight times mean score over cells, in points, with its interval. Examples with
    the same task and index are one observation in all cells. Rows without an index are means as
    printed, known to one decimal."""
    weights = weights[weights != 0]
    cells = cells.loc[weights.index]
    if "index" not in cells:
        value = 100 * float((weights * cells["score"]).sum())
        off = ROUNDING * float(weights.abs().sum())
        return Estimate(value, value - off, value + off)
    weighted = []
    for task, answers, weight in zip(cells["task"], cells["answers"], weights, strict=True):
        weighted.append(examples_of(task, answers)._replace(weight=weight))
    return weighted_sum(weighted, confidence).percent()


def within(interval: Sequence[float], limits: Limits = (0, inf)) -> Verdict:
    """Whether a value lies between two limits, by its interval. What is to be above 0 is refuted by
    less than NEGLIGIBLE."""
    (value, low, high), (at_least, at_most) = interval, limits
    # neither is true where the interval contains a limit, or where it is NaN
    word = UNKNOWN
    if at_least < low and high < at_most:
        word = HOLDS
    elif high < (NEGLIGIBLE if at_least == 0 else at_least) or low > at_most:
        word = FAILS
    # 0 is added, as -0.0 is shown with its sign.
    value, low, high = (round(number, 2) + 0.0 for number in interval)
    seen = f"{value:g} [{low:g}, {high:g}]"
    return Verdict(word, seen, "more examples" if word == UNKNOWN else "")


def all_within(cells: pd.DataFrame, tests: Tests, limits: Limits = (0, inf)) -> Verdicts:
    """As `within`, for several weighted sums whose intervals hold together (Bonferroni)."""
    confidence = 1 - 0.05 / len(tests)
    found = {}
    for name, weights in tests.items():
        found[name] = within(estimate(cells, weights, confidence), limits)
    return found


def share_of(parts: Verdicts, limits: Limits) -> Verdict:
    """The share of parts that hold lies between two limits (0..1), however the parts that cannot be
    judged would turn out."""
    if not parts:
        return Verdict(UNKNOWN, "", "anything to compare")
    words = Counter(part.word for part in parts.values())
    low = words[HOLDS] / len(parts)
    high = low + words[UNKNOWN] / len(parts)
    word = UNKNOWN
    if limits[0] <= low and high <= limits[1]:
        word = HOLDS
    elif high < limits[0] or low > limits[1]:
        word = FAILS

    seen = "; ".join(f"{name}: {part.seen}" for name, part in parts.items() if part.seen)
    if len(parts) > _MOST_SHOWN:
        seen = f"{words[HOLDS]} of {len(parts)}"
        if others := [name for name, part in parts.items() if part.word == FAILS]:
            seen += f"; not {shorten(', '.join(others), 120)}"
    missing = dict.fromkeys(part.missing for part in parts.values() if part.missing)
    return Verdict(word, seen, "; ".join(missing) if word == UNKNOWN else "")
