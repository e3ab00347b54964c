"""Judges the differences of paired examples: means with intervals, where a loss is seen, and where
one is larger than the margin for certain.

`judge_pairs` gives the table of a comparison. `examples_needed` and `smallest_loss` say what a
number of examples can show.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import TYPE_CHECKING, Any

from rulerkit.analysis.margin import PairedDifferences, lost_and_nothing_else
from rulerkit.analysis.sides import Key
from rulerkit.common.errors import UserError
from rulerkit.scoring.scores import THIRTEEN
from rulerkit.scoring.statistics import WeightedCell, holm, no_difference_p, weighted_sum
from rulerkit.scoring.summary import weighted_cells

if TYPE_CHECKING:
    import pandas as pd


ALARMS = 0.05
"""The chance, at most, that any loss is seen between equal models; and that anything is called
worse by more than the margin where nothing is."""
LEVELS = {"cell": "a cell", "task": "a task", "length": "a length", "all": "the mean"}
"""What a difference is a mean over, and its name in a text."""
MEAN_COLUMNS = ["a", "b", "difference", "low", "high"]
_COUNTS = ["n", "better", "worse"]
_COLUMNS = [
    "level",
    "task",
    "category",
    "length",
    "n",
    *MEAN_COLUMNS,
    "better",
    "worse",
    "unable",
    "p",
    "loss",
    "p_margin",
    "beyond_margin",
    "lower_limit",
    "smallest_loss",
]
_MOST_EXAMPLES = 10**9  # where a search for a number of examples ends


def check_margin(margin: float) -> None:
    """Raise a UserError for what is no number of points above 0."""
    if not isinstance(margin, Real) or not 0 < margin < math.inf:
        raise UserError(f"margin is {margin!r}: it must be a number of points above 0, such as 1.0")


# --- the table of differences ---------------------------------------------------------------------


def judge_pairs(
    pairs: "pd.DataFrame", margin: float, confidence: float
) -> "tuple[pd.DataFrame, list[WeightedCell]]":
    """The rows of a `Comparison` of pairs as `paired` gives them, the mean last, and the cells of
    the difference of the means."""
    import pandas as pd

    cells_a = weighted_cells(pairs.assign(score=pairs["a"]))
    cells_b = weighted_cells(pairs.assign(score=pairs["b"]))

    rows: list[dict[str, Any]] = []
    # The tests of a loss, and of one beyond the margin, by the cells that they are about.
    tested: list[frozenset[Key]] = []  # the cells of each row
    p_loss: dict[frozenset[Key], float] = {}
    p_margin: dict[frozenset[Key], float] = {}
    differences = PairedDifferences(pairs)
    num_cells = len(cells_a)
    cells: list[WeightedCell] = []
    for level, task, length, members in _groups(_by_cell(pairs)):
        shares = _shares(members)
        keys = list(zip(members["task"], members["length"], strict=True))
        cells = []
        for key, share in zip(keys, shares, strict=True):
            cells.append(cells_b[key]._replace(weight=share))
            cells.append(cells_a[key]._replace(weight=-share))

        row = _row_of_group(level, task, length, members, shares)
        estimate = weighted_sum(cells, confidence).percent()
        row["difference"] = estimate.value
        row["low"] = estimate.low
        row["high"] = estimate.high
        rows.append(row)

        # No cell can have lost more than its limit, in all cells at once.
        mean = differences.mean(keys, list(shares))
        row["lower_limit"] = 100 * mean.lower_limit(ALARMS / num_cells)

        # Rows of the same cells, such as a task with one length, are one test: they share a key.
        variance = (shares**2 * members["variance"] / members["n"]).sum()
        tested.append(frozenset(keys))
        p_of_any = no_difference_p(cells, variance)
        p_loss[tested[-1]] = p_of_any
        # A loss beyond the margin is a loss. Where many answers flip each way in few examples, the
        # test of the margin alone would find one too often (13 % of runs with 20 examples of which
        # 40 % flip each way); the exact test of any loss holds there.
        p_margin[tested[-1]] = max(p_of_any, mean.p_not_below(-margin / 100))

    frame = pd.DataFrame(rows)
    _add_verdicts(frame, tested, p_loss, p_margin, margin)
    return frame[_COLUMNS], cells  # the last cells are those of the mean


def _add_verdicts(
    frame: "pd.DataFrame",
    tested: list[frozenset[Key]],
    p_loss: dict[frozenset[Key], float],
    p_margin: dict[frozenset[Key], float],
    margin: float,
) -> None:
    """Add to the rows of a comparison what their tests say. `tested` are the cells of each row, by
    which the p-values are given."""
    # where all answers are right, or all wrong, on both sides, a cell can show no difference
    is_equal = frame["a"] == frame["b"]
    is_full = frame["a"].isin([0, 100])
    frame["unable"] = is_equal & is_full & (frame["level"] == "cell")

    # So many tests would find something by chance: adjusted together, ALARMS holds for all of them.
    adjusted = _adjusted(p_loss)
    frame["p"] = [adjusted[keys] for keys in tested]
    frame["loss"] = frame["p"] < ALARMS
    adjusted = _adjusted(p_margin)
    frame["p_margin"] = [adjusted[keys] for keys in tested]
    frame["beyond_margin"] = frame["p_margin"] < ALARMS

    num_tests = len(p_loss)
    frame["smallest_loss"] = [smallest_loss(n, num_tests, margin) for n in frame["questions"]]


def _row_of_group(
    level: str, task: str, length: int, members: "pd.DataFrame", shares: "pd.Series[float]"
) -> dict[str, Any]:
    """Which cells a row is a mean over, their counts, and the means of both sides in percent."""
    row: dict[str, Any] = {
        "level": level,
        "task": task,
        "length": length,
        "category": members["category"].iloc[0] if task else "",
    }
    for name in _COUNTS:
        row[name] = members[name].sum()
    # A question is the same at every length, so its answers may be lost together.
    row["questions"] = members.groupby("task")["n"].max().sum()
    for side in ("a", "b"):
        row[side] = 100 * (members[side] * shares).sum()
    return row


def _adjusted(p_values: dict[frozenset[Key], float]) -> dict[frozenset[Key], float]:
    """The p-values of all tests, adjusted by Holm's method."""
    return dict(zip(p_values, holm(list(p_values.values())), strict=True))


def _by_cell(pairs: "pd.DataFrame") -> "pd.DataFrame":
    """A row per task and length, in the order of the benchmark: its category, _COUNTS, and the
    means of a, b and the variance."""
    if "variance" not in pairs:
        pairs = pairs.assign(variance=0.0)
    is_better, is_worse = pairs["difference"] > 0, pairs["difference"] < 0
    by_cell = (
        pairs.assign(better=is_better, worse=is_worse)
        .groupby(["task", "length"], as_index=False)
        .agg(
            category=("category", "first"),
            n=("difference", "size"),
            better=("better", "sum"),
            worse=("worse", "sum"),
            a=("a", "mean"),
            b=("b", "mean"),
            variance=("variance", "mean"),
        )
    )

    # tasks of the benchmark first, then others as they came
    tasks = list(dict.fromkeys([*THIRTEEN, *pairs["task"]]))
    order = {task: number for number, task in enumerate(tasks)}
    return by_cell.sort_values("task", key=lambda names: names.map(order), kind="stable")


def _groups(by_cell: "pd.DataFrame") -> "Iterator[tuple[str, str, int, pd.DataFrame]]":
    """Level, task ('' for a mean over tasks), length (0 for a mean over lengths) and cells of every
    row of a comparison, the mean of all last."""
    for level in LEVELS:
        of_task = by_cell["task"] if level in ("cell", "task") else ""
        of_length = by_cell["length"] if level in ("cell", "length") else 0
        grouped = by_cell.assign(of_task=of_task, of_length=of_length)
        keys = ["of_task", "of_length"]
        groups: Any = grouped.groupby(keys, sort=False)
        for (task, length), members in groups:
            yield level, task, length, members


def _shares(members: "pd.DataFrame") -> "pd.Series[float]":
    """The weight of each cell in a mean: each length weighs the same, and in it each task. So a
    length at which fewer tasks were asked counts as much as the others."""
    lengths = members["length"]
    num_tasks = lengths.groupby(lengths).transform("size")
    return 1 / lengths.nunique() / num_tasks


# --- what a number of examples can show -----------------------------------------------------------


def examples_needed(
    rows: "pd.DataFrame", cells: Iterable[WeightedCell], confidence: float, margin: float = 0.0
) -> int:
    """The examples per task and length from which on the interval of a mean difference, as
    `judge_pairs` gives it, would leave out minus the margin, if scores stayed as they are."""
    of_cells = rows.loc[rows["level"] == "cell", "n"]
    num_examples = float(of_cells.median())

    def decides(number: int) -> bool:
        mean = weighted_sum(cells, confidence, number / num_examples).percent()
        return mean.low > -margin or mean.high < -margin

    # the interval only gets narrower with more examples, so a bisection finds the first number
    return 1 + bisect_left(range(1, _MOST_EXAMPLES), True, key=decides)


def smallest_loss(num_questions: int, num_tests: int, margin: float) -> float:
    """The smallest loss (points) that one of `num_tests` tests finds to be more than the margin, in
    so many questions, each lost at all its lengths, where nothing else differs; NaN where there are
    too few."""

    def is_found(num_lost: int) -> bool:
        mean = lost_and_nothing_else(num_lost, num_questions)
        p_of_any = 0.5**num_lost  # the sign test
        p = max(p_of_any, mean.p_not_below(-margin / 100))
        # Holm's first threshold
        return p < ALARMS / num_tests

    lost = 1 + bisect_left(range(1, num_questions + 1), True, key=is_found)
    return 100 * lost / num_questions if lost <= num_questions else math.nan


# --- numbers as text ------------------------------------------------------------------------------


def interval_text(row: "pd.Series[Any]") -> str:
    """The difference of a row with its interval, such as `-1.20 points [-2.00, -0.40]`."""
    return f"{row['difference']:+.2f} points [{row['low']:+.2f}, {row['high']:+.2f}]"


def losses_text(smallest: Iterable[float]) -> str:
    """The smallest losses of the levels, in the order of LEVELS, in words."""
    texts = []
    for level, loss in zip(LEVELS.values(), smallest, strict=True):
        if math.isnan(loss):
            texts.append(f"{level} none (too few examples)")
        else:
            texts.append(f"{level} {loss:.1f} points")
    return ", ".join(texts)
