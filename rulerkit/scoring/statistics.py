"""How an interval comes about: one estimator for every number that the kit shows.

Every number is a weighted sum of cells' mean scores, S = sum of w_c * mean_c: one cell (w = 1), the
mean over tasks and lengths (the weights add up to 1), a difference between two models, lengths or
tasks (they add up to 0). `weighted_sum` gives S and its interval in four steps.

1. **Examples of one task are paired.** Example i asks the same at every length and of every model,
   so what it adds to S is summed up first, over all cells of the task: d_i. The task's part of S is
   the mean of its d_i, with the variance Var(d) / n. Different tasks ask different things: their
   parts are independent, and their variances are added up.
2. **Gains and losses.** What examples add above 0 are gains, below 0 losses. Each of the two sides
   is a share p of the sum W of its weights, with the variance V / W^2 (`_side`).
3. **Wilson's score interval** (Wilson 1927) of each side, as if n = p (1 - p) / (V / W^2)
   right-or-wrong examples had been seen, which have just this variance (`wilson`):
   (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n).
   For one cell of right-or-wrong scores this is Wilson's interval itself.
4. **The difference of both sides**: MOVER (Newcombe 1998; Zou and Donner 2008). With gains g in
   [g1, g2], losses l in [l1, l2] and their correlation r, the lower limit lies
   sqrt((g - g1)^2 + (l2 - l)^2 - 2 r (g - g1) (l2 - l)) below g - l, the upper one likewise above.
   For two cells of different tasks this is Newcombe's interval.

What is pooled, and why (`_Part.variance`). Few errors show little of the variance, so what was seen
is drawn towards the variance of right-or-wrong scores, with the weight of a quarter of an error.
One pseudo-example in each task, right with the side's mean probability in each cell, keeps a task
without any error from counting as certain. Both may widen an interval, and never narrow it: an
example that is right at all lengths or at none varies more than either says. An error that was not
seen may be in the cell whose examples count most: where cells have different numbers of examples,
this widens the interval. No interval has zero width.

The interval is about the examples that could have been drawn. Questions that share an article
(`groups`) are drawn together, so their deviations are added up before they are squared, and few
articles make the interval wider (Student's t). Where all questions share one article it is about
questions on this article, and where all are right, or none is, nothing is known of how articles
differ: the interval is that of single questions.

`benchmarks/coverage.py` measures the coverage: at least 93.5 % with 20 examples in each cell,
single right-or-wrong cells apart; up to 100 % where few errors are expected, where a few answers
differ by a small part each, and where two sides have different numbers of answers.
"""

import math
from collections.abc import Collection, Iterable, Sequence
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


def critical_value(confidence: float = 0.95) -> float:
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
    # The density of the deviation on a grid wide enough for nine standard errors.
    grid, step = np.linspace(-9, 9, 721, retstep=True)
    density, spent, before, looks = np.zeros(721), 0.0, 0.0, list[float]()
    density[360] = 1 / step

    # At each look: spread the density that is still inside, and cut off as much as may be spent.
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


def wilson(
    share: float, num_examples: float, confidence: float = 0.95, variance: float | None = None
) -> tuple[float, float]:
    """Wilson's score interval (1927) of a share (0..1) of a number of examples; its width is never
    zero. `variance` is that of the share, where it is not that of right-or-wrong examples."""
    z = critical_value(confidence)
    if variance is None:
        variance = share * (1 - share) / num_examples
    shrink = 1 + z**2 / num_examples
    centre = (share + z**2 / (2 * num_examples)) / shrink
    half = z * math.sqrt(variance + (z / (2 * num_examples)) ** 2) / shrink
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def weighted_sum(
    cells: Iterable[WeightedCell],
    confidence: float = 0.95,
    times: float = 1.0,
    population: float = math.inf,
) -> Estimate:
    """The sum of weight times mean score over cells, with its interval: the four steps above. Every
    cell needs at least one score.

    `times` gives the interval that so many times as many examples with the same scores would have.
    With a `population` the interval is about the means of the first so many examples of each cell,
    of which those given are known; it has no width where all are given.
    """
    gains, losses = dict[str, _Part](), dict[str, _Part]()
    for name, task in _paired(cells).items():
        if (task.weights > 0).any():
            gains[name] = _Part(task, 1, confidence, population)
        if (task.weights < 0).any():
            losses[name] = _Part(task, -1, confidence, population)
    (up, up_low, up_high), up_variance = _side(gains.values(), confidence, times)
    (down, down_low, down_high), down_variance = _side(losses.values(), confidence, times)

    # Gains and losses of one task come from the same examples; those of two tasks do not.
    correlation, covariance = 0.0, 0.0
    for name in gains:
        if name not in losses:
            continue
        gain, loss = gains[name], losses[name]
        products = gain.deviations * loss.deviations
        covariance += float(gain.unknown * products.sum() / products.size**2)
    if up_variance * down_variance:
        correlation = covariance / math.sqrt(up_variance * down_variance)
        correlation = max(-1.0, min(1.0, correlation))

    # A limit of the difference takes the near limit of one side and the far one of the other.
    value, distances = up - down, list[float]()
    for one, other in ((up - up_low, down_high - down), (up_high - up, down - down_low)):
        squared = one**2 + other**2 - 2 * correlation * one * other
        distances.append(math.sqrt(max(0.0, squared)))
    limits = (value, value - distances[0], value + distances[1])
    # 0 is added, as a difference of -0.0 is shown with its sign
    return Estimate(*(round(float(number), _DIGITS) + 0.0 for number in limits))


def no_difference_p(cells: Iterable[WeightedCell]) -> float:
    """The one-sided p-value of a loss: the chance of a difference as low if each example's
    difference was as likely up as down, whatever the others are.

    Where all differences have one size, as those of right-or-wrong scores, this is the exact sign
    test (McNemar's), else a normal test with a correction for the steps of the sum.
    """
    # Examples that both answered alike say nothing about a loss.
    parts = [
        (task.weights / task.counts) @ np.nan_to_num(task.scores)
        for task in _paired(cells).values()
    ]
    differences: NDArray[np.float64] = np.concatenate(parts)
    differences = differences[np.abs(differences) > _ROUNDING / differences.size]
    sizes = np.abs(differences)
    if not sizes.size:
        return 0.5

    # All differences have one size: the exact test is a count of signs.
    if np.ptp(sizes) < _ROUNDING * sizes.max():
        from scipy.special import bdtr

        return float(bdtr((differences > 0).sum(), sizes.size, 0.5))

    # The correction for continuity: half of a step towards 0.
    nearer = min(0.0, float(differences.sum() + sizes.min()))  # by half a step of the sum
    return NormalDist().cdf(nearer / math.sqrt(float(sizes @ sizes)))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method: those below 0.05 keep the chance of any false alarm below
    5 %."""
    # The smallest p is held against all tests, the next against one less, and so on; an adjusted p
    # is never below that of a smaller one.
    p = np.asarray(p_values)
    order = np.argsort(p, kind="stable")
    adjusted = np.minimum(1.0, np.arange(len(p), 0, -1) * p[order])
    return [float(number) for number in np.maximum.accumulate(adjusted)[np.argsort(order)]]


class _Paired(NamedTuple):
    """The cells of one task. `scores` has a row for each cell and a column for each example that
    any of them answered, NaN where one did not; `counts` are the answers of each cell."""

    weights: "NDArray[np.float64]"
    scores: "NDArray[np.float64]"
    counts: "NDArray[np.int64]"
    groups: "NDArray[np.float64] | None"


def _paired(cells: Iterable[WeightedCell]) -> dict[str, _Paired]:
    """Cells by their task, their examples paired by index."""
    members: dict[str, list[WeightedCell]] = {}
    for cell in cells:
        members.setdefault(cell.task, []).append(cell)

    tasks = {}
    for name, of_task in members.items():
        # Cells of one task may have been asked for different numbers of examples.
        longest = max(of_task, key=lambda cell: (len(cell.scores), cell.groups is not None))
        scores = np.full((len(of_task), len(longest.scores)), np.nan)
        for row, cell in zip(scores, of_task, strict=True):
            row[: len(cell.scores)] = cell.scores

        # An example that no cell has answered is no example.
        some = ~np.isnan(scores).all(axis=0)
        scores = scores[:, some]
        groups = None if longest.groups is None else longest.groups[some]
        weights = np.array([cell.weight for cell in of_task])
        tasks[name] = _Paired(weights, scores, (~np.isnan(scores)).sum(axis=1), groups)
    return tasks


class _Part:
    """What one task adds to the gains (sign 1), or to the losses (-1): its mean with a variance."""

    def __init__(self, task: _Paired, sign: int, confidence: float, population: float) -> None:
        # What each example adds. One that lacks an answer in a cell is taken as the mean of that
        # cell, so that it neither helps nor harms.
        per_answer = task.weights / task.counts
        means = np.nansum(task.scores, axis=1) / task.counts
        deviations = np.nan_to_num(task.scores - means[:, None])
        size = task.scores.shape[1]
        values: NDArray[np.float64] = sign * (
            task.weights @ means + size * (per_answer @ deviations)
        )

        # A gain counts on one side only: what a task loses elsewhere is the other side's.
        weights = sign * task.weights
        if (weights < 0).any():
            values, weights = np.maximum(values, 0.0), np.maximum(weights, 0.0)
        self.weight: float = weights.sum()
        """The most that an example can add."""
        self.mean = float(values.mean())
        self.deviations: NDArray[np.float64] = values - self.mean

        self.unknown = 1 - min(1.0, float(task.counts.min()) / population)
        """The share of the population that is not known yet: only this is uncertain."""
        self.num_examples = float(task.weights @ task.weights / (task.weights @ per_answer))
        """Of a cell; where cells differ, mostly that of the smallest."""
        self.squares = float(self.unknown * (weights @ weights) / self.num_examples)
        """The sum of the squared weights of so many examples: times p (1 - p) it is the variance
        of right-or-wrong examples."""
        self.example_weights = (self.unknown * weights / task.counts)[weights > 0]
        """Those of single examples, in each cell."""

        # Errors that were seen say how far the spread that was seen can be trusted: the geometric
        # mean of the whole errors and of the examples they are spread over, of those with all
        # answers.
        plain = sign * (task.weights @ task.scores)  # NaN, and not counted, where one is missing
        some_added = (plain > _ROUNDING).sum()
        some_lacked = (plain < self.weight - _ROUNDING).sum()
        whole = size * max(0.0, min(self.mean, self.weight - self.mean)) / self.weight
        self.errors = math.sqrt(min(some_added, some_lacked) * whole)

        # A sample of sums over several cells of this task shows a little less than their variance.
        # For one cell of right-or-wrong scores Wilson's interval takes it from the mean instead.
        self.seen: float = self.deviations @ self.deviations / size**2
        """The variance of the mean, as it was seen."""
        if len(task.weights) > 1 and size > 1:
            self.seen *= size / (size - 1)
        # Questions on one article are drawn together, which widens the interval, never narrows it.
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

        # One group says nothing about how groups differ; groups of one are plain examples.
        if sizes.size in (1, numbers.size):
            return 0.0

        # As many equal groups as have the same sum of squares.
        equal = max(2.0, float(numbers.size**2 / (sizes @ sizes)))
        # What they say about their spread hangs on the largest ones (Satterthwaite).
        squared = sizes.astype(float) ** 2
        freedom = max(1.0, float(squared.sum() ** 2 / (squared @ squared)) - 1)
        few = stdtrit(freedom, 0.5 + confidence / 2) / critical_value(confidence)
        variance = (sums @ sums) * few**2 * equal / (equal - 1)
        largest = self.mean * max(0.0, self.weight - self.mean) * (sizes @ sizes)
        return float(min(variance, largest) / numbers.size**2)

    def variance(self, share: float) -> float:
        """Of the mean, drawn towards that of right-or-wrong scores; `share` is that of all tasks
        together.

        With e errors among n examples, m the share of this task and P that of all, s² the variance
        that was seen, in the units of a share and for one cell of weight 1::

            spread = (e s² + 1/4 m (1 - m) / n) / (e + 1/4)
            drawn  = (n spread + P (1 - P) / n + (m - P)² / (n + 1)) / (n + 1)

        and the result is the larger of `drawn` and s².
        """
        # With few errors the spread that was seen is mostly chance.
        task_share = min(1.0, max(0.0, self.mean / self.weight))
        prior = PSEUDO_ERROR * task_share * (1 - task_share) * self.squares
        spread = (self.errors * self.unknown * self.seen + prior) / (self.errors + PSEUDO_ERROR)

        # One example with the mean of all tasks stands beside those of this one.
        total = self.num_examples + PSEUDO_EXAMPLES
        off = self.unknown * (self.weight * (task_share - share)) ** 2
        pseudo = share * (1 - share) * self.squares + off / total
        drawn = float((self.num_examples * spread + PSEUDO_EXAMPLES * pseudo) / total)

        # Both take the cells of an example as independent. Where an example is right at all
        # lengths or at none, more was seen than that, and it stays.
        return max(drawn, float(self.unknown * self.seen))


def _side(parts: Collection[_Part], confidence: float, times: float) -> tuple[Estimate, float]:
    """One side, the gains or the losses, over all tasks: with Wilson's interval, as if so many
    right-or-wrong examples had been seen as give the sum of the tasks' variances; and this sum.

    An error that was not seen yet may be one of the cell in which an example counts most: the limit
    that allows for more of what is rare does."""
    if not parts:
        return Estimate(0.0, 0.0, 0.0), 0.0

    # All tasks together are one share of the sum of their weights.
    whole = sum(part.weight for part in parts)
    mean = sum(part.mean for part in parts)  # with few pairs it may be above the whole
    share = min(1.0, max(0.0, mean / whole))
    variance = sum(part.variance(share) for part in parts)

    # Where the whole population is known there is nothing to be uncertain about.
    squares = sum(part.squares for part in parts)
    if not squares:
        return Estimate(mean, mean, mean), variance

    # So many right-or-wrong examples would have this variance; where all or none is right, those
    # that were seen.
    share_variance = 0.0
    num_examples = whole**2 / squares
    if _ROUNDING < share < 1 - _ROUNDING:
        share_variance = variance / whole**2
        num_examples = share * (1 - share) / share_variance

    # The first limits are for errors spread as seen, the second ones for one in the heaviest cell,
    # as if there were fewer examples; both are the same where all examples count alike.
    weights = np.concatenate([part.example_weights for part in parts])
    fewer = 1 / max(1 / num_examples, np.ptp(weights) / whole)
    share_variance /= times
    low, high = wilson(share, times * num_examples, confidence, share_variance)
    lower, higher = wilson(share, times * fewer, confidence, share_variance)
    return Estimate(mean, whole * min(low, lower), whole * max(high, higher)), variance
