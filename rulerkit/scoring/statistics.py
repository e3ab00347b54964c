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
probability in each cell, keeps a task without any error from counting as certain. Both may widen an
interval, and never narrow it: an example that is right at all lengths or at none varies more than
either says. An error that was not seen may be in the cell whose examples count most: where cells
have different numbers of examples, this widens the interval. No interval has zero width.
`benchmarks/coverage.py` measures the coverage: at least 93.5 % with 20 examples in each cell,
single right-or-wrong cells apart; up to 100 % where few errors are expected, where a few answers
differ by a small part each, and where two sides have different numbers of answers.

The interval is about the examples that could have been drawn. Questions that share an article
(`groups`) are drawn together, so their deviations are added up before they are squared, and few
articles make the interval wider (Student's t). Where all questions share one article it is about
questions on this article.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rulerkit.common.errors import UserError

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
    if not 0 < confidence < 1:
        raise UserError(f"confidence is {confidence!r}: it must be between 0 and 1, such as 0.95")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


@cache
def look_confidences(shares: tuple[float, ...], confidence: float) -> list[float]:
    """The confidence of each of several looks at growing data, so that the intervals of all looks
    hold the truth together with the confidence given.

    `shares` are those of the population that is known at each look. The error is spent in equal
    parts over the looks (Lan and DeMets 1983). The deviation of a mean from that of the population,
    in standard errors, is an autoregressive process, whose density is followed from look to look.
    """
    # The density of the deviation on a grid wide enough for nine standard errors.
    grid, step = np.linspace(-9, 9, 721, retstep=True)
    density, spent, before, looks = np.zeros(721), 0.0, 0.0, list[float]()
    density[360] = 1 / step

    # At each look: spread the density that is still inside, and cut off as much as may
    # be spent.
    for number, share in enumerate(shares, 1):
        information = share / (1 - share) if share < 1 else math.inf
        correlation = math.sqrt(before / information)
        spread = math.sqrt(1 - correlation**2)
        kernel = np.exp(-(((grid[:, None] - correlation * grid) / spread) ** 2) / 2)
        density = kernel @ density * step / spread / math.sqrt(2 * math.pi)

        # The limit beyond which just the error of this look lies.
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
    # Wilson's interval solves for the share; that of a mean of 0 or 1 has a width.
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
    # The examples of one task are paired by index over its lengths, and those of two
    # models over both; so gains and losses of a task are correlated, those of two tasks
    # are not.
    tasks = _by_task(cells)
    gains, losses = (
        {
            name: _Side(task, sign, confidence, population)
            for name, task in tasks.items()
            if (sign * task.weights > 0).any()
        }
        for sign in (1, -1)
    )
    (up, up_low, up_high), up_variance = _pooled(gains.values(), confidence, times)
    (down, down_low, down_high), down_variance = _pooled(losses.values(), confidence, times)

    # MOVER (Zou and Donner 2008): the limits of a difference follow from those of its
    # two sides and their correlation.
    correlation = 0.0
    if variances := up_variance * down_variance:
        covariance = sum(gains[name].covariance(losses[name]) for name in gains if name in losses)
        correlation = max(-1.0, min(1.0, covariance / math.sqrt(variances)))

    def distance(one: float, other: float) -> float:
        """Of a limit from the value, given those of the two sides."""
        return math.sqrt(max(0.0, one**2 + other**2 - 2 * correlation * one * other))

    # A limit of the difference takes the near limit of one side and the far one of the
    # other.
    value = up - down
    low = value - distance(up - up_low, down_high - down)
    high = value + distance(up_high - up, down - down_low)
    # 0 is added, as a difference of -0.0 is shown with its sign
    return Estimate(*(round(float(number), _DIGITS) + 0.0 for number in (value, low, high)))


def no_difference_p(cells: Iterable[WeightedCell], variance: float = 0.0) -> float:
    """The one-sided p-value of a loss: the chance of a difference as low if each example's
    difference was as likely up as down, whatever the others are.

    Where all differences have one size, as those of right-or-wrong scores, this is the exact sign
    test (McNemar's), else a normal test with a correction for the steps of the sum. A `variance` of
    the sum, where one is known, is the least that the normal test takes.
    """
    # Examples that both answered alike say nothing about a loss.
    differences = np.concatenate([task.differences() for task in _by_task(cells).values()])
    differences = differences[np.abs(differences) > _ROUNDING / differences.size]
    sizes = np.abs(differences)
    if not sizes.size:
        return 0.5

    # All differences have one size: the exact test is a count of signs.
    if not variance and np.ptp(sizes) < _ROUNDING * sizes.max():
        from scipy.special import bdtr

        return float(bdtr((differences > 0).sum(), sizes.size, 0.5))

    # The correction for continuity: half of a step towards 0.
    nearer = min(0.0, float(differences.sum() + sizes.min()))  # by half a step of the sum
    return NormalDist().cdf(nearer / math.sqrt(max(variance, sizes @ sizes)))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method: those below 0.05 keep the chance of any false alarm below
    5 %."""
    # The smallest p is held against all tests, the next against one less, and so on; an
    # adjusted p is never below that of a smaller one.
    p = np.asarray(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.minimum(1.0, np.arange(len(p), 0, -1) * p[order])
    return [float(number) for number in np.maximum.accumulate(adjusted)[np.argsort(order)]]


def _by_task(cells: Iterable[WeightedCell]) -> "dict[str, _Task]":
    members: dict[str, list[WeightedCell]] = {}
    for cell in cells:
        members.setdefault(cell.task, []).append(cell)
    return {name: _Task(of_task) for name, of_task in members.items()}


class _Task:
    """The cells of one task: a row of scores each, a column per example with any answer."""

    def __init__(self, cells: Sequence[WeightedCell]) -> None:
        # Cells of one task may have been asked for different numbers of examples.
        longest = max(cells, key=lambda cell: (len(cell.scores), cell.groups is not None))
        scores = np.full((len(cells), len(longest.scores)), np.nan)
        for row, cell in zip(scores, cells, strict=True):
            row[: len(cell.scores)] = cell.scores

        # An example that no cell has answered is no example.
        some = ~np.isnan(scores).all(axis=0)
        self.scores = scores[:, some]
        self.groups = None if longest.groups is None else longest.groups[some]
        self.weights = np.array([cell.weight for cell in cells])
        self.counts = (~np.isnan(self.scores)).sum(axis=1)
        self.per_answer = self.weights / self.counts

    def differences(self) -> "NDArray[np.float64]":
        """What each example adds to the sum of weight times mean score."""
        differences: NDArray[np.float64] = self.per_answer @ np.nan_to_num(self.scores)
        return differences

    def sums(self) -> "NDArray[np.float64]":
        """The weighted sum of each example, with the mean of a cell where it lacks an answer."""
        # An example that lacks an answer in one cell is taken as the mean of that cell,
        # so that it neither helps nor harms.
        means = np.nansum(self.scores, axis=1) / self.counts
        deviations = np.nan_to_num(self.scores - means[:, None])
        mean: float = self.weights @ means
        sums: NDArray[np.float64] = self.scores.shape[1] * (self.per_answer @ deviations)
        return mean + sums


class _Side:
    """The gains (sign 1), or the losses (-1), of the examples of a task that has any.

    `unknown` is the share of the population that is not known, `span` the sum of the weights,
    `mean` and `deviations` are those of the examples, `seen` is the variance of the mean,
    `of_examples` are the weights of single examples of each cell, and `usual` says how many
    examples a cell has: where they differ, mostly those of the smallest; `squares` is the sum of
    the squared weights of as many examples. `errors` is the geometric mean of the whole errors
    seen and of the examples they are spread over, of those with all answers.
    """

    def __init__(self, task: _Task, sign: int, confidence: float, population: float) -> None:
        # A gain counts on one side only: what a task loses elsewhere is the other
        # side's.
        values, weights = sign * task.sums(), sign * task.weights
        if (weights < 0).any():
            values, weights = np.maximum(values, 0.0), np.maximum(weights, 0.0)

        # Of a finite population only what is not known yet is uncertain.
        self.unknown = 1 - min(1.0, task.counts.min() / population)
        self.span: float = weights.sum()
        self.mean: float = values.mean()
        self.deviations = values - self.mean
        # what is lost to a cell of few examples is as uncertain as what it gains
        # How many examples a cell has where cells differ.
        self.usual: float = task.weights @ task.weights / (task.weights @ task.per_answer)
        self.squares: float = self.unknown * (weights @ weights) / self.usual
        self.of_examples = (self.unknown * weights / task.counts)[weights > 0]

        # Errors that were seen say how far the spread that was seen can be trusted.
        plain = sign * (task.weights @ task.scores)  # NaN, and not counted, where one is missing
        different = min((plain > _ROUNDING).sum(), (plain < self.span - _ROUNDING).sum())
        whole = values.size * max(0.0, min(self.mean, self.span - self.mean)) / self.span
        self.errors = math.sqrt(different * whole)

        # Questions on one article are drawn together, which widens the interval, never
        # narrows it.
        self.seen: float = self.deviations @ self.deviations / values.size**2
        # A sample of sums over several cells shows a little less than their variance. For one
        # cell of right-or-wrong scores Wilson's interval takes it from the mean instead.
        if len(task.weights) > 1 and values.size > 1:
            self.seen *= values.size / (values.size - 1)
        if task.groups is not None:
            self.seen = max(self.seen, self._of_groups(task.groups, confidence))

    def _of_groups(self, groups: "NDArray[np.float64]", confidence: float) -> float:
        """The variance of the mean where whole groups are drawn, with what few groups add to it, at
        most that of groups which are all right or all wrong; 0 where all are in one group. Groups
        of different sizes count as so many equal ones, two at least, as have the same sum of
        squares (Kish)."""
        from scipy.special import stdtrit

        # An example without a group is a group of its own.
        _, numbers = np.unique(groups, return_inverse=True, equal_nan=False)
        sums, sizes = (np.bincount(numbers, weights=self.deviations), np.bincount(numbers))

        # One group says nothing about how groups differ; groups of one are plain
        # examples.
        if sizes.size in (1, numbers.size):
            return 0.0

        # As many equal groups as have the same sum of squares.
        equal = max(2.0, float(numbers.size**2 / (sizes @ sizes)))
        # What they say about their spread hangs on the largest ones (Satterthwaite).
        squared = sizes.astype(float) ** 2
        freedom = max(1.0, float(squared.sum() ** 2 / (squared @ squared)) - 1)
        few = stdtrit(freedom, 0.5 + confidence / 2) / critical_value(confidence)
        variance = (sums @ sums) * few**2 * equal / (equal - 1)
        largest = self.mean * max(0.0, self.span - self.mean) * (sizes @ sizes)
        return float(min(variance, largest) / numbers.size**2)

    def variance(self, share: float) -> float:
        """Of the mean, drawn towards that of right-or-wrong scores; `share` is that of all tasks
        together."""
        # The spread that was seen is drawn towards that of right-or-wrong scores with
        # the same mean, by a quarter of an error: with few errors it is mostly chance.
        task_share = min(1.0, max(0.0, self.mean / self.span))
        prior = PSEUDO_ERROR * task_share * (1 - task_share) * self.squares
        spread = (self.errors * self.unknown * self.seen + prior) / (self.errors + PSEUDO_ERROR)

        # One example with the mean of all tasks stands beside those of this one.
        total = self.usual + PSEUDO_EXAMPLES
        off = self.unknown * (self.span * (task_share - share)) ** 2
        pseudo = share * (1 - share) * self.squares + off / total
        drawn = float((self.usual * spread + PSEUDO_EXAMPLES * pseudo) / total)

        # Both take the cells of an example as independent. Where an example is right at all
        # lengths or at none, more was seen than that, and it stays.
        return max(drawn, float(self.unknown * self.seen))

    def covariance(self, other: "_Side") -> float:
        """Of the mean gain and the mean loss."""
        products = self.deviations * other.deviations
        return float(self.unknown * products.sum() / products.size**2)


def _pooled(sides: Collection[_Side], confidence: float, times: float) -> tuple[Estimate, float]:
    """The gains, or the losses, of all tasks with Wilson's interval, as if so many right-or-wrong
    examples had been seen as give the variance that was seen; and this variance.

    An error that was not seen yet may be one of the cell in which an example counts most: the limit
    that allows for more of what is rare does."""
    if not sides:
        return Estimate(0.0, 0.0, 0.0), 0.0

    # All tasks together are one share of the span of their weights.
    span = sum(side.span for side in sides)
    mean = sum(side.mean for side in sides)  # with few pairs it may be above the span
    share = min(1.0, max(0.0, mean / span))
    variance = sum(side.variance(share) for side in sides)

    # Without an unknown example there is nothing to be uncertain about.
    squares = sum(side.squares for side in sides)
    if not squares:  # the whole population is known
        return Estimate(mean, mean, mean), variance

    # `mass` is what one right-or-wrong example would have to count for the variance
    # that was seen.
    mass, seen = squares / span**2, 0.0
    if _ROUNDING < share < 1 - _ROUNDING:
        seen = variance / span**2
        mass = seen / (share * (1 - share))

    # The first limit is for errors spread as seen, the second for one in the heaviest
    # cell.
    weights = np.concatenate([side.of_examples for side in sides])
    most = max(mass, np.ptp(weights) / span)  # `mass` where all examples count alike
    z = critical_value(confidence)
    lows, highs = zip(
        *(_score_interval(share, seen / times, m / times, z) for m in (mass, most)), strict=True
    )
    return Estimate(mean, span * min(lows), span * max(highs)), variance
