"""One estimator for every number that the kit shows: a weighted sum of cells' mean scores, with its
interval.

A cell's mean, the mean over tasks and lengths, a difference between two models, lengths or tasks:
each is a sum of cells' means with weights. Example i of a task asks the same at every length and of
every model, so its weighted scores are added up first, example by example; different tasks ask
different things and are independent. The positive sums are *gains*, the negative ones *losses*.
Each side gets Wilson's score interval with the variance that was seen, and the two intervals are
joined by the rule of Newcombe (1998, "MOVER"), with the correlation that was seen. For one
right-or-wrong cell this is Wilson's interval, for two of different tasks Newcombe's.

Few errors show little of the variance, so it is drawn towards that of right-or-wrong scores, with
the weight of a quarter of an error. One pseudo-example in each task, right with the side's mean
probability in each cell, keeps a task without any error from counting as certain. No interval has
zero width. `benchmarks/coverage.py` measures the coverage: 92.4 to 98.7 % where the errors or flips
expected are more than one or two, above that where they are fewer.

The interval is about the examples that could have been drawn. Questions that share an article
(`groups`) are drawn together, so their deviations are added up before they are squared.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PSEUDO_EXAMPLES = 1.0
PSEUDO_ERROR = 0.25
_ROUNDING = 1e-9
_DIGITS = 12  # a mean of full scores is 1, not 0.9999999999999997


class WeightedCell(NamedTuple):
    """A cell of a weighted sum. `scores` (0..1) are by example index, NaN where an example has no
    answer; the cells of one task are paired by index. `groups` numbers what examples share, such as
    an article; None where they share nothing."""

    weight: float
    task: str
    scores: "Floats"
    groups: "NDArray[np.int64] | None" = None


class Estimate(NamedTuple):
    """A weighted sum of mean scores with its interval, in the unit of weight times score (0..1)."""

    value: float
    low: float
    high: float

    def percent(self) -> "Estimate":
        """The same times 100: a score, or a difference in points."""
        return Estimate(*(100 * number for number in self))

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"


def critical_value(confidence: float) -> float:
    """The number of standard errors of a two-sided normal interval."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson(share: float, num_examples: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share (0..1) seen on a number of examples; never of zero
    width."""
    z = critical_value(confidence)
    shrink = 1 + z * z / num_examples
    centre = (share + z * z / (2 * num_examples)) / shrink
    half = (
        z * math.sqrt(share * (1 - share) / num_examples + (z / (2 * num_examples)) ** 2) / shrink
    )
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def weighted_sum(
    cells: Iterable[WeightedCell], confidence: float = 0.95, times: float = 1.0
) -> Estimate:
    """The sum of weight times mean score over cells, with its interval. Every cell needs at least
    one score.

    For a mean over cells the weights add up to 1; for a difference they add up to 0. `times` gives
    the interval that so many times as many examples with the same scores would have.
    """
    tasks = [_Task(members) for members in _by_task(cells)]
    gains, losses = _Side(tasks, positive=True), _Side(tasks, positive=False)
    up, down = gains.interval(confidence, times), losses.interval(confidence, times)
    spread, correlation = math.sqrt(gains.variance * losses.variance), 0.0
    if spread > 0:
        correlation = max(-1.0, min(1.0, sum(task.covariance() for task in tasks) / spread))
    value = up.value - down.value
    limits = (
        value,
        value - _joined(up.value - up.low, down.high - down.value, correlation),
        value + _joined(up.high - up.value, down.value - down.low, correlation),
    )
    return Estimate(*(round(number, _DIGITS) for number in limits))


def no_difference_z(cells: Iterable[WeightedCell]) -> float:
    """How many standard errors a difference is from 0 if each example's difference was as likely up
    as down.

    For right-or-wrong scores of one pair of cells this is McNemar's statistic. 0 where nothing
    differs.
    """
    tasks = [_Task(members) for members in _by_task(cells)]
    value = sum(float(task.sums.mean()) for task in tasks)
    variance = sum(float((task.sums**2).sum()) / task.sums.size**2 for task in tasks)
    return value / math.sqrt(variance) if variance > 0 else 0.0


def no_difference_p(cells: Iterable[WeightedCell]) -> float:
    """The one-sided p-value of a loss: the chance of a `no_difference_z` as low if there was no
    difference."""
    return NormalDist().cdf(no_difference_z(cells))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method: those below 0.05 keep the chance of any false alarm below
    5 %."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def _joined(one: float, other: float, correlation: float) -> float:
    """The distance of a limit of a difference from its value, from those of its two parts."""
    return math.sqrt(max(0.0, one * one + other * other - 2 * correlation * one * other))


def _by_task(cells: Iterable[WeightedCell]) -> list[list[WeightedCell]]:
    by_task: dict[str, list[WeightedCell]] = {}
    for cell in cells:
        by_task.setdefault(cell.task, []).append(cell)
    return list(by_task.values())


class _Task:
    """The cells of one task: each example's weighted sum of scores."""

    def __init__(self, cells: Sequence[WeightedCell]) -> None:
        size = max(len(cell.scores) for cell in cells)
        scores = np.full((len(cells), size), np.nan)
        for row, cell in zip(scores, cells, strict=True):
            row[: len(cell.scores)] = cell.scores
        asked = ~np.isnan(scores)
        some = asked.any(axis=0)
        scores, asked = scores[:, some], asked[:, some]
        weights = np.asarray([cell.weight for cell in cells])[:, None]
        means = np.nanmean(scores, axis=1, keepdims=True)
        factor = asked.shape[1] / asked.sum(axis=1, keepdims=True)
        self.sums = (weights * (means + factor * np.where(asked, scores - means, 0.0))).sum(axis=0)
        self.weights = weights[:, 0]
        groups = next(
            (cell.groups for cell in cells if cell.groups is not None and len(cell.groups) == size),
            None,
        )
        self.groups = None if groups is None else groups[some]

    def side(self, positive: bool) -> "tuple[Floats, Floats]":
        """Each example's gain (or loss), and the weights that can cause one."""
        sign = 1.0 if positive else -1.0
        weights = np.maximum(sign * self.weights, 0.0)
        if not weights.any():
            return np.zeros_like(self.sums), weights
        one_sided = not (sign * self.weights < 0).any()
        return sign * self.sums if one_sided else np.maximum(sign * self.sums, 0.0), weights

    def squares(self, deviations: "Floats") -> float:
        """The sum of squared deviations; of those that share a group, of their sum where that is
        greater."""
        squares = float((deviations**2).sum())
        if self.groups is None:
            return squares
        return max(squares, float((np.bincount(self.groups, weights=deviations) ** 2).sum()))

    def covariance(self) -> float:
        """Between the mean gain and the mean loss."""
        gains, losses = self.side(True)[0], self.side(False)[0]
        products = (gains - gains.mean()) * (losses - losses.mean())
        return float(products.sum() / products.size**2)


class _Side:
    """The gains, or the losses, of all tasks."""

    def __init__(self, tasks: Sequence[_Task], positive: bool) -> None:
        sides = [(task, *task.side(positive)) for task in tasks]
        sides = [(task, values, weights) for task, values, weights in sides if weights.any()]
        self.span = sum(float(weights.sum()) for _, _, weights in sides)
        self.mean = self.variance = without_spread = 0.0
        if not self.span:
            return
        self.mean = min(
            1.0, max(0.0, sum(float(values.mean()) for _, values, _ in sides) / self.span)
        )
        for task, values, weights in sides:
            n, k = values.size, PSEUDO_EXAMPLES
            span, squares = float(weights.sum()), float((weights**2).sum())
            mean = min(1.0, max(0.0, float(values.mean()) / span))
            errors = n * np.count_nonzero(weights) * min(mean, 1 - mean)
            seen = errors * task.squares(values - values.mean()) / n
            spread = (seen + PSEUDO_ERROR * mean * (1 - mean) * squares) / (errors + PSEUDO_ERROR)
            pseudo = self.mean * (1 - self.mean) * squares
            off = span * (mean - self.mean)
            spread = (n * spread + k * pseudo + off * off * n * k / (n + k)) / (n + k)
            self.variance += spread / n
            without_spread += squares / n
        self.num_examples = self.span**2 / without_spread
        if _ROUNDING < self.mean < 1 - _ROUNDING:
            self.num_examples = self.span**2 * self.mean * (1 - self.mean) / self.variance

    def interval(self, confidence: float, times: float) -> Estimate:
        """Wilson's, as if so many right-or-wrong examples had been seen as give the variance that
        was seen."""
        if not self.span:
            return Estimate(0.0, 0.0, 0.0)
        low, high = wilson(self.mean, times * self.num_examples, confidence)
        return Estimate(self.span * self.mean, self.span * low, self.span * high)
