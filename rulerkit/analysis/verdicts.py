"""A verdict on a value by its interval, and on several verdicts together.

A claim holds, or does not, where no value within the interval says otherwise; else it cannot be
judged. Rows of examples have the intervals of `statistics.weighted_sum`; printed scores are known
to one decimal.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import pandas as pd

from rulerkit.common.errors import shorten
from rulerkit.scoring.statistics import Estimate, WeightedCell, weighted_sum
from rulerkit.scoring.summary import CELL, weighted_cells

HOLDS = "✓ holds"
FAILS = "✗ does not hold"
UNKNOWN = "? cannot be judged"
NEGLIGIBLE = 2.0
"""Points: where a claim says "lower" without saying by how much, a difference certainly smaller
than this refutes it."""
ROUNDING = 0.05
"""Points by which a printed score may be off."""
_OPPOSITE = {"lower by": "higher by", "higher by": "lower by"}
_MOST_SHOWN = 6  # verdicts whose numbers are shown
Part = tuple[float, pd.DataFrame]
"""A weight and the rows whose mean it multiplies."""


class Verdict(NamedTuple):
    """One of the three words, the numbers that were seen, and what is missing to judge."""

    word: str
    seen: str = ""
    missing: str = ""


def estimate(parts: Sequence[Part], confidence: float = 0.95) -> Estimate:
    """The sum of weight times mean score over parts, in points, with its interval.

    The mean of a part is that of its cells (run, model, task, length): all weigh the same, or what
    the column `weight` says. Examples with the same task and index are one observation in every
    part. Rows without an index are means as printed.
    """
    cells: list[WeightedCell] = []
    printed, rounding = 0.0, 0.0
    for weight, rows in parts:
        by_cell = rows.assign(weight=rows.get("weight", 1.0)).groupby(CELL)
        weights = by_cell["weight"].first()
        weights *= weight / weights.sum()
        printed += 100 * float((weights * by_cell["score"].mean()).sum())
        rounding += abs(weight) * ROUNDING
        if "index" in rows:
            for key, cell in weighted_cells(rows, CELL).items():
                cells.append(cell._replace(weight=float(weights[key])))
    if not cells:
        return Estimate(printed, printed - rounding, printed + rounding)
    return weighted_sum(cells, confidence).percent()


def within(interval: Sequence[float], limits: Any, words: str = "") -> Verdict:
    """Whether a value lies between two limits, or above one, by its interval. What is to be above 0
    is refuted by less than NEGLIGIBLE."""
    at_least, at_most = limits if isinstance(limits, Sequence) else (limits, inf)
    value, low, high = interval
    # neither is true where the interval contains a limit, or where it is NaN
    word = UNKNOWN
    if at_least < low and high < at_most:
        word = HOLDS
    elif high < (NEGLIGIBLE if at_least == 0 else at_least) or low > at_most:
        word = FAILS

    if value < 0 and words in _OPPOSITE:
        words, value, low, high = _OPPOSITE[words], -value, -high, -low
    seen = f"{words} {round(value, 2):g} [{round(low, 2):g}, {round(high, 2):g}]".strip()
    return Verdict(word, seen, "more examples" if word == UNKNOWN else "")


def share_of(parts: Mapping[str, Verdict], limits: Sequence[float]) -> Verdict:
    """The share of parts that hold lies between two limits (0..1), however the parts that cannot be
    judged would turn out."""
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
