"""Adaptive runs: which cells get how many examples next, until a question is settled.

A run is a sequence of rounds. Round 0 gives every cell a few examples. Each further round gives
more to the cells that the question still depends on: those of the longest length that may be the
answer, since every longer one must have failed. Examples are shared out in
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
    """When the effective length of a model is settled."""

    confidence: float = 0.95
    max_examples: int = FULL_GRID
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
            False: (
                f"{state.answer} cannot be told apart with {self.max_examples} examples a cell; "
                f"it takes about {state.needed}"
            ),
        }

        # All numbers are tokens, because a long example costs more than a short one.
        grid = self.population * sum(length for _, length in state.counts)
        spent = sum(length * count for (_, length), count in state.counts.items())
        return (
            f"adaptive (effective length): {words[state.settled]}. Spent: {spent:,} tokens, "
            f"{100 * spent / grid:.1f} % of the full grid's {grid:,} ({self.population} examples a "
            "cell)"
        )

    @property
    def population(self) -> int:
        """The examples of a cell in the grid that the answer is about."""
        return max(self.max_examples, FULL_GRID)


class State(NamedTuple):
    """Where a run stands. `counts`: the examples that each cell is to have, in all. `settled`: None
    while the round is open, True for certain, False where `max_examples` did not do. `answer` in
    words; `needed`: examples of a cell with which the question could be settled, by what was
    seen."""

    counts: Counts
    settled: bool | None
    answer: str = ""
    needed: int = 0


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


def examples_for(gap: float, half: float, size: float, population: float = math.inf) -> float:
    """The examples of a cell with which half of an interval's width, `half` at `size` of them,
    would be as narrow as `gap`: it falls with the root, and faster where a finite grid ends."""
    whole = 1 / population
    return 1 / (whole + (1 / size - whole) * (gap / half) ** 2)


def replay(
    rule: StoppingRule,
    scores: Scores,
    aligned: str = "chat",
    claimed: float | None = None,
    max_failures: float = 0,
) -> State:
    """The state after all rounds that are complete.

    `scores` (0..1) of each cell are by index, up to the first example that was not asked yet; NaN
    is a request that failed, of which `max_failures` are allowed.
    """
    # Everything is computed anew from the stored answers, so that a run that was
    # stopped and resumed takes the same decisions as one that never stopped.
    run = _Run(rule, scores, aligned, claimed)
    counts = dict.fromkeys(scores, run.sizes[0])
    looks = dict.fromkeys(run.lengths, 0)
    estimates, changed = dict[int, Estimate](), list(looks)
    while all(_answered(scores[key][:n], n, max_failures) for key, n in counts.items()):
        estimates |= {length: run.estimate(length, counts, looks[length]) for length in changed}

        # A complete round: look at it, and end or ask for more.
        length, answer, settled = run.judge(estimates, looks)
        size, estimate = run.sizes[looks[length]], estimates[length]
        # The examples of a cell with which the answer would be settled.
        half = max(estimate.high - estimate.low, 1e-9) / 2
        needed = examples_for(abs(estimate.value), half, size, rule.population)
        if settled or size == run.sizes[-1]:
            return State(counts, settled, answer, 0 if settled else math.ceil(needed))

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


class _Run:
    """The answers so far, see `replay`. `is_relative`: the threshold is a share of the model's own
    mean at the shortest length. `sizes`: the examples of a cell at each look, up to the most that
    there can be."""

    def __init__(
        self, rule: StoppingRule, scores: Scores, aligned: str, claimed: float | None
    ) -> None:
        self.rule, self.scores, self.claimed = rule, scores, claimed

        # What is asked, as far as the cells themselves say it.
        self.lengths = sorted({length for _, length in scores})
        self.tasks = {task for task, _ in scores}
        self.threshold = threshold_of(self.tasks, aligned, rule.suite, rule.own_threshold) or 0.0
        self.is_relative = not self.threshold

        most = rule.max_examples
        self.sizes = [min(FIRST, most)]
        while self.sizes[-1] < most:
            self.sizes.append(min(most, math.ceil(_STEP * self.sizes[-1])))

    @cached_property
    def confidences(self) -> tuple[list[float], list[float]]:
        """Of the lower and of the upper limit at each look. Half of the error is for failing the
        effective length, half for passing any longer one."""
        # Every further length is another chance to pass by error.
        error = 1 - self.rule.confidence
        shares = tuple(size / self.rule.population for size in self.sizes)
        longer = max(1, len(self.lengths) - 1)
        return look_confidences(shares, 1 - error / longer), look_confidences(shares, 1 - error)

    def estimate(self, length: int, counts: Counts, look: int) -> Estimate:
        """Points above the threshold."""
        # The mean at the length, less the share of the model's own where it is held against that.
        cells = []
        for task, at in self.scores:
            rows = self.scores[task, at][: counts[task, at]]
            weight = 1.0 if length == at else 0.0
            if self.is_relative and at == self.lengths[0]:
                weight -= OWN_SHARE
            if weight:
                cells.append(WeightedCell(weight / len(self.tasks), task, rows))

        # The two limits are looked at with different shares of the error.
        lower, upper = (
            weighted_sum(cells, side[look], population=self.rule.population).percent()
            for side in self.confidences
        )
        estimate = lower._replace(high=upper.high)
        # scores are held against the threshold as they are printed, with one decimal
        return Estimate(*(round(limit, 1) - self.threshold for limit in estimate))

    def judge(
        self, estimates: Mapping[int, Estimate], looks: Mapping[int, int]
    ) -> tuple[int, str, bool]:
        """What the estimates say about the effective length: the length that decides it, the
        answer in words, and whether it is settled."""
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
        return [*unfinished, *undecided, shortest][0], answer, settled

    def share_out(self, length: int, counts: Counts, size: int) -> Counts:
        """The counts of the cells at a length, raised to the tokens of `size` examples each."""
        # Neyman's allocation: in proportion to the spread, over the root of the cost.
        cells = [key for key in self.scores if key[1] == length]
        seen = [self.scores[key][: counts[key]] for key in cells]
        n = np.array([len(rows) for rows in seen])
        means = np.array([np.nanmean(rows) for rows in seen])
        variances = np.array([np.nanvar(rows) for rows in seen])

        # Without a prior a task with no error so far would get no further example.
        prior = max(0.01, means.mean() * (1 - means.mean()))
        spread = np.sqrt((n * variances + _PRIOR * prior) / (n + _PRIOR))

        # The factor that spends just the tokens of the look, found by bisection.
        cost = np.full(len(cells), float(length))
        share, most = spread / np.sqrt(cost), self.sizes[-1]
        low, high = 0.0, most / share.min()
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            planned = np.clip(np.ceil(middle * share), n, most)
            low, high = (middle, high) if planned @ cost < size * cost.sum() else (low, middle)
        planned = np.clip(np.ceil(high * share), n, most).astype(int)
        return dict(zip(cells, planned.tolist(), strict=True))


def _answered(rows: NDArray[np.float64], count: int, max_failures: float) -> bool:
    allowed = min(count - 1, allowed_failures(max_failures, count))
    return len(rows) == count and bool(np.isnan(rows).sum() <= allowed)
