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
probability in each cell, keeps a task without any error from counting as certain. An error that
was not seen may be in the cell whose examples count most: where cells have different numbers of
examples, this widens the interval. No interval has zero width. `benchmarks/coverage.py` measures
the coverage: 93 to 98 % with at least 20 examples in each cell and two errors or flips expected,
above that where fewer are, 88 to 95 % with five examples or fewer.

The interval is about the examples that could have been drawn. Questions that share an article
(`groups`) are drawn together, so their deviations are added up before they are squared, and few
articles make the interval wider (Student's t). Where all questions share one article it is about
questions on this article.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PSEUDO_EXAMPLES = 1.0
PSEUDO_ERROR = 0.25
_ROUNDING = 1e-9
_DIGITS = 12  # a mean of full scores is 1, not 0.9999999999999997


class WeightedCell(NamedTuple):
    """A cell of a weighted sum. `scores` (0..1) are by example index, NaN where an example has no
    answer; the cells of one task are paired by index. `groups` numbers what examples share, such as
    an article, NaN where an example shares nothing; None where no example does."""

    weight: float
    task: str
    scores: "NDArray[np.float64]"
    groups: "NDArray[np.float64] | None" = None


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


@cache
def look_confidences(shares: tuple[float, ...], confidence: float) -> list[float]:
    """The confidence of each of several looks at growing data, so that the intervals of all looks
    hold the truth together with the confidence given.

    `shares` are those of the population that is known at each look. The error is spent in equal
    parts over the looks (Lan and DeMets 1983). The deviation of a mean from that of the population,
    in standard errors, is an autoregressive process, whose density is followed from look to look.
    """
    grid, step = np.linspace(-9, 9, 721, retstep=True)
    density, spent, before, looks = np.zeros(721), 0.0, 0.0, list[float]()
    density[360] = 1 / step
    for number, share in enumerate(shares, 1):
        information = share / (1 - share) if share < 1 else math.inf
        correlation = math.sqrt(before / information)
        spread = math.sqrt(1 - correlation**2)
        kernel = np.exp(-(((grid[:, None] - correlation * grid) / spread) ** 2) / 2)
        density = kernel @ density * step / spread / math.sqrt(2 * math.pi)
        tail = np.cumsum(density) * step
        error = (1 - confidence) * (number / len(shares)) - spent
        limit = -np.interp(error / 2, tail, grid)
        inside = np.abs(grid) <= limit
        spent += error
        density, before = density * inside, information
        looks.append(math.erf(limit / math.sqrt(2)))
    return looks


def wilson(share: float, num_examples: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share (0..1) of a number of examples; its width is never
    zero."""
    return _score_interval(
        share, share * (1 - share) / num_examples, 1 / num_examples, critical_value(confidence)
    )


def _score_interval(share: float, variance: float, mass: float, z: float) -> tuple[float, float]:
    """Wilson's interval of a share with a variance, where one example counts `mass`."""
    shrink = 1 + z * z * mass
    centre = (share + z * z * mass / 2) / shrink
    half = z * math.sqrt(variance + (z * mass / 2) ** 2) / shrink
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def weighted_sum(
    cells: Iterable[WeightedCell],
    confidence: float = 0.95,
    times: float = 1.0,
    population: float = math.inf,
) -> Estimate:
    """The sum of weight times mean score over cells, with its interval. Every cell needs at least
    one score.

    For a mean over cells the weights add up to 1; for a difference they add up to 0. `times` gives
    the interval that so many times as many examples with the same scores would have. With a
    `population` the interval is about the means of the first so many examples of each cell, of
    which those given are known; it has no width where all are given.
    """
    tasks = _tasks(cells, population, confidence)
    sides = []
    for number in (0, 1):
        parts = [task.sides[number] for task in tasks]
        span = sum(part.span for part in parts)
        share = _share(sum(part.mean for part in parts), span)
        variance = sum(part.variance(share) for part in parts) if span else 0.0
        squares = sum(part.squares for part in parts)
        weights = [weight for part in parts for weight in part.of_examples]
        apart = max(weights, default=0.0) - min(weights, default=0.0)
        sides.append((span, share, variance, squares, apart))
    correlation = 0.0
    if variances := sides[0][2] * sides[1][2]:
        covariance = sum(task.covariance() for task in tasks)
        correlation = max(-1.0, min(1.0, covariance / math.sqrt(variances)))
    (up, up_low, up_high), (down, down_low, down_high) = (
        _limits(*side, confidence, times) for side in sides
    )

    def distance(one: float, other: float) -> float:
        """Of a limit from the value, given those of the two sides."""
        return math.sqrt(max(0.0, one**2 + other**2 - 2 * correlation * one * other))

    value = up - down
    low = value - distance(up - up_low, down_high - down)
    high = value + distance(up_high - up, down - down_low)
    return Estimate(*(round(float(number), _DIGITS) for number in (value, low, high)))


def no_difference_p(cells: Iterable[WeightedCell]) -> float:
    """The one-sided p-value of a loss: the chance of a difference as low if each example's
    difference was as likely up as down.

    Where all differences have one size, as those of right-or-wrong scores, this is the exact sign
    test (McNemar's), else a normal test with a correction for the steps of the sum.
    """
    parts = np.concatenate([task.parts for task in _tasks(cells)])
    parts = parts[np.abs(parts) > _ROUNDING / parts.size]
    sizes = np.abs(parts)
    if not sizes.size:
        return 0.5
    if np.ptp(sizes) < _ROUNDING * sizes.max():
        from scipy.special import bdtr

        return float(bdtr((parts > 0).sum(), parts.size, 0.5))
    nearer = min(0.0, float(parts.sum() + sizes.min()))  # by half a step of the sum
    return NormalDist().cdf(nearer / math.sqrt(sizes @ sizes))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method: those below 0.05 keep the chance of any false alarm below
    5 %."""
    p = np.asarray(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.minimum(1.0, np.arange(len(p), 0, -1) * p[order])
    return [float(number) for number in np.maximum.accumulate(adjusted)[np.argsort(order)]]


def _tasks(
    cells: Iterable[WeightedCell], population: float = math.inf, confidence: float = 0.95
) -> "list[_Task]":
    by_task: dict[str, list[WeightedCell]] = {}
    for cell in cells:
        by_task.setdefault(cell.task, []).append(cell)
    return [_Task(members, population, confidence) for members in by_task.values()]


def _share(value: float, span: float) -> float:
    return min(1.0, max(0.0, value / span)) if span else 0.0


def _limits(
    span: float,
    share: float,
    variance: float,
    squares: float,
    apart: float,
    confidence: float,
    times: float,
) -> Estimate:
    """The gains, or the losses, with Wilson's interval, as if so many right-or-wrong examples had
    been seen as give the variance that was seen. An error that was not seen yet may be one of the
    cell in which an example counts most: the limit that allows for more of what is rare does."""
    if not span:
        return Estimate(0.0, 0.0, 0.0)
    if not squares:  # the whole population is known
        return Estimate(*[span * share] * 3)
    per_example = share * (1 - share) if _ROUNDING < share < 1 - _ROUNDING else 0.0
    seen = variance / span**2 if per_example else 0.0
    mass = seen / per_example if per_example else squares / span**2
    more = apart / span  # 0 where all examples count alike
    z = critical_value(confidence)
    limits = [_score_interval(share, seen / times, m / times, z) for m in (mass, max(mass, more))]
    low, high = min(low for low, _ in limits), max(high for _, high in limits)
    return Estimate(span * share, span * low, span * high)


class _Task:
    """The cells of one task: the weighted sum of each example, and its gains and losses."""

    def __init__(self, cells: Sequence[WeightedCell], population: float, confidence: float) -> None:
        longest = max(cells, key=lambda cell: (len(cell.scores), cell.groups is not None))
        scores = np.full((len(cells), len(longest.scores)), np.nan)
        for row, cell in zip(scores, cells, strict=True):
            row[: len(cell.scores)] = cell.scores
        weights = np.array([cell.weight for cell in cells])
        answered = ~np.isnan(scores)
        some = answered.any(axis=0)
        scores, answered = scores[:, some], answered[:, some]
        counts = answered.sum(axis=1)
        means = scores.sum(axis=1, where=answered) / counts
        deviations = np.where(answered, scores - means[:, None], 0.0)
        self.parts = (weights / counts) @ np.where(answered, scores, 0.0)
        """What each example adds to the sum of weight times mean score."""
        self.sums = weights @ means + (weights / counts) @ deviations * scores.shape[1]
        groups = longest.groups if longest.groups is None else longest.groups[some]
        gained, lost = np.maximum(weights, 0.0), np.maximum(-weights, 0.0)
        gains = np.maximum(self.sums, 0.0) if lost.any() else self.sums
        gains = gains * gained.any()
        left = 1 - min(1.0, counts.min() / population)
        self.sides = (
            _Side(gains, gained, counts, groups, left, confidence),
            _Side(gains - self.sums, lost, counts, groups, left, confidence),
        )

    def covariance(self) -> float:
        """Of the mean gain and the mean loss."""
        one, other = self.sides
        return one.left * float(one.deviations @ other.deviations) / one.num_examples**2


class _Side:
    """The gains, or the losses, of the examples of one task, with the weights of its cells and how
    many examples each has; of the population the share `left` is not known."""

    def __init__(
        self,
        values: "NDArray[np.float64]",
        weights: "NDArray[np.float64]",
        counts: "NDArray[np.int64]",
        groups: "NDArray[np.float64] | None",
        left: float,
        confidence: float,
    ) -> None:
        self.num_examples, self.left, self.span = values.size, left, float(weights.sum())
        squares = float((weights**2 / counts).sum())
        self.squares = left * squares
        """Of the weights of single examples."""
        self.usual = float((weights**2).sum()) / squares if squares else 0.0
        """How many examples a cell has: where they differ, mostly those of the smallest."""
        self.of_examples = (left * weights / counts)[weights > 0].tolist()
        """The weight of a single example of each cell."""
        self.mean = float(values.mean())
        self.deviations = values - self.mean
        unlike = min((values > _ROUNDING).sum(), (values < self.span - _ROUNDING).sum())
        whole = values.size * min(self.mean, self.span - self.mean) / (self.span or 1.0)
        self.errors = math.sqrt(unlike * whole)
        """The whole errors seen, and the examples they are spread over: their geometric mean."""
        self.seen = float(self.deviations @ self.deviations) / values.size**2
        if groups is not None and self.span:
            self.seen = max(self.seen, self._of_groups(groups, confidence))

    def _of_groups(self, groups: "NDArray[np.float64]", confidence: float) -> float:
        """The variance of the mean where whole groups are drawn, with what few groups add to it, at
        most that of groups which are all right or all wrong; 0 where all are in one group."""
        from scipy.special import stdtrit

        _, numbers = np.unique(groups, return_inverse=True, equal_nan=False)
        sums, sizes = np.bincount(numbers, weights=self.deviations), np.bincount(numbers)
        if sizes.size in (1, numbers.size):
            return 0.0
        few: float = stdtrit(sizes.size - 1, 0.5 + confidence / 2) / critical_value(confidence)
        variance = float(sums @ sums) * few**2 * sizes.size / (sizes.size - 1)
        whole: float = self.mean * max(0.0, self.span - self.mean) * float(sizes @ sizes)
        return float(min(variance, whole) / numbers.size**2)

    def variance(self, share: float) -> float:
        """Of the mean; `share` is that of all tasks together."""
        if not self.span:
            return 0.0
        n, k, squares = self.usual, PSEUDO_EXAMPLES, self.squares
        own = _share(self.mean, self.span)
        prior = PSEUDO_ERROR * own * (1 - own) * squares
        spread = (self.errors * self.left * self.seen + prior) / (self.errors + PSEUDO_ERROR)
        off = self.left * (self.span * (own - share)) ** 2
        pseudo = share * (1 - share) * squares + off / (n + k)
        return float((n * spread + k * pseudo) / (n + k))
