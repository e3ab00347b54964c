"""Adaptive runs: which cells get how many examples next, until a question is settled.

A run is a sequence of rounds. Round 0 gives every cell a few examples. Each further round gives
more to the cells that the question still depends on: for the effective length those of the longest
length that may be the answer, since every longer one must have failed. Examples are shared out in
proportion to the spread seen, over the root of their cost (Neyman 1934). After each round
`statistics.weighted_sum` says what the full grid can still show, with the error spent over all
looks. `replay` begins at round 0 and takes of each cell only the examples that its rounds asked
for: a run that was stopped and resumed ends as any other. `benchmarks/adaptive.py` measures cost
and errors.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulerkit.common.errors import points_text
from rulerkit.common.lengths import length_name
from rulerkit.generation.tasks import THIRTEEN, family_of
from rulerkit.scoring.effective_length import (
    OWN_MEAN_SUITES,
    OWN_SHARE,
    THRESHOLDS,
    effective_set,
    possible_lengths,
)
from rulerkit.scoring.statistics import (
    Estimate,
    WeightedCell,
    critical_value,
    look_confidences,
    weighted_sum,
)
from rulerkit.store.cells import allowed_failures

Scores = Mapping[tuple[str, int], NDArray[np.float64]]
Counts = dict[tuple[str, int], int]
"""Examples of each cell."""

FULL_GRID = 500
"""Examples of a cell in the full grid, the paper's number: what an adaptive run speaks about."""
FIRST = 4
"""Examples of a cell in round 0."""
_STEP = 1.2  # a look has so many times the tokens of the one before
_PRIOR = 12.0  # examples as right as the mean of all, beside those seen of a task: else a task with
# none wrong so far would get no more, and its mean would stay too high
_JUMP = 0.1  # of the tokens that seem to be needed: looks before are left out
_HALVINGS = 40


@dataclass(frozen=True)
class StoppingRule:
    """A question, and when it is settled: one of effective length (neither `average` nor `other`),
    average over all cells, and comparison with another model."""

    confidence: float = 0.95
    max_examples: int = FULL_GRID
    average: float | None = None
    """Points: the average is wanted to plus or minus so much."""
    other: str | None = None
    """The name of another model: is the average better or worse than its?"""
    margin: float = 0.0
    """Points: by how much."""
    tasks: tuple[str, ...] = ()
    """Those that are asked."""
    lengths: tuple[int, ...] = ()
    """Those that the model can be given."""
    suite: str = "ruler"
    """That of the tasks."""
    own_threshold: float | None = None
    """Percent that the family of the tasks brings."""

    def describe(self, state: "State") -> str:
        """Where a run stands, in words."""
        # A user reads this line to learn whether the run may be stopped.
        error = 100 * (1 - self.confidence)
        words = {
            None: "not at an end: the same command goes on",
            True: f"{state.answer}, certain with an error of at most {error:.3g} %",
            False: f"{self._undecided(state)}; it takes about {state.needed}",
        }

        # All numbers are tokens, because a long example costs more than a short one.
        grid = self.population * sum(length for _, length in state.counts)
        spent = sum(length * count for (_, length), count in state.counts.items())
        least = ""
        if state.settled:
            floor = 100 * state.floor / grid
            least = f"; least possible with this error: {floor:.2f} %"
        return (
            f"adaptive ({self.question}): {words[state.settled]}. Spent: {spent:,} tokens, "
            f"{100 * spent / grid:.1f} % of the full grid's {grid:,} ({self.population} examples a "
            f"cell){least}"
        )

    def _undecided(self, state: "State") -> str:
        """How far all examples that may be asked have led."""
        if self.other is None:
            within = "cannot be told apart" if self.average is None else "is reached"
            return f"{state.answer} {within} with {self.max_examples} examples a cell"
        most = max(state.counts.values())
        text = f"{state.answer}, not decided with {most} examples a cell"
        if most < self.max_examples:
            text += f", which is all that {self.other} has: ask it for more first"
        return text

    @property
    def population(self) -> int:
        """The examples of a cell in the grid that the answer is about."""
        return max(self.max_examples, FULL_GRID)

    @property
    def question(self) -> str:
        """In words."""
        if self.average is not None:
            return f"average within {self.average:g} points"
        if self.other is not None:
            return f"better or worse than {self.other} by {points_text(self.margin)}"
        return "effective length"


class State(NamedTuple):
    """Where a run stands. `counts`: the examples that each cell is to have, in all. `settled`: None
    while the round is open, True for certain, False where `max_examples` did not do. `answer` in
    words; `needed`: examples of a cell with which the question could be settled, by what was
    seen; `floor`: tokens that every rule with this error needs, by what was seen."""

    counts: Counts
    settled: bool | None
    answer: str = ""
    needed: int = 0
    floor: float = 0.0


def threshold_of(
    tasks: Collection[str], aligned: str, suite: str = "ruler", own_threshold: float | None = None
) -> float | None:
    """The threshold in percent of a mean over these tasks of a suite; 0 where it is a share of the
    model's own mean, None where there is none. `own_threshold` is what their family brings."""
    if suite in OWN_MEAN_SUITES:
        return 0.0
    if own_threshold is not None or suite != "ruler":
        return own_threshold
    for name, threshold in THRESHOLDS[aligned].items():
        if {task for task in THIRTEEN if name in ("all", family_of(task).category)} == set(tasks):
            return threshold
    return None


def replay(
    rule: StoppingRule,
    scores: Scores,
    aligned: str = "chat",
    claimed: float | None = None,
    other: Scores | None = None,
    max_failures: float = 0,
) -> State:
    """The state after all rounds that are complete.

    `scores` (0..1) of each cell are by index, up to the first example that was not asked yet; NaN
    is a request that failed, of which `max_failures` are allowed. `other` holds those of the other
    model.
    """
    # Everything is computed anew from the stored answers, so that a run that was
    # stopped and resumed takes the same decisions as one that never stopped.
    run = _Run(rule, scores, aligned, claimed, other or {})
    counts = dict.fromkeys(scores, run.sizes[0])
    looks = dict.fromkeys(run.lengths if run.by_length else [0], 0)
    estimates, changed = dict[int, Estimate](), list(looks)
    while all(_answered(scores[key][:n], n, max_failures) for key, n in counts.items()):
        estimates |= {length: run.estimate(length, counts, looks[length]) for length in changed}

        # A complete round: look at it, and end or ask for more.
        judgement = run.judge(estimates, looks)
        length, size = judgement.length, run.sizes[looks[judgement.length]]
        needed = run.examples_needed(judgement, size)
        if judgement.settled or size == run.sizes[-1]:
            rows = {key: scores[key][:count] for key, count in counts.items()}
            floor = sum(least_tokens(rows, n, gap, rule) for n, gap in judgement.gaps.items())
            needed = 0 if judgement.settled else needed
            return State(counts, judgement.settled, judgement.answer, math.ceil(needed), floor)

        # Looks far before the number that seems to be needed would spend error for
        # nothing.
        looks[length] += 1
        while run.sizes[looks[length]] < min(run.sizes[-1], _JUMP * needed / _STEP):
            looks[length] += 1
        # the threshold needs as many examples as what is held against it
        changed = [length, run.lengths[0]] if run.is_relative else [length]
        for at in changed:
            counts |= run.share_out(at, counts, run.sizes[looks[length]])
    return State(counts, None)


class _Judgement(NamedTuple):
    """What the estimates of a round say. `length` (0: all together) is the one that decides, `gap`
    how many points its estimate is off the limit; `gaps` are those of all lengths that had to be
    told from the limit."""

    settled: bool
    answer: str
    length: int
    estimate: Estimate
    gap: float
    gaps: Mapping[int, float]


class _Run:
    """A question and the answers so far, see `replay`. `by_length`: the question is the effective
    length; `is_relative`: its threshold is a share of the model's own mean at the shortest length.
    `sizes`: the examples of a cell at each look, up to the most that there can be."""

    def __init__(
        self, rule: StoppingRule, scores: Scores, aligned: str, claimed: float | None, other: Scores
    ) -> None:
        self.rule, self.scores, self.claimed, self.other = (rule, scores, claimed, other)

        # What is asked, as far as the cells themselves say it.
        self.lengths = sorted({length for _, length in scores})
        self.tasks = {task for task, _ in scores}
        self.by_length = rule.average is None and rule.other is None
        self.threshold = threshold_of(self.tasks, aligned, rule.suite, rule.own_threshold) or 0.0
        self.is_relative = self.by_length and not self.threshold

        # A comparison cannot use more examples than the other model answered.
        stored = [len(other.get(key, ())) for key in scores if rule.other]
        most = min([rule.max_examples, *stored])
        self.sizes = [min(FIRST, most)]
        while self.sizes[-1] < most:
            self.sizes.append(min(most, math.ceil(_STEP * self.sizes[-1])))

    @cached_property
    def confidences(self) -> tuple[list[float], list[float]]:
        """Of the lower and of the upper limit at each look. Half of the error is for failing the
        effective length, half for passing any longer one; an interval that is narrow enough ends no
        test."""
        if self.rule.average is not None:
            constant = [self.rule.confidence] * len(self.sizes)
            return constant, constant

        # Every further length is another chance to pass by error.
        error = 1 - self.rule.confidence
        shares = tuple(size / self.rule.population for size in self.sizes)
        longer = max(1, len(self.lengths) - 1) if self.by_length else 1
        return look_confidences(shares, 1 - error / longer), look_confidences(shares, 1 - error)

    def estimate(self, length: int, counts: Counts, look: int) -> Estimate:
        """Points above the threshold, of the average, or above the other model; length 0 is the
        average over all."""
        # The sum of weighted cells that the question is about: a mean, less the limit
        # it is held against.
        number = len(self.tasks) * (1 if length else len(self.lengths))
        cells = []
        for task, at in self.scores:
            rows = self.scores[task, at][: counts[task, at]]
            weight = 1.0 if length in (0, at) else 0.0
            if self.is_relative and at == self.lengths[0]:
                weight -= OWN_SHARE
            if weight:
                cells.append(WeightedCell(weight / number, task, rows))
            if self.rule.other is not None:
                other_rows = self.other[task, at][: len(rows)]
                cells.append(WeightedCell(-1 / number, task, other_rows))

        # The two limits are looked at with different shares of the error.
        lower, upper = (
            weighted_sum(cells, side[look], population=self.rule.population).percent()
            for side in self.confidences
        )
        estimate = lower._replace(high=upper.high)
        if not self.by_length:
            return estimate
        # scores are held against the threshold as they are printed, with one decimal
        return Estimate(*(round(limit, 1) - self.threshold for limit in estimate))

    def judge(self, estimates: Mapping[int, Estimate], looks: Mapping[int, int]) -> _Judgement:
        """What the estimates say about the question."""
        if self.by_length:
            return self._judge_lengths(estimates, looks)
        estimate = estimates[0]
        if self.rule.average is not None:
            half = max(estimate.high - estimate.value, estimate.value - estimate.low)
            answer = f"average {estimate.value:.1f} ± {half:.1f}"
            gap = self.rule.average
            return _Judgement(half <= gap, answer, 0, estimate, gap, {0: gap})

        # Better, worse or alike: settled when neither border lies in the interval.
        margin = self.rule.margin
        settled = not any(estimate.low <= limit <= estimate.high for limit in (-margin, margin))
        gap = min(abs(estimate.value - limit) for limit in (-margin, margin))
        side = "better" if estimate.value > margin else "worse"

        # The words say only what the interval allows to say.
        if not settled:
            answer = f"{estimate} points from {self.rule.other}"
        else:
            how = side if abs(estimate.value) > margin else "not better or worse"
            than = f"{self.rule.other} by more than {points_text(margin)}"
            answer = f"{how} than {than} ({estimate})"
        return _Judgement(settled, answer, 0, estimate, gap, {0: gap})

    def _judge_lengths(
        self, estimates: Mapping[int, Estimate], looks: Mapping[int, int]
    ) -> _Judgement:
        shortest = self.lengths[0]
        intervals = {length: (value.low, value.high) for length, value in estimates.items()}

        # Estimates are points above the threshold, so the threshold is 0 here.
        possible = possible_lengths(intervals, 0.0)
        answer = effective_set(intervals, 0.0, self.claimed)
        settled = len(possible) == 1
        if self.is_relative and not estimates[shortest].value:
            answer = f"none, as the mean at {length_name(shortest)} is 0"
            settled = settled and self.sizes[looks[shortest]] == self.rule.population

        # The longest undecided length decides the answer, so it is asked first.
        undecided = [n for n in possible if n and estimates[n].low < 0]
        unfinished = [n for n in undecided if self.sizes[looks[n]] < self.sizes[-1]]
        length = [*unfinished, *undecided, shortest][0]
        estimate = estimates[length]
        gaps = {n: abs(estimates[n].value) for n in self.lengths if n >= possible[-1]}
        return _Judgement(settled, answer, length, estimate, abs(estimate.value), gaps)

    def examples_needed(self, judgement: _Judgement, size: int) -> float:
        """The examples of a cell with which the gap would be half of the interval's width, judged
        by the width with `size` examples; the grid is finite."""
        estimate, whole = judgement.estimate, 1 / self.rule.population
        half = max(estimate.high - estimate.low, 1e-9) / 2
        return 1 / (whole + (1 / size - whole) * (judgement.gap / half) ** 2)

    def share_out(self, length: int, counts: Counts, size: int) -> Counts:
        """The counts of the cells at a length (0: all), raised to the tokens of `size` examples
        each."""
        # Neyman's allocation: in proportion to the spread, over the root of the cost.
        cells = _cells_at(self.scores, length)
        seen = [self.scores[key][: counts[key]] for key in cells]
        n = np.array([len(rows) for rows in seen])
        means = np.array([np.nanmean(rows) for rows in seen])
        variances = np.array([np.nanvar(rows) for rows in seen])

        # Without a prior a task with no error so far would get no further example.
        prior = max(0.01, means.mean() * (1 - means.mean()))
        spread = np.sqrt((n * variances + _PRIOR * prior) / (n + _PRIOR))

        # The factor that spends just the tokens of the look, found by bisection.
        cost = np.array([length for _, length in cells], float)
        share, most = spread / np.sqrt(cost), self.sizes[-1]
        low, high = 0.0, most / share.min()
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            planned = np.clip(np.ceil(middle * share), n, most)
            low, high = (middle, high) if planned @ cost < size * cost.sum() else (low, middle)
        planned = np.clip(np.ceil(high * share), n, most).astype(int)
        return dict(zip(cells, planned.tolist(), strict=True))


def least_tokens(scores: Scores, length: int, gap: float, rule: StoppingRule) -> float:
    """The tokens that no rule of the same error can do without, on average (Wald 1945): for
    kl(error, confidence) nats of evidence that the mean at a length (0: all) is so many points off
    a limit, with spreads known in advance and what is left of the grid as the only unknown."""
    cells = _cells_at(scores, length)
    spread = np.array([np.nanstd(scores[key]) for key in cells]) / len(cells)
    cost = np.array([at for _, at in cells], float)
    sure = rule.confidence

    # Wald's bound for two hypotheses with errors of the same size.
    evidence = 2 * (2 * sure - 1) * math.log(sure / (1 - sure))
    if rule.average is not None:
        evidence = critical_value(sure) ** 2

    # The cheapest allocation whose variance shows the gap with that evidence.
    low, high = 1e-9, 1e9
    for _ in range(2 * _HALVINGS):
        middle = math.sqrt(low * high)
        n = np.clip(middle * spread / np.sqrt(cost), 1e-9, rule.population)
        variance = (spread**2 * (1 / n - 1 / rule.population)).sum()
        low, high = (low, middle) if variance <= (gap / 100) ** 2 / evidence else (middle, high)
    return float(n @ cost)


def _cells_at(scores: Scores, length: int) -> list[tuple[str, int]]:
    """The cells at a length; all of them for 0."""
    return [key for key in scores if length in (0, key[1])]


def _answered(rows: NDArray[np.float64], count: int, max_failures: float) -> bool:
    allowed = min(count - 1, allowed_failures(max_failures, count))
    return len(rows) == count and bool(np.isnan(rows).sum() <= allowed)
