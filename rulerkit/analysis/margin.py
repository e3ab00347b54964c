"""Is a loss larger than a margin? The limits of a mean of paired differences.

The test is Bonett and Price's adjusted Wald test for paired proportions (2012): two examples are
added, one gained and one lost. Its size holds for few examples and few flips, where the plain
normal test is wrong far too often. Here it is extended to means over tasks and lengths, to
fractional scores, and to examples that are drawn together, such as questions on one article.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_ADDED = 2  # examples: one gained, one lost


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
    """The differences of all pairs of a comparison, ready for means over some of its cells.

    `pairs` has task, length, index and difference (-1..1), and `group` where examples share
    something; NaN there is an example that shares nothing. `variance`, where it is a column, is
    the least variance of each difference.
    """

    def __init__(self, pairs: "pd.DataFrame") -> None:
        self._values = pairs["difference"].to_numpy(dtype=float)
        index = pairs["index"].to_numpy(dtype=int)
        # Rows in the order of the index, so that the first examples of a cell are a slice.
        groups: dict[Any, Any] = pairs.groupby(["task", "length"], sort=False).indices
        self._rows = {
            cell: rows[np.argsort(index[rows], kind="stable")] for cell, rows in groups.items()
        }
        self._index = {cell: index[rows] for cell, rows in self._rows.items()}
        self._variances = None
        if "variance" in pairs:
            self._variances = pairs["variance"].to_numpy(dtype=float)

        # Examples of one task that share an index were drawn together at all lengths, and so were
        # the questions of one article: such differences are added up before they are squared.
        shared = "example " + pairs["index"].astype(str)
        if "group" in pairs:
            shared = shared.mask(pairs["group"].notna(), "group " + pairs["group"].astype(str))
        drawn_together = pairs["task"] + " " + shared
        self._clusters, _ = drawn_together.factorize()

    def first(
        self, cells: Sequence[tuple[str, int]], num_examples: int | None = None
    ) -> "list[NDArray[np.intp]]":
        """The rows of some cells: all, or those of the first so many examples."""
        if num_examples is None:
            return [self._rows[cell] for cell in cells]
        return [
            self._rows[cell][: np.searchsorted(self._index[cell], num_examples)] for cell in cells
        ]

    def mean(
        self,
        cells: Sequence[tuple[str, int]],
        weights: Sequence[float],
        num_examples: int | None = None,
    ) -> MeanDifference:
        """The mean over some cells, by task and length, with their weights, which add up to 1; of
        each cell all examples, or the first so many."""
        rows_of_cells = self.first(cells, num_examples)
        of_answers = [
            np.full(len(rows), weight / len(rows))
            for rows, weight in zip(rows_of_cells, weights, strict=True)
        ]
        rows = np.concatenate(rows_of_cells)
        weight_of_answer = np.concatenate(of_answers)

        # Where cells differ in size, so many answers of equal weight have the same sum of squares.
        num_answers = 1 / float(weight_of_answer @ weight_of_answer)
        shrink = num_answers / (num_answers + _ADDED)

        deviations = []
        for of_cell, weight in zip(rows_of_cells, of_answers, strict=True):
            values = self._values[of_cell]
            deviations.append(weight * (values - shrink * values.mean()))
        of_clusters = np.bincount(self._clusters[rows], weights=np.concatenate(deviations))

        mean = shrink * float(weight_of_answer @ self._values[rows])
        of_added = _ADDED * (1 + mean**2) / num_answers**2
        variance = shrink**2 * (float(of_clusters @ of_clusters) + of_added)
        if self._variances is not None:
            least = float(weight_of_answer**2 @ self._variances[rows])
            variance = max(variance, least)
        return MeanDifference(mean, math.sqrt(variance), self._freedom(rows, cells))

    def _freedom(self, rows: "NDArray[np.intp]", cells: Sequence[tuple[str, int]]) -> float:
        """Few groups say little about how much groups differ: Student's t with as many degrees of
        freedom as there are groups, less one for each task. The answers to one example at several
        lengths are a group too, and where each answer was drawn alone, nothing is added."""
        num_groups = len(np.unique(self._clusters[rows]))
        if num_groups == len(rows):
            return math.inf
        num_tasks = len({task for task, _ in cells})
        return max(1.0, float(num_groups - num_tasks))


def lost_and_nothing_else(num_lost: int, num_examples: int) -> MeanDifference:
    """The mean difference where so many examples are lost and no other one changes."""
    num_answers = num_examples + _ADDED
    value = -num_lost / num_answers
    variance = ((num_lost + _ADDED) / num_answers - value**2) / num_answers
    return MeanDifference(value, math.sqrt(variance))
