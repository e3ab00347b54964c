"""Paired differences of two models: their means over a cell, a task, a length or all, with
intervals, and the tests of a loss.

`judge_pairs` gives the table of a comparison, a row for each `Place`. Two tests are made of each:
whether there is any loss, by the exact sign test, and whether a loss is larger than the margin, by
Bonett and Price's adjusted Wald test for paired proportions (2012): two examples are added, one
gained and one lost. The size of that test holds for few examples and few flips, where the plain
normal test is wrong far too often. Here it is extended to means over tasks and lengths, to
fractional scores, and to examples that are drawn together, such as questions on one article.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.common.lengths import length_name
from rulerkit.generation.tasks import THIRTEEN
from rulerkit.scoring.statistics import WeightedCell, holm, no_difference_p, weighted_sum
from rulerkit.scoring.summary import weighted_cells

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

Key = tuple[str, int]
"""A task and a length."""

ALARMS = 0.05
"""The chance, at most, that any loss is seen between equal models; and that anything is called
worse by more than the margin where nothing is."""
LEVELS = {"cell": "a cell", "task": "a task", "length": "a length", "all": "the mean"}
"""What a difference is a mean over, and its name in a text."""
_ADDED = 2  # examples: one gained, one lost


class Place(NamedTuple):
    """What a mean is taken over: a cell, a task, a length, or all."""

    level: str
    task: str
    """Empty for a mean over tasks."""
    length: int
    """0 for a mean over lengths."""
    cells: tuple[Key, ...]

    @property
    def weights(self) -> list[float]:
        """The weight of each cell: each length weighs the same, and in it each task. So a length at
        which fewer tasks were asked counts as much as the others."""
        lengths = [length for _, length in self.cells]
        num_lengths = len(set(lengths))
        return [1 / num_lengths / lengths.count(length) for length in lengths]

    @property
    def name(self) -> str:
        """In words, such as `vt at 4K`."""
        if self.level == "all":
            return "the mean"
        at = f"at {length_name(self.length)}" if self.length else ""
        return f"{self.task or 'all tasks'} {at}".strip()


def places_of(cells: Iterable[Key]) -> list[Place]:
    """All places of some cells, level by level, the mean last. With one length each task is also a
    cell: several places may hold the same cells."""
    cells = list(cells)
    tasks = dict.fromkeys(task for task, _ in cells)
    lengths = sorted({length for _, length in cells})
    named = [("cell", task, length) for task, length in cells]
    named += [("task", task, 0) for task in tasks]
    named += [("length", "", length) for length in lengths]
    named += [("all", "", 0)]

    places = []
    for level, task, length in named:
        inside = [key for key in cells if task in ("", key[0]) and length in (0, key[1])]
        places.append(Place(level, task, length, tuple(inside)))
    return places


class MeanDifference(NamedTuple):
    """A mean of paired differences, drawn towards 0 by the added examples, and its standard error
    (both in shares, -1..1). `freedom` are the degrees of freedom of Student's t: infinite where
    each answer is drawn alone."""

    value: float
    error: float
    freedom: float = math.inf

    def p_not_below(self, limit: float) -> float:
        """The one-sided p-value against a true mean of at least `limit`: small where the mean is
        below it for certain."""
        from scipy.special import stdtr

        return float(stdtr(self.freedom, (self.value - limit) / self.error))

    def lower_limit(self, alarms: float) -> float:
        """The true mean lies above this but for a chance of `alarms`; a mean of scores loses 1 at
        most."""
        from scipy.special import stdtrit

        limit = self.value - float(stdtrit(self.freedom, 1 - alarms)) * self.error
        return max(limit, -1.0)


class PairedDifferences:
    """The differences of all pairs of a comparison, ready for means over places; of each cell over
    all examples, or over the first `num_examples`.

    `pairs` has task, length, index, a, b (0..1) and difference (-1..1), and `group` where examples
    share something; NaN there is an example that shares nothing.
    """

    def __init__(self, pairs: "pd.DataFrame") -> None:
        self._pairs = pairs
        self._values = pairs["difference"].to_numpy(dtype=float)
        self._index = pairs["index"].to_numpy(dtype=int)
        # Rows in the order of the index, so that the first examples of a cell are a slice.
        groups: dict[Any, Any] = pairs.groupby(["task", "length"], sort=False).indices
        self._rows = {
            cell: rows[np.argsort(self._index[rows], kind="stable")]
            for cell, rows in groups.items()
        }

        # Examples of one task that share an index were drawn together at all lengths, and so were
        # the questions of one article: such differences are added up before they are squared.
        shared = "example " + pairs["index"].astype(str)
        if "group" in pairs:
            shared = shared.mask(pairs["group"].notna(), "group " + pairs["group"].astype(str))
        self._clusters, _ = (pairs["task"] + " " + shared).factorize()

    @cached_property
    def _sides(self) -> list[dict[Any, WeightedCell]]:
        return [weighted_cells(self._pairs.assign(score=self._pairs[side])) for side in "ba"]

    def weighted(self, place: Place, num_examples: int | None = None) -> list[WeightedCell]:
        """The cells of B with their weights, and those of A with the same below 0."""
        cells = []
        for key, weight in zip(place.cells, place.weights, strict=True):
            for side, sign in zip(self._sides, (1, -1), strict=True):
                _, task, scores, groups = side[key]
                groups = None if groups is None else groups[:num_examples]
                cells.append(WeightedCell(sign * weight, task, scores[:num_examples], groups))
        return cells

    def p_of_any(self, place: Place, num_examples: int | None = None) -> float:
        """The one-sided p-value of a loss of any size: the exact sign test where scores are right
        or wrong."""
        return no_difference_p(self.weighted(place, num_examples))

    def _rows_of(
        self, place: Place, num_examples: int | None
    ) -> "tuple[list[NDArray[np.intp]], list[NDArray[np.float64]]]":
        """The rows of each cell of a place, and the weight of each of them."""
        rows = [self._rows[cell] for cell in place.cells]
        if num_examples is not None:
            rows = [some[: np.searchsorted(self._index[some], num_examples)] for some in rows]
        weights = [
            np.full(len(some), weight / len(some))
            for some, weight in zip(rows, place.weights, strict=True)
        ]
        return rows, weights

    def mean(self, place: Place, num_examples: int | None = None) -> MeanDifference:
        """The mean over a place."""
        rows_of_cells, weights_of_cells = self._rows_of(place, num_examples)
        rows, weights = np.concatenate(rows_of_cells), np.concatenate(weights_of_cells)

        # Where cells differ in size, so many answers of equal weight have the same sum of squares.
        num_answers = 1 / float(weights @ weights)
        shrink = num_answers / (num_answers + _ADDED)

        deviations = []
        for of_cell, weight in zip(rows_of_cells, weights_of_cells, strict=True):
            values = self._values[of_cell]
            deviations.append(weight * (values - shrink * values.mean()))
        clusters = self._clusters[rows]
        of_clusters = np.bincount(clusters, weights=np.concatenate(deviations))

        mean = shrink * float(weights @ self._values[rows])
        of_added = _ADDED * (1 + mean**2) / num_answers**2
        variance = shrink**2 * (float(of_clusters @ of_clusters) + of_added)

        # Few groups say little about how much groups differ: Student's t with as many degrees of
        # freedom as there are groups, less one for each task. The answers to one example at several
        # lengths are a group too, and where each answer was drawn alone, nothing is added.
        freedom = math.inf
        num_groups = len(np.unique(clusters))
        if num_groups < len(rows):
            num_tasks = len({task for task, _ in place.cells})
            freedom = max(1.0, float(num_groups - num_tasks))
        return MeanDifference(mean, math.sqrt(variance), freedom)


# --- the table of differences ---------------------------------------------------------------------


def judge_pairs(
    pairs: "pd.DataFrame", margin: float, confidence: float
) -> "tuple[pd.DataFrame, list[WeightedCell]]":
    """The rows of a `Comparison` of pairs as `compare.paired` gives them, one for each of
    `places_of(cells)`; and the cells of the difference of the means."""
    import pandas as pd

    counted = pairs.assign(
        n=1, better=pairs["difference"] > 0, worse=pairs["difference"] < 0
    ).groupby(["task", "length"])
    of_cell: dict[Any, Any] = counted[["n", "better", "worse"]].sum().to_dict("index")
    means: dict[Any, Any] = counted[["a", "b"]].mean().to_dict("index")
    category = pairs.groupby("task")["category"].first()
    # Tasks of the benchmark first, then others as they came.
    order = list(dict.fromkeys([*THIRTEEN, *pairs["task"]]))
    places = places_of(sorted(of_cell, key=lambda key: (order.index(key[0]), key[1])))

    differences = PairedDifferences(pairs)
    rows: list[dict[str, Any]] = []
    for place in places:
        row: dict[str, Any] = {
            "level": place.level,
            "task": place.task,
            "category": category[place.task] if place.task else "",
            "length": place.length,
        }
        for name in ("n", "better", "worse"):
            row[name] = sum(of_cell[key][name] for key in place.cells)
        for side in ("a", "b"):
            scores = [means[key][side] for key in place.cells]
            row[side] = 100 * float(np.dot(place.weights, scores))
        estimate = weighted_sum(differences.weighted(place), confidence).percent()
        row |= {"difference": estimate.value, "low": estimate.low, "high": estimate.high}
        # Where all answers are right, or all wrong, on both sides, a cell can show no difference.
        is_full = row["a"] == row["b"] and row["a"] in (0, 100)
        row["unable"] = is_full and place.level == "cell"

        mean = differences.mean(place)
        row["p"] = differences.p_of_any(place)
        # A loss beyond the margin is a loss. Where many answers flip each way in few examples, the
        # test of the margin alone would find one too often (13 % of runs with 20 examples of which
        # 40 % flip each way); the exact test of any loss holds there.
        row["p_margin"] = max(row["p"], mean.p_not_below(-margin / 100))
        # No cell can have lost more than its limit, in all cells at once.
        row["lower_limit"] = 100 * mean.lower_limit(ALARMS / len(of_cell))
        rows.append(row)

    _adjust(rows, places)
    num_tests = len({frozenset(place.cells) for place in places})
    for row, place in zip(rows, places, strict=True):
        # A question is the same at every length, so its answers may be lost together.
        questions: dict[str, int] = {}
        for key in place.cells:
            questions[key[0]] = max(questions.get(key[0], 0), of_cell[key]["n"])
        row["smallest_loss"] = smallest_loss(sum(questions.values()), num_tests, margin)
    columns = (
        "level task category length n a b difference low high better worse unable p loss p_margin "
        "beyond_margin lower_limit smallest_loss"
    )
    return pd.DataFrame(rows)[columns.split()], differences.weighted(places[-1])


def _adjust(rows: list[dict[str, Any]], places: list[Place]) -> None:
    """Adjust the p-values of all rows by Holm's method, and add what is found: so many tests would
    find something by chance; together, ALARMS holds for all of them."""
    # Places of the same cells are one test.
    distinct = {frozenset(place.cells): row for place, row in zip(places, rows, strict=True)}
    for name, found in (("p", "loss"), ("p_margin", "beyond_margin")):
        adjusted = holm([row[name] for row in distinct.values()])
        p_of = dict(zip(distinct, adjusted, strict=True))
        for row, place in zip(rows, places, strict=True):
            row[name] = p_of[frozenset(place.cells)]
            row[found] = row[name] < ALARMS


def smallest_loss(num_questions: int, num_tests: int, margin: float) -> float:
    """The smallest loss (points) that one of `num_tests` tests finds to be more than the margin, in
    so many questions, each lost at all its lengths, where nothing else differs; NaN where there are
    too few."""
    num_answers = num_questions + _ADDED

    def is_found(num_lost: int) -> bool:
        value = -num_lost / num_answers
        variance = ((num_lost + _ADDED) / num_answers - value**2) / num_answers
        p_of_margin = MeanDifference(value, math.sqrt(variance)).p_not_below(-margin / 100)
        p_of_any = 0.5**num_lost  # the sign test
        # Holm's first threshold
        return max(p_of_any, p_of_margin) < ALARMS / num_tests

    lost = 1 + bisect_left(range(1, num_questions + 1), True, key=is_found)
    return 100 * lost / num_questions if lost <= num_questions else math.nan


def interval_text(row: "pd.Series[Any]", confidence: float = 0.95) -> str:
    """The difference of a row with its interval: `-1.2 points (95 % CI -2.0 to -0.4)`."""
    interval = f"{100 * confidence:g} % CI {row['low']:+z.1f} to {row['high']:+z.1f}"
    return f"{row['difference']:+z.1f} points ({interval})"
